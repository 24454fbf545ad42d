"""The rows of handlers' calls in the user's database, of SQLite or PostgreSQL (T6)."""

from __future__ import annotations

from sharedlog._consumer.tables import ConsumerDialect, Execute
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.position import Position

CALLS = "sharedlog_consumer_call"
_CREATE = (
    "CREATE TABLE IF NOT EXISTS sharedlog_consumer_call (consumer TEXT NOT NULL, "
    "shard TEXT NOT NULL, serial BIGINT NOT NULL, position TEXT NOT NULL, lsn BIGINT NOT NULL, "
    "ordinal BIGINT NOT NULL, number BIGINT NOT NULL, session TEXT NOT NULL, "
    "client TEXT NOT NULL, target TEXT NOT NULL, method TEXT NOT NULL, "
    "request {bytes} NOT NULL, answer {bytes}, PRIMARY KEY (consumer, shard, serial))"
)
_READ = (
    "SELECT serial, position, number, session, client, target, method, request, answer "
    "FROM sharedlog_consumer_call WHERE consumer = ? AND shard = ? ORDER BY serial"
)
# Where the fence is the number, which a take-over of the shard waits for or raises.
_INTEND = (
    "INSERT INTO sharedlog_consumer_call SELECT consumer, shard, {values} "
    "FROM sharedlog_consumer WHERE consumer = ? AND shard = ? AND fence = ? {locked}"
)
_ANSWERED = (
    "UPDATE sharedlog_consumer_call SET answer = ? WHERE consumer = ? AND shard = ? "
    "AND serial = ? AND EXISTS (SELECT 1 FROM sharedlog_consumer WHERE consumer = ? AND shard = ? "
    "AND fence = ? {locked})"
)
# The newest stays: serials only grow.
_PASSED = (
    "DELETE FROM sharedlog_consumer_call WHERE consumer = ? AND shard = ? AND (lsn < ? OR "
    "(lsn = ? AND ordinal <= ?)) AND serial < (SELECT max(serial) FROM sharedlog_consumer_call "
    "WHERE consumer = ? AND shard = ?)"
)
_FORGET = "DELETE FROM sharedlog_consumer_call WHERE consumer = ? AND shard = ?"
_VALUES = {
    "serial": "BIGINT",
    "position": "TEXT",
    "lsn": "BIGINT",
    "ordinal": "BIGINT",
    "number": "BIGINT",
    "session": "TEXT",
    "client": "TEXT",
    "target": "TEXT",
    "method": "TEXT",
    "request": "BYTEA",
    "answer": "BYTEA",
}


class CallRows:
    """The rows of one consumer's calls: statements, in transactions of the store's."""

    def __init__(self, name: str, dialect: ConsumerDialect) -> None:
        """``name``: the consumer's."""
        self._name = name
        self._of = dialect.of
        self.create = _CREATE.format(bytes=dialect.bytes)
        casts = ", ".join(dialect.cast(each) for each in _VALUES.values())
        self._intend = _INTEND.format(values=casts, locked=dialect.share)
        self._answered = _ANSWERED.format(locked=dialect.share)

    def read(self, execute: Execute, tag: str) -> list[HandlerCall]:
        """Return the calls of a shard, by their serials."""
        rows = execute(self._of(_READ), (self._name, tag)).fetchall()
        return [
            HandlerCall(
                int(serial),
                Position.parse(position),
                int(number),
                session,
                client,
                target,
                method,
                bytes(request),
                None if answer is None else bytes(answer),
            )
            for serial, position, number, session, client, target, method, request, answer in rows
        ]

    def intend(self, execute: Execute, tag: str, number: int, call: HandlerCall) -> bool:
        """Keep a call; False: the fence is another one's."""
        position = call.position
        values = (
            *(call.serial, str(position), position.lsn, position.ordinal, call.number),
            *(call.session, call.client, call.target, call.method, call.request, call.answer),
        )
        done = execute(self._of(self._intend), (*values, self._name, tag, number))
        return bool(done.rowcount == 1)

    def answered(self, execute: Execute, tag: str, number: int, call: HandlerCall) -> bool:
        """Keep a call's answer; False: the fence is another one's."""
        shard = (self._name, tag)
        given = (call.answer, *shard, call.serial, *shard, number)
        return bool(execute(self._of(self._answered), given).rowcount == 1)

    def passed(self, execute: Execute, tag: str, position: Position) -> None:
        """T6: in the commit that passes them, let the calls of messages go that are done."""
        shard = (self._name, tag)
        lsn, ordinal = position.lsn, position.ordinal
        execute(self._of(_PASSED), (*shard, lsn, lsn, ordinal, *shard))

    def forget(self, execute: Execute, tag: str) -> None:
        """Let all calls of a shard go: it begins a new epoch."""
        execute(self._of(_FORGET), (self._name, tag))
