"""The table of a consumer's checkpoints in the user's database, of SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.errors import Fenced
from sharedlog._core.position import Position

TABLE = "sharedlog_consumer"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS sharedlog_consumer (consumer TEXT NOT NULL, shard TEXT NOT NULL, "
    "fence BIGINT NOT NULL, position TEXT NOT NULL, seq BIGINT NOT NULL, intent {bytes} NOT NULL, "
    "takeovers BIGINT NOT NULL, attempts BIGINT NOT NULL, session TEXT NOT NULL, "
    "epoch BIGINT NOT NULL, "
    "PRIMARY KEY (consumer, shard))"
)
_INSERT = (
    "INSERT INTO sharedlog_consumer VALUES (?, ?, 0, '', 0, ?, 0, 0, '', 0) "
    "ON CONFLICT (consumer, shard) DO NOTHING"
)
# T1: only a higher number; who has a lower one commits nothing from here on.
_TAKE = (
    "UPDATE sharedlog_consumer SET fence = ?, session = ?, takeovers = "
    "(CASE WHEN takeovers = 0 THEN ? ELSE takeovers END + "
    "CASE WHEN attempts > 0 THEN ? ELSE 0 END) * ?, "
    "attempts = attempts * ? WHERE consumer = ? AND shard = ? AND fence < ? "
    "RETURNING position, seq, intent, takeovers, attempts, epoch"
)
_NOTE = "UPDATE sharedlog_consumer SET attempts = ? WHERE consumer = ? AND shard = ? AND fence = ?"
_COMMIT = (
    "UPDATE sharedlog_consumer SET position = ?, seq = ?, intent = ?, takeovers = 0, attempts = 0 "
    "WHERE consumer = ? AND shard = ? AND fence = ?"
)
_REWIND = (
    "UPDATE sharedlog_consumer SET position = ?, epoch = ?, intent = ?, takeovers = 0, "
    "attempts = 0 WHERE consumer = ? AND shard = ? AND fence = ?"
)
_FENCE = "SELECT fence FROM sharedlog_consumer WHERE consumer = ? AND shard = ?"

_SESSION = "SELECT session FROM sharedlog_consumer WHERE consumer = ? AND shard = ?"

# Executes a statement, and returns what has ``fetchone`` and ``rowcount``.
Execute = Callable[[str, Sequence[Any]], Any]


class ConsumerDialect(NamedTuple):
    """What two databases write differently.

    ``share``: has who would change the rows that a statement looks at wait for it.
    """

    bytes: str
    place: str
    share: str

    def of(self, statement: str) -> str:
        """Return a statement with this one's places for parameters."""
        return statement.replace("?", self.place)

    def cast(self, kind: str) -> str:
        """Return the place of a parameter whose type nothing else says."""
        return f"CAST(? AS {kind.replace('BYTEA', self.bytes)})"


class Table:
    """The rows of one consumer: statements, carried out in transactions of the store's."""

    def __init__(self, name: str, dialect: ConsumerDialect) -> None:
        """``name``: the consumer's."""
        self._name = name
        self._of = dialect.of
        self.create = _CREATE.format(bytes=dialect.bytes)

    def take(
        self,
        execute: Execute,
        tag: str,
        number: int,
        *,
        gone: Gone,
        anew: bool,
        session: str = "",
    ) -> Checkpoint:
        """Raise the shard's fence, and return the checkpoint; ``session``: this process's."""
        shard = (self._name, tag)
        execute(self._of(_INSERT), (*shard, b""))
        kept = int(not anew)
        counted = int(gone is not Gone.LEFT), int(gone is Gone.TAKEN)
        taken = (number, session, *counted, kept, kept, *shard, number)
        row = execute(self._of(_TAKE), taken).fetchone()
        if row is None:
            raise self.fenced(execute, tag, number)
        position, seq, intent, takeovers, attempts, epoch = row
        place = Position.parse(position) if position else None
        return Checkpoint(number, place, seq, bytes(intent), takeovers, attempts, epoch=epoch)

    def session(self, execute: Execute, tag: str) -> str:
        """Return the session of the process that has taken the shard last; empty: none is known."""
        row = execute(self._of(_SESSION), (self._name, tag)).fetchone()
        return "" if row is None else str(row[0])

    def note(self, execute: Execute, tag: str, number: int, attempts: int) -> None:
        """Note attempts, durably, if the fence has the number."""
        done = execute(self._of(_NOTE), (attempts, self._name, tag, number))
        if done.rowcount != 1:
            raise self.fenced(execute, tag, number)

    def rewind(
        self, execute: Execute, tag: str, number: int, epoch: int, position: Position | None
    ) -> None:
        """Set the position in a new epoch, if the fence has the number."""
        given = (str(position or ""), epoch, b"", self._name, tag, number)
        if execute(self._of(_REWIND), given).rowcount != 1:
            raise self.fenced(execute, tag, number)

    def move(self, execute: Execute, tag: str, checkpoint: Checkpoint) -> None:
        """Write the checkpoint, before the commit; ``Fenced``: it must not be committed."""
        number, position, seq, intent, *_ = checkpoint
        moved = (str(position or ""), seq, intent, self._name, tag, number)
        if execute(self._of(_COMMIT), moved).rowcount != 1:
            raise self.fenced(execute, tag, number)

    def fenced(self, execute: Execute, tag: str, number: int) -> Fenced:
        """Return the error of who has the shard under a number that is not the fence's."""
        row = execute(self._of(_FENCE), (self._name, tag)).fetchone()
        found = 0 if row is None else int(row[0])
        return Fenced(
            f"the store has {tag} of the consumer {self._name!r} at fence {found}, this process "
            f"holds {number}: another one took over",
            found,
        )


SQLITE = ConsumerDialect("BLOB", "?", "")
POSTGRES = ConsumerDialect("BYTEA", "%s", "FOR SHARE")
