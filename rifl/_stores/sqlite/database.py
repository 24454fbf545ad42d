"""One SQLite database that holds records: the store's own, or an atomic method's."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from _rifl_ground.sqlite.failures import Stopped
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import WrongDatabase
from rifl._stores.inspection import NOTES_KEPT, VERDICTS_KEPT_S
from rifl._stores.rows import RowCall
from rifl._stores.sqlite.attempt import SqliteAttempt
from rifl._stores.sqlite.journal import Journal
from rifl._stores.sqlite.journal_entries import DROP_CALLS, DROP_CLIENT, DROP_KEYS
from rifl._stores.sqlite.medium import FILES, Medium
from rifl._stores.sqlite.schema import close_database, get_meta, open_database, set_meta
from rifl._stores.sqlite.shared_transactions import SharedTransactions
from rifl._stores.sqlite.statements import CLIENT_IDS, FORGET_UNKNOWN, RepeatedStatement
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RecordPending
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord

_GET = (
    "SELECT record, commit_number FROM rifl_call "
    "WHERE client_id=? AND identity=? AND record IS NOT NULL"
)
_GET_ROWS = "SELECT key, value, commit_number FROM rifl_row WHERE key IN ({})"
_KEYS_AT_ONCE = 500
# Calls without a key: of keyed ones there may be many, and none is read.
_SEQUENCED = "identity < x'' AND client_id IN (SELECT client_id FROM rifl_client)"
_INTENTS = (
    "SELECT client_id, identity, method, record IS NULL FROM rifl_call WHERE until_s = 0 "  # noqa: S608 - ours
    f"UNION ALL SELECT client_id, identity, method, 1 FROM rifl_call WHERE {_SEQUENCED} "
    "AND record IS NULL"
)
_LOOK_UP = RepeatedStatement(
    "WITH wanted(client_id, identity) AS (VALUES",
    "(?, ?)",
    ") SELECT client_id, identity, fingerprint, record, coalesce(keys, 0), coalesce(bytes, 0) "
    "FROM wanted "
    "LEFT JOIN rifl_call USING (client_id, identity) LEFT JOIN rifl_keys USING (client_id)",
)
# One step for many keys: see ``statements``.
_KEYS_AFTER = (
    "SELECT client_id, group_concat(hex(identity), ' ') FROM "
    "(SELECT client_id, identity FROM rifl_call WHERE (client_id, identity) > (?, ?) "
    "AND identity >= x'' ORDER BY client_id, identity LIMIT ?) GROUP BY client_id"
)
_UNRESOLVED = (
    "SELECT count(*), CAST(strftime('%s') AS INTEGER) - min(since_unix_s) FROM rifl_unknown "
    "WHERE note IS NULL"
)
_NEXT_UNTIL = "SELECT min(until_s) FROM rifl_call WHERE until_s > 0"
# Peers' namespaces that hold no key: no lease of theirs ends, so they go here.
_DROP_NAMESPACES = (
    "DELETE FROM rifl_client WHERE client_id < 0 AND NOT EXISTS "
    "(SELECT 1 FROM rifl_call WHERE rifl_call.client_id=rifl_client.client_id)"
)
# What an operator settled has its record.
_CLOSE_INTENT = (
    "UPDATE rifl_call SET record=coalesce(record, ?), until_s=? WHERE client_id=? AND identity=?"
)
# The record goes when its verdict is acknowledged, or its client ends.
_REMEMBER_INTENT = (
    "INSERT OR IGNORE INTO rifl_unknown SELECT client_id, identity, method, "
    "changed_at_unix_s, NULL FROM rifl_call WHERE client_id=? AND identity=? AND record IS NULL"
)
# Under which the names of other databases are kept.
_NAMED = "databases"


def pack_ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Encode inclusive ranges for a client row."""
    if not ranges:
        return b""
    numbers = [number for pair in ranges for number in pair]
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def unpack_ranges(data: bytes) -> list[tuple[int, int]]:
    """Decode the ranges of a client row; raises ``ValueError``."""
    try:
        return list(struct.iter_unpack("<QQ", data))
    except struct.error as error:
        raise ValueError(f"acknowledged ranges of {len(data)} bytes") from error


