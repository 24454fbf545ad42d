"""The journal: group commit of what calls make durable, one fsync for many (DESIGN §6)."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rifl._log import get_logger
from rifl._stores.inspection import NOTES_KEPT, VERDICTS_KEPT_S
from rifl._stores.pending import Pending
from rifl._stores.sqlite.file_guard import RAISE_COMMITS, Guard, Replaced
from rifl._stores.sqlite.journal_entries import (
    ALONE,
    CLIENT,
    DROP_CALLS,
    DROP_CLIENT,
    LIVED,
    OWNER,
    PROBE,
    Acknowledged,
    Entry,
)
from rifl._stores.sqlite.statements import (
    FORGET_UNKNOWN,
    MOST_AT_ONCE,
    REMEMBER_UNKNOWN,
    Statement,
)
from rifl._stores.sqlite.write_queue import LONGEST_S, LONGEST_WAIT_S, QUIET_S, Gathering

if TYPE_CHECKING:
    from rifl._stores.sqlite.shared_transactions import SharedTransactions

_log = get_logger("rifl.store")
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
# Another connection holds the file's lock: that is looked at so often, and is a failed commit
# only after this. Callers give up at their deadlines.
_BUSY_PAUSE_S = 0.01
BUSY_S = 30.0
# A WAL of this length is kept from being emptied by somebody who reads; it is looked at again
# whenever it has grown by so much more.
LONG_WAL_BYTES = 64 << 20
_WAL_STEP_BYTES = 16 << 20
# So many acknowledgements get a commit of their own.
_FLUSH_ACKNOWLEDGEMENTS = 256

_WRITING = "another connection holds the file's lock for writing"
_HELD = "a handler has kept its turn in the shared transaction for too long"


class _Superseded(sqlite3.Error):
    """The file has a new owner: nothing of ours may be written any more."""


class _Round(NamedTuple):
    """What one commit is to make durable, and whether the journal closes with it."""

    batch: list[Entry]
    noted: Acknowledged
    closing: bool


class Journal:
    """Writes entries to one database, all that wait in one transaction.

    Entries of a batch are written intents and records first, then deletions and
    client rows, then removals of whole clients; that order is safe because no
    identity has an intent and its record in one batch.

    A commit that fails before its fsync is retried for patient entries; a failed
    fsync stops the journal for good, since nobody can know what is on the disk, and
    so does another owner of the file: what it recovered stands.
    ``on_health`` hears the error when writes begin to fail and None when they
    work again, ``on_commit`` the number of entries of each commit, its seconds and
    its error; both in the committer's thread.

    The committer is a thread of the journal's own, or a caller on its own who blocks
    for its entry: that one has no change of thread to wait for. Thread-safe.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        on_health: Callable[[Exception | None], None],
        name: str,
        guard: Guard,
        on_commit: Callable[[int, float, Exception | None], None] | None = None,
    ) -> None:
        self._connection = connection
        self._guard = guard
        self._on_health = on_health
        self._on_commit = on_commit
        self._queue: list[Entry] = []
        self._acknowledged = Acknowledged()
        self._wake = threading.Condition()
        # Whether there is a committer.
        self._led = False
        # Where handlers write to the file too, in turn with us; set once, if at all.
        self.shared: SharedTransactions | None = None
        self._closing = False
        self._stopped: Exception | None = None
        self._retry: list[Entry] = []
        self._failing = False
        # Since when another connection's transaction is in the way, and why new calls are refused
        # although commits work.
        self._busy_since: float | None = None
        self._pinned: Exception | None = None
        self._tend_at = LONG_WAL_BYTES
        self._tending = False
        self._gathering = Gathering()
        self._gathers = False
        self._delay_s = _FIRST_RETRY_S
        self._thread = threading.Thread(target=self._run, name=f"rifl-journal-{name}", daemon=True)
        self._begin()

    def _begin(self) -> None:
        """Have rounds driven, by a thread of its own."""
        self._thread.start()

    def submit(self, entry: Entry, *, awaited: bool = False) -> Pending:
        """Queue an entry; what it returns is done when it is durable.

        ``awaited``: the caller waits for that, in whichever way, and does so at once:
        until then it may be that nobody commits.
        """
        with self._wake:
            if self._stopped is None and not self._closing:
                self._queue.append(entry)
                entry.pending.home = self
                if awaited and not self._led and self._gathering.expected == 1:
                    # Told when somebody waits, and in which way.
                    entry.pending.journal = self
                elif not self._gathers or len(self._queue) >= self._gathering.expected:
                    self._wake.notify()
                return entry.pending
            error = self._stopped or sqlite3.ProgrammingError("the store is closed")
        entry.pending.fail(entry.failure(error))
        return entry.pending

    def acknowledge(
        self, client_id: int, first_incomplete: int, completed: bytes, released: list[int]
    ) -> None:
        """Note acknowledgements, to be made durable with the next commit, or soon."""
        with self._wake:
            noted = self._acknowledged
            noted.clients[client_id] = (first_incomplete, completed)
            noted.calls.extend((client_id, seq) for seq in released)
            if len(noted.calls) >= _FLUSH_ACKNOWLEDGEMENTS:
                self._wake.notify()

    def register(self, client_id: int, first_incomplete: int, completed: bytes) -> None:
        """Have a client's row in the next commit, with the first of its calls."""
        with self._wake:
            self._acknowledged.clients[client_id] = (first_incomplete, completed)
            self._acknowledged.registering = True

    def remember(self, client_id: int, identity: int | bytes, method: str) -> None:
        """Have a call whose outcome is not known remembered, with the next commit."""
        with self._wake:
            row = (client_id, identity, method, int(time.time()), None)
            self._acknowledged.unknown.append(row)

    def live(self, lived_s: int) -> None:
        """Have it noted how long the store has lived, soon."""
        with self._wake:
            self._acknowledged.lived_s = lived_s
            self._wake.notify()

    def drop(self, client_ids: list[int], after: Callable[[], None] | None = None) -> None:
        """Remove clients with all their rows, in one transaction, soon.

        ``after`` is called in the committer's thread once that is durable.
        """
        with self._wake:
            self._acknowledged.dropped.extend((client_id,) for client_id in client_ids)
            if after is not None:
                self._acknowledged.after.append(after)
            self._wake.notify()

    def close(self, timeout_s: float = 10.0) -> None:
        """Make durable what is queued, if that works in time, and stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._connection.close()

    def _due(self) -> bool:
        noted = self._acknowledged
        return bool(
            self._queue
            or self._closing
            or noted.dropped
            or noted.lived_s is not None
            or len(noted.calls) >= _FLUSH_ACKNOWLEDGEMENTS
        )

    def lead(self) -> None:
        """Commit what is queued, in the thread of one who blocks for it, if nobody does."""
        with self._wake:
            if self._failing or self._pinned or self._busy_since is not None:
                self._wake.notify()
                return
            if self._led or not self._queue:
                # Whoever has the lead looks for more before leaving it.
                return
            self._led = True
        self._carry_out()

    @property
    def stopped(self) -> Exception | None:
        """Why nothing is written to the file any more, None if it is."""
        return self._stopped

    @property
    def ended(self) -> bool:
        """Whether it is closed, and has written all it was given."""
        return self._closing and not (self._failing or self._stopped or self._thread.is_alive())

    def stop_for(self, error: Exception) -> bool:
        """Stop for good if a commit of another connection's failed so; whether it did.

        Then nobody can know whether that is on the disk, or the file is another's.
        """
        if not isinstance(error, sqlite3.Error) or not _is_fatal(error):
            return False
        self._stop(error)
        self._on_health(error)
        return True

    def give_up(self, pending: Pending) -> None:
        """Wait no longer for an entry that waits for another connection's transaction.

        Its call is not begun, or its record is written later. Nothing happens to one that is
        being committed.
        """
        with self._wake:
            for entry in self._queue:
                if entry.pending is pending and not pending.done:
                    if not entry.patient:
                        self._queue.remove(entry)
                    # With the lock: nobody can take it and tell meanwhile.
                    pending.fail(entry.failure(sqlite3.OperationalError(_WRITING)))
                    return

    def tend(self) -> None:
        """Have a long WAL looked at, soon: also where only other connections write."""
        if self._guard.wal_bytes >= self._tend_at:
            with self._wake:
                self._tending = True
                self._wake.notify()

    def call(self) -> None:
        """Have the journal's own thread see to what is queued."""
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._is_called)
                if self._stopped is not None:
                    return
                self._led = True
                if self._failing:
                    self._wake.wait_for(lambda: self._closing, self._delay_s)
                elif self._busy_since is not None:
                    self._wake.wait_for(lambda: self._closing, _BUSY_PAUSE_S)
                elif self._pinned is not None:
                    self._wake.wait_for(lambda: self._closing or self._queue, _LAST_RETRY_S)
                else:
                    self._gather()
            if not self._carry_out():
                return

    def _is_called(self) -> bool:
        if self._led:
            return False
        due = self._failing or self._tending or self._pinned is not None
        return due or self._stopped is not None or self._due()

    def _carry_out(self) -> bool:
        """Commit, for one who has taken the lead, and leave it; False if that was the last."""
        shared, refused = self.shared, None
        if shared is not None and not shared.alone(LONGEST_WAIT_S):
            shared, refused = None, sqlite3.OperationalError(_HELD)
        try:
            return self._write(self._take(), refused)
        finally:
            if shared is not None:
                shared.released()
            with self._wake:
                self._led = False
                if self._is_called():
                    # What came meanwhile waits for somebody.
                    self._wake.notify()

    def _gather(self) -> None:
        """Wait for the entries that are expected, as long as some come."""
        before, until = 0, time.monotonic() + LONGEST_S
        self._gathers = True
        while before < len(self._queue) < self._gathering.expected and not self._closing:
            if time.monotonic() > until:
                break
            before = len(self._queue)
            self._wake.wait(QUIET_S)
        self._gathers = False

    def _take(self) -> _Round:
        """Begin a round with all that waits."""
        with self._wake:
            self._gathering.taken(len(self._queue))
            batch, self._queue = self._retry + self._queue, []
            noted = Acknowledged()
            if self._closing or self._acknowledged.is_due() or not _is_alone(batch):
                noted, self._acknowledged = self._acknowledged, noted
            return _Round(batch, noted, self._closing)

    def _write(self, taken: _Round, refused: sqlite3.Error | None = None) -> bool:
        """Commit a round and tell who waits for it; False if it was the last.

        ``refused``: why it cannot be committed now.
        """
        batch, noted, closing = taken
        failing = self._failing
        if not (batch or noted or failing or closing):
            # Woken for the WAL alone.
            self._tend()
            return self._stopped is None
        began = 0.0 if self._on_commit is None else time.perf_counter()
        error = refused or self._commit(batch, noted, probe=failing)
        waits = error is not None and not (failing or closing) and _is_busy(error)
        if waits and self._wait_on(batch, noted):
            return True
        if self._on_commit is not None and refused is None:
            written = sum(len(entry.rows) for entry in batch)
            self._on_commit(written, time.perf_counter() - began, error)
        if isinstance(error, sqlite3.IntegrityError):
            batch, error = self._commit_one_by_one(batch, noted)
        if error is None:
            if failing:
                _log.info("store_recovered")
                self._on_health(self._pinned)
            if failing or self._busy_since is not None:
                self._failing, self._retry, self._delay_s = False, [], _FIRST_RETRY_S
                self._busy_since = None
            self._told(batch)
            for then in noted.after:
                then()
            if self._guard.wal_bytes >= self._tend_at:
                self._tend()
        else:
            if not failing:
                _log.error("store_commit_failed", error=str(error))
            self._failing = True
            self._on_health(error)
            for entry in batch:
                if not entry.pending.done:
                    entry.pending.fail(entry.failure(error))
            self._retry = [entry for entry in batch if entry.patient]
            self._put_back(noted)
            self._delay_s = min(2 * self._delay_s, _LAST_RETRY_S)
        return not closing and self._stopped is None

    def _wait_on(self, batch: list[Entry], noted: Acknowledged) -> bool:
        """Try again soon, for as long as somebody's transaction may last; else False."""
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since >= BUSY_S:
            self._busy_since = None
            return False
        with self._wake:
            # Back into the queue, where callers may give their entries up.
            self._queue[:0] = batch[len(self._retry) :]
        self._put_back(noted)
        return True

    def _tend(self) -> None:
        """Empty a long WAL; refuse new calls while it is too long and a reader is in the way."""
        self._tending = False
        guard = self._guard
        emptied = False
        with contextlib.suppress(sqlite3.OperationalError):
            emptied = not self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        try:
            guard.check()
        except Replaced as error:
            self.stop_for(error)
            return
        if emptied:
            self._tend_at = LONG_WAL_BYTES
            if self._pinned is not None:
                self._pinned = None
                _log.info("wal_emptied")
                self._on_health(None)
            return
        if self._tend_at == LONG_WAL_BYTES:
            _log.warning("wal_not_emptied", bytes=guard.wal_bytes)
        self._tend_at = guard.wal_bytes + _WAL_STEP_BYTES
        if self._pinned is None and guard.wal_bytes > guard.wal_limit():
            self._pinned = sqlite3.OperationalError(
                f"its -wal has {guard.wal_bytes} bytes, and a connection that reads keeps it from "
                "being emptied: end that transaction"
            )
            _log.error("wal_too_long", bytes=guard.wal_bytes)
            self._on_health(self._pinned)

    def _commit_one_by_one(
        self, batch: list[Entry], noted: Acknowledged
    ) -> tuple[list[Entry], Exception | None]:
        """Commit a batch that broke a constraint without the entry that did.

        That is a defect of ours, which must not take the others' calls with it.
        Returns the entries that are left to be told, and their error.
        """
        for at, entry in enumerate(batch):
            error = self._commit([entry], Acknowledged(), probe=False)
            if isinstance(error, sqlite3.IntegrityError):
                _log.critical("entry_refused", row=entry.rows[0][:2], error=str(error))
                if not entry.pending.done:
                    entry.pending.fail(entry.failure(error))
            elif error is not None:
                return batch[at:], error
            else:
                self._told([entry])
        return [], self._commit([], noted, probe=False)

    @staticmethod
    def _told(written: list[Entry]) -> None:
        for entry in written:
            try:
                if entry.durable is not None:
                    entry.durable()
            except Exception as error:  # noqa: BLE001 - logged; the others' calls have to end
                _log.critical("entry_not_settled", row=entry.rows[0][:2], error=repr(error))
                if not entry.pending.done:
                    entry.pending.fail(entry.failure(error))
            if not entry.pending.done:
                entry.pending.succeed()

    def _put_back(self, noted: Acknowledged) -> None:
        with self._wake:
            later = self._acknowledged
            later.clients = {**noted.clients, **later.clients}
            later.calls = noted.calls + later.calls
            later.dropped = noted.dropped + later.dropped
            later.after = noted.after + later.after
            later.registering = noted.registering or later.registering
            later.unknown = noted.unknown + later.unknown
            later.lived_s = noted.lived_s if later.lived_s is None else later.lived_s

    def _commit(self, batch: list[Entry], noted: Acknowledged, *, probe: bool) -> Exception | None:
        if self._stopped is not None:
            return self._stopped
        connection = self._connection
        rows: dict[Statement, list[tuple[Any, ...]]] = {}
        number = self._guard.number()
        now = (int(time.time()), number)
        for entry in batch:
            dated = entry.rows
            if entry.statement not in (Entry.DELETE, Entry.NAMESPACE):
                dated = [row + now for row in entry.rows]  # type: ignore[assignment]
            rows.setdefault(entry.statement, []).extend(dated)
        try:
            if not noted and not probe and _is_alone(batch):
                ((statement, some),) = rows.items()
                if ALONE[statement].write_once(connection, some, self._guard.opening) < len(some):
                    # Some records stood already, or nothing was written at all.
                    self._check_owner()
                    self._guard.check()
                else:
                    self._guard.committed(number)
                return None
            connection.execute("BEGIN IMMEDIATE")
            self._check_owner()
            for statement in (Entry.INTENT, Entry.RECORD, Entry.DELETE, Entry.NAMESPACE):
                if statement in rows:
                    statement.write(connection, rows[statement])
            if noted:
                self._write_acknowledged(noted)
            if probe or Entry.OVERWRITE in rows:
                connection.execute(PROBE)
            connection.execute(RAISE_COMMITS, (number,))
            connection.execute("COMMIT")
            self._guard.committed(number)
        except sqlite3.Error as error:
            if _is_fatal(error):
                self._stop(error)
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error as rollback_error:
                    _log.warning("store_rollback_failed", error=str(rollback_error))
            return error
        return None

    def _stop(self, error: Exception) -> None:
        with self._wake:
            self._stopped = error
            stranded, self._queue = self._queue, []
            self._wake.notify()
        _log.critical("store_stopped", error=str(error))
        for entry in stranded:
            entry.pending.fail(entry.failure(error))

    def _check_owner(self) -> None:
        if self._connection.execute(OWNER).fetchone() != (self._guard.opening,):
            raise _Superseded("another incarnation of the server owns the store")

    def _write_acknowledged(self, noted: Acknowledged) -> None:
        connection = self._connection
        # A deletion and the acknowledgement that allows it are one transaction:
        # else a late duplicate looks new after a restart (DESIGN §4).
        Entry.DELETE.write(connection, noted.calls)
        now = int(time.time())
        clients = [(client_id, *row, now) for client_id, row in noted.clients.items()]
        CLIENT.write(connection, clients)
        connection.executemany(DROP_CALLS, noted.dropped)
        connection.executemany(DROP_CLIENT, noted.dropped)
        if noted.unknown:
            connection.executemany(REMEMBER_UNKNOWN, noted.unknown)
            connection.execute(FORGET_UNKNOWN, (VERDICTS_KEPT_S, NOTES_KEPT))
        if noted.lived_s is not None:
            connection.execute(LIVED, (noted.lived_s,))


def _is_alone(batch: list[Entry]) -> bool:
    """Whether a batch can be written in one step that is its own transaction."""
    if len(batch) == 1:
        return batch[0].alone
    if not batch or batch[0].statement not in ALONE:
        return False
    kind = batch[0].statement
    count = 0
    for entry in batch:
        if entry.statement is not kind:
            return False
        count += len(entry.rows)
    return count <= MOST_AT_ONCE


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _is_fatal(error: sqlite3.Error) -> bool:
    """Whether nobody can know what is on the disk now, or it is another's."""
    if isinstance(error, (_Superseded, Replaced)):
        return True
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "FSYNC" in name