class LookedUp(NamedTuple):
    """What is durable of a keyed call: no ``record`` if it is new or runs.

    ``keys`` and ``bytes``: of its client, those with a record.
    """

    fingerprint: bytes | None
    record: bytes | None
    keys: int
    bytes: int


class Database:
    """A file with rifl's rows, owned by this process, with its journal.

    ``registered`` names are the file's path as text. Reads go through one
    connection of their own, under a lock.
    """

    def __init__(
        self,
        path: Path,
        store_id: str | None,
        lock_timeout_s: float,
        codec: RecordCodec,
        medium: Medium = FILES,
    ) -> None:
        self._codec = codec
        self._medium = medium
        self.path = path.resolve()
        self.name = str(self.path)
        self._ownership = medium.own(self.path, lock_timeout_s)
        try:
            self.guard = medium.guard(self.path)
            self._writer, self.store_id, self.incarnation = open_database(
                self.path, store_id, medium.connect, self.guard
            )
        except BaseException:
            self._ownership.release()
            raise
        self._reader = medium.connect(self.path)
        self._reader_lock = threading.Lock()
        self._journal: Journal | None = None
        self._shared: SharedTransactions | None = None
        self._on_commit: Callable[[int, float, Exception | None], None] | None = None
        self._shared_lock = threading.Lock()
        # Whether transactions that handlers share enforce them; set before the first one.
        self.foreign_keys = False

    def start(
        self,
        on_health: Callable[[Exception | None], None],
        on_commit: Callable[[int, float, Exception | None], None] | None = None,
    ) -> None:
        """Start the journal: rows are written by it alone from now on."""
        self._on_commit = on_commit
        # The journal waits for other connections by itself, so that calls can give up.
        self._writer.execute("PRAGMA busy_timeout=0")
        self._journal = self._medium.journal(
            self._writer, on_health, self.path.name, self.guard, on_commit
        )

    @property
    def journal(self) -> Journal:
        """The journal, once started."""
        if self._journal is None:
            raise InvariantViolated("rows are written before the journal is started")
        return self._journal

    def turn(self, limit_s: float) -> contextlib.AbstractContextManager[None]:
        """Have the file for a transaction on another connection; see ``Journal.turn``."""
        journal = self._journal
        return contextlib.nullcontext() if journal is None else journal.turn(limit_s)

    @property
    def shared(self) -> SharedTransactions:
        """The transactions that handlers share; made when first asked for."""
        if self._shared is None:
            with self._shared_lock:
                if self._shared is None:
                    journal = self.journal
                    self._shared = journal.shared = SharedTransactions(
                        self._connect_shared,
                        stopped=lambda: journal.stopped,
                        stop=journal.stop_for,
                        read=self.read,
                        guard=self.guard,
                        on_commit=self._on_commit,
                    )
        return self._shared

    def _connect_shared(self) -> sqlite3.Connection:
        connection = self._medium.connect(self.path)
        if self.foreign_keys:
            connection.execute("PRAGMA foreign_keys=ON")
        return connection

    def intents(self) -> list[tuple[int, int | bytes, str, int]]:
        """Return the intents' clients, identities and methods; last 0 if it has been settled."""
        return self._writer.execute(_INTENTS).fetchall()

    def close_intents(
        self, record: CompletionRecord, until_s: Mapping[tuple[int, int | bytes], float | None]
    ) -> None:
        """Give intents of a dead incarnation their verdict, durably, and keep it so long.

        Not sealed: nothing of an answer is in it.
        """
        verdict = RecordCodec().to_bytes(record, None)
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.executemany(_REMEMBER_INTENT, until_s)
        self._writer.execute(FORGET_UNKNOWN, (VERDICTS_KEPT_S, NOTES_KEPT))
        self._writer.executemany(
            _CLOSE_INTENT, [(verdict, until, *each) for each, until in until_s.items()]
        )
        self._writer.execute("COMMIT")

    def forget_namespaces(self) -> None:
        """Remove peers' namespaces that hold no key any more."""
        self._writer.execute(_DROP_NAMESPACES)

    def forget_others(self, client_ids: set[int]) -> None:
        """Remove the rows of clients that the store does not know (any more)."""
        strays = [row for row in self._writer.execute(CLIENT_IDS) if row[0] not in client_ids]
        self._writer.execute("BEGIN IMMEDIATE")
        for statement in (DROP_KEYS, DROP_CALLS, DROP_CLIENT):
            self._writer.executemany(statement, strays)
        self._writer.execute("COMMIT")

    def lived(self, now_s: float) -> int:
        """Return the time that the store has lived through; a new store begins at ``now_s``."""
        if get_meta(self._writer, "lived_s") is None:
            set_meta(self._writer, "lived_s", max(1, int(now_s)))
        lived_s = get_meta(self._writer, "lived_s")
        if not isinstance(lived_s, int):
            raise ValueError(f"the time that it lived through is {lived_s!r}")
        return lived_s

    def name_others(self, named: Collection[str]) -> None:
        """Note the databases that records go into beside this one; see ``note_named``."""
        _note_named(self._writer, self.path, named)

    def clients(self) -> Iterator[tuple[int, int, bytes]]:
        """Return each client's id, first incomplete seq and packed ranges."""
        return self._writer.execute(
            "SELECT client_id, first_incomplete, completed FROM rifl_client"
        )

    def calls(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Return the client, seq and fingerprint of each call without a key."""
        return self._writer.execute(
            f"SELECT client_id, identity, fingerprint FROM rifl_call WHERE {_SEQUENCED}"  # noqa: S608 - ours
        )

    def look_up(self, calls: Sequence[Call]) -> list[LookedUp]:
        """Return what is durable of keyed calls; raises ``sqlite3.Error``."""
        wanted = [(call.client_id, call.key) for call in calls]
        with self._reader_lock:
            if len(wanted) == 1:
                return [LookedUp._make(_LOOK_UP.read_one(self._reader, wanted[0])[2:])]
            rows = _LOOK_UP.read(self._reader, wanted)
        found = {row[:2]: LookedUp._make(row[2:]) for row in rows}
        return [found[each] for each in wanted]

    def keys(self) -> dict[int, int]:
        """Return how many keys each client has; raises ``sqlite3.Error``."""
        with self._reader_lock:
            return dict(self._reader.execute("SELECT client_id, keys FROM rifl_keys"))

    def keys_after(self, after: tuple[int, bytes], limit: int) -> list[tuple[int, bytes]]:
        """Return so many keys, with their clients, after one of them; raises ``sqlite3.Error``."""
        with self._reader_lock:
            found = self._reader.execute(_KEYS_AFTER, (*after, limit)).fetchall()
        return [
            (client_id, bytes.fromhex(text))
            for client_id, texts in found
            for text in texts.split(" ")
        ]

    def unresolved(self) -> tuple[int, int | None]:
        """Return how many unknown calls were not settled, and the oldest's age in seconds.

        Raises ``sqlite3.Error``.
        """
        with self._reader_lock:
            found: tuple[int, int | None] = self._reader.execute(_UNRESOLVED).fetchone()
        return found

    def next_until_s(self) -> float | None:
        """Return when the next retention ends, None if none does; raises ``sqlite3.Error``."""
        with self._reader_lock:
            found: tuple[float | None] = self._reader.execute(_NEXT_UNTIL).fetchone()
            return found[0]

    def read(self, call: Call) -> CompletionRecord | None:
        """Return the durable record of a call, None if there is none.

        Raises ``RecordPending`` when it cannot be read: it may be there.
        """
        return self._read(call)[0]

    def read_committed(self, attempt: SqliteAttempt) -> CompletionRecord | None:
        """Return what a transaction of the handler's left in the store's file, and note that.

        Raises ``RecordPending`` when it cannot be read, or is in a file that is not the
        store's any more.
        """
        record, number = self._read(attempt.call, attempt)
        try:
            if record is not None:
                self.guard.committed(number)
        except Stopped as error:
            self.journal.stop_for(error)
            raise RecordPending(
                f"the record of {attempt.call.rpc_id} is not in the store: {error}"
            ) from error
        return record

    def look(self) -> None:
        """Check the files that see no commits: are they the store's, and is the WAL long?"""
        try:
            self.guard.check()
            self.journal.tend()
        except Stopped as error:
            if self.journal.stopped is None:
                self.journal.stop_for(error)

    def _read(
        self, call: Call, of: SqliteAttempt | None = None
    ) -> tuple[CompletionRecord | None, int]:
        """Return the call's record, and its commit's number; ``of``: whose it may well be."""
        if isinstance(call, RowCall):
            return self._read_moves(call)
        try:
            with self._reader_lock:
                row = self._reader.execute(_GET, (call.client_id, call.identity)).fetchone()
            if row is None:
                return None, 0
            stored, number = row
            if of is not None and of.stored == stored:
                return of.recorded, number
            return self._codec.from_bytes(stored, call), number
        except (sqlite3.Error, ValueError) as error:
            raise RecordPending(f"the record of {call.rpc_id} cannot be read: {error}") from error

    def _read_moves(self, call: RowCall) -> tuple[CompletionRecord | None, int]:
        """Return that its rows were moved, with the commit's number, if they were."""
        found = self.read_rows([each.key for each in call.moves])
        for move in call.moves:
            if found.get(move.key, (None, 0))[0] != move.value:
                return None, 0
        return CompletionRecord(), max([number for _, number in found.values()], default=0)

    def read_rows(self, keys: Sequence[str]) -> dict[str, tuple[bytes, int]]:
        """Return the conditional rows that are durable, with the numbers of their commits.

        Raises ``RecordPending`` when they cannot be read.
        """
        found: dict[str, tuple[bytes, int]] = {}
        try:
            with self._reader_lock:
                for at in range(0, len(keys), _KEYS_AT_ONCE):
                    some = keys[at : at + _KEYS_AT_ONCE]
                    marks = ", ".join("?" * len(some))
                    rows = self._reader.execute(_GET_ROWS.format(marks), some)
                    found.update((key, (value, number)) for key, value, number in rows)
        except sqlite3.Error as error:
            raise RecordPending(f"the rows cannot be read: {error}") from error
        return found

    def close(self) -> None:
        """Make durable what is queued and let the connections go; ``leave`` follows."""
        if self._journal is None:
            self._writer.close()
        else:
            self._journal.close()
        if self._shared is not None:
            self._shared.close()
        with self._reader_lock:
            self._reader.close()

    def leave(self) -> None:
        """Let the file go, once nothing of this process writes to it."""
        if self._journal is None or self._journal.ended:
            close_database(self.path, self.guard, self._medium.connect)
        else:
            self.guard.closed(None)
        self._ownership.release()


def _note_named(connection: sqlite3.Connection, path: Path, named: Collection[str]) -> None:
    """Note the databases named now, in the store's own, which knows all clients.

    Raises ``WrongDatabase`` if one that was named before is not any more, while a client
    of that time is known: records in it would not be found, and a retry would run again.
    """
    before = set(json.loads(str(get_meta(connection, _NAMED) or "[]")))
    missing = sorted(before - set(named))
    if missing and connection.execute("SELECT 1 FROM rifl_client LIMIT 1").fetchone():
        raise WrongDatabase(
            f"records of calls that {path} knows are in {', '.join(missing)}, which no atomic "
            "method names any more: their retries would run again. Name it until the clients of "
            "that time are over (rifl inspect shows none)"
        )
    if before != set(named):
        set_meta(connection, _NAMED, json.dumps(sorted(named)))
