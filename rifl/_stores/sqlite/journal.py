"""The journal: group commit of what calls make durable, one fsync for many (DESIGN §6).

It is another one than that of logs (``sharedlog/_engines/group_commit.py``), which serves every
engine: there a caller blocks for its own commit, and one of those that wait writes for all. Here
entries come from event loops, too, and are told by callbacks; a record outlives its caller and is
written again after a full disk; and the file goes in turn to handlers' shared transactions.
"""

from __future__ import annotations

import collections
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from _rifl_ground.log import get_logger
from _rifl_ground.sqlite.failures import Stopped, is_busy
from _rifl_ground.sqlite.long_wal import LongWal
from rifl._stores.pending import Pending, waking_together
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal_entries import NOTHING, Acknowledged, JournalEntry
from rifl._stores.sqlite.journal_writer import JournalWriter, is_alone, is_fatal
from rifl._stores.sqlite.write_queue import LONGEST_S, LONGEST_WAIT_S, QUIET_S, ExpectedCommit
from rifl.core._shared.errors import StoreUnavailable

if TYPE_CHECKING:
    from rifl._stores.sqlite.shared_transactions import SharedTransactions

_log = get_logger("rifl.store")
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_WRITING = "another connection holds the file's lock for writing"
HELD = "a handler has kept its turn in the shared transaction for too long"
# Another connection holds the file's lock: that is looked at so often, and is a failed commit
# only after this. Callers give up at their deadlines.
_BUSY_PAUSE_S = 0.01
BUSY_S = 30.0


# What one commit is to make durable: the batch, and what is noted; whether that can be one step
# that is its own transaction; and whether the journal closes with it.
_Round = tuple[list[JournalEntry], Acknowledged, bool, bool]


class Journal:
    """Writes entries to one database, all that wait in one transaction.

    Entries of a batch are written intents and records first, then deletions and
    client rows, then removals of whole clients; that order is safe because no
    identity has an intent and its record in one batch.

    A commit that fails before its fsync is retried for patient entries; a failed
    fsync stops the journal for good, since it is unknown what is on the disk, and
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
        self._writer = JournalWriter(connection, guard, self._stop)
        self._queue: list[JournalEntry] = []
        self._acknowledged = Acknowledged()
        # ``_wake``'s, which costs less to take by itself.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        # Whether there is a committer.
        self._led = False
        self._closing = False
        self._expected_commit = ExpectedCommit()
        self._gathers = False
        # Where handlers write to the file too, in turn with us; set once, if at all.
        self.shared: SharedTransactions | None = None
        # Who waits to write by another connection.
        self._guests: collections.deque[Pending] = collections.deque()
        self._connection = connection
        self._guard = guard
        self._wal = LongWal(connection, guard)
        self._on_health = on_health
        self._on_commit = on_commit
        self._retry: list[JournalEntry] = []
        self._failing = False
        # Since when another connection's transaction is in the way.
        self._busy_since: float | None = None
        self._tending = False
        self._delay_s = _FIRST_RETRY_S
        self._thread = threading.Thread(target=self._run, name=f"rifl-journal-{name}", daemon=True)
        self._begin()

    def _begin(self) -> None:
        """Have rounds driven, by a thread of its own."""
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Make durable what is queued, if that works in time, and stop."""
        with self._lock:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._connection.close()

    def lead(self) -> None:
        """Commit what is queued, in the calling thread, which waits, if no thread commits."""
        with self._lock:
            if self._failing or self._wal.pinned or self._busy_since is not None:
                self._wake.notify()
                return
            if self._led or not self._queue:
                # The thread that has the lead looks for more before it leaves it.
                return
            self._led = True
        self._carry_out()

    # -- the queue: what waits to be durable, and is noted along with it -------------------

    def submit(self, entry: JournalEntry, *, awaited: bool = False) -> JournalEntry:
        """Queue an entry, and return it; it is done when it is durable.

        ``awaited``: the caller waits for that, in whichever way, and does so at once:
        until then it may be that no thread commits.
        """
        with self._lock:
            if self._writer.stopped is None and not self._closing:
                self._queue.append(entry)
                entry.home = self
                if awaited and not self._led and self._expected_commit.expected == 1:
                    # Told when a caller waits, and in which way.
                    entry.journal = self
                elif not self._gathers or len(self._queue) >= self._expected_commit.expected:
                    self._wake.notify()
                return entry
            stopped = self._writer.stopped
            error = (
                sqlite3.ProgrammingError("the store is closed")
                if stopped is None
                else sqlite3.OperationalError(f"it has stopped: {stopped}")
            )
        entry.fail(entry.failure(error))
        return entry

    def acknowledge(
        self, client_id: int, first_incomplete: int, completed: bytes, released: list[int]
    ) -> None:
        """Note acknowledgements, to be made durable with the next commit, or soon."""
        with self._lock:
            noted = self._acknowledged
            noted.acknowledge(client_id, first_incomplete, completed, released)
            if noted.urgent:
                self._wake.notify()

    def flush(self) -> None:
        """Have the rows of calls that were acknowledged by now deleted, though nothing commits."""
        with self._lock:
            if self._acknowledged.calls:
                self._acknowledged.due = self._acknowledged.urgent = True
                self._wake.notify()

    def register(
        self, client_id: int, first_incomplete: int, completed: bytes, holder: bytes = b""
    ) -> None:
        """Have a client's row in the next commit, with the first of its calls.

        ``holder``: whom its lease counts for.
        """
        with self._lock:
            self._acknowledged.register(client_id, first_incomplete, completed, holder)

    def remember(self, client_id: int, identity: int | bytes, method: str) -> None:
        """Have a call whose outcome is not known remembered, with the next commit."""
        with self._lock:
            row = (client_id, identity, method, int(time.time()), None)
            self._acknowledged.remember(row)

    def live(self, lived_s: int) -> None:
        """Have it noted how long the store has lived, soon."""
        with self._lock:
            self._acknowledged.live(lived_s)
            self._wake.notify()

    def drop(self, client_ids: list[int], after: Callable[[], None] | None = None) -> None:
        """Remove clients with all their rows, in one transaction, soon.

        ``after`` is called in the committer's thread once that is durable.
        """
        with self._lock:
            self._acknowledged.drop(client_ids, after)
            self._wake.notify()

    @property
    def stopped(self) -> Exception | None:
        """Why nothing is written to the file any more, None if it is."""
        return self._writer.stopped

    def give_up(self, entry: JournalEntry) -> None:
        """Wait no longer for an entry that waits for another connection's transaction.

        Its call is not begun, or its record is written later. One that is just being committed
        is given up if that fails for the other's transaction, and it would wait again.
        """
        with self._lock:
            entry.given_up = True
            if entry in self._queue:
                self._let_go(entry)

    def _let_go(self, entry: JournalEntry) -> None:
        """Fail an entry whose caller gave up; under the lock, so that no batch takes it."""
        if not entry.done:
            if not entry.patient:
                self._queue.remove(entry)
            entry.fail(entry.failure(sqlite3.OperationalError(_WRITING)))

    def call(self) -> None:
        """Have the journal's own thread see to what is queued."""
        with self._lock:
            self._wake.notify()

    def _due(self) -> bool:
        return bool(self._queue or self._closing or self._acknowledged.urgent)

    def _put_back(self, noted: Acknowledged) -> None:
        with self._lock:
            self._acknowledged.put_before(noted)

    def _stop(self, error: Exception) -> None:
        with self._lock:
            self._writer.stopped = error
            stranded, self._queue = self._queue, []
            self._wake.notify()
        _log.critical("store_stopped", error=str(error))
        for entry in stranded:
            entry.fail(entry.failure(error))

    # -- the lead: its thread commits, or has the file for another connection --------------

    @contextlib.contextmanager
    def turn(self, limit_s: float) -> Iterator[None]:
        """Have the file for a transaction on another connection, in turn with all commits.

        SQLite knows no turns: who waits for its lock may find it taken for as long as others
        commit one transaction after the other. Raises ``StoreUnavailable`` where the turn does
        not come in time.
        """
        until_s = time.monotonic() + limit_s
        self._take_lead(limit_s)
        shared = self.shared
        try:
            if shared is not None and not shared.alone(max(0.0, until_s - time.monotonic())):
                raise StoreUnavailable(HELD)
            try:
                yield
            finally:
                if shared is not None:
                    shared.released()
        finally:
            self._leave_lead()

    def _take_lead(self, limit_s: float) -> None:
        waiter = Pending()
        with self._lock:
            if self._closing:
                raise StoreUnavailable("the store is closed")
            if not self._led and (self._writer.stopped is not None or not self._due()):
                self._led = True
                return
            # Behind what waits already.
            self._guests.append(waiter)
            self._wake.notify()
        try:
            if waiter.wait_for(limit_s):
                return
            with self._lock:
                if waiter.done:
                    return
                self._guests.remove(waiter)
        except BaseException:
            self._give_up_lead(waiter)
            raise
        raise StoreUnavailable(f"the turn to write did not come in {limit_s:.3g} s")

    def _give_up_lead(self, waiter: Pending) -> None:
        """Wait no longer, for a signal's exception came; it may have the lead by now."""
        with self._lock:
            if not waiter.done:
                self._guests.remove(waiter)
                return
        self._leave_lead()

    def _leave_lead(self) -> None:
        with self._lock:
            if self._guests:
                self._guests.popleft().succeed()
                return
            self._led = False
            if self._is_called():
                # What came meanwhile waits for a thread.
                self._wake.notify()

    # -- the rounds ------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether it is closed, and has written all it was given."""
        return self._closing and not (
            self._failing or self._writer.stopped or self._thread.is_alive()
        )

    def stop_for(self, error: Exception) -> bool:
        """Stop for good if a commit of another connection's failed so; whether it did.

        Then it is unknown whether that is on the disk, or the file is another's.
        """
        if not isinstance(error, sqlite3.Error) or not is_fatal(error):
            return False
        self._guard.met(error)
        self._stop(error)
        self._on_health(error)
        return True

    def tend(self) -> None:
        """Have a long WAL looked at, soon: also where only other connections write."""
        if self._guard.wal_bytes >= self._wal.tend_at:
            with self._lock:
                self._tending = True
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._wake.wait_for(lambda: not self._led and self._is_called())
                if self._writer.stopped is not None:
                    return
                self._led = True
                if self._failing:
                    self._wake.wait_for(lambda: self._closing, self._delay_s)
                elif self._busy_since is not None:
                    self._wake.wait_for(lambda: self._closing, _BUSY_PAUSE_S)
                elif self._wal.pinned is not None:
                    self._wake.wait_for(lambda: self._closing or self._queue, _LAST_RETRY_S)
                else:
                    self._gather()
            if not self._carry_out():
                return

    def _is_called(self) -> bool:
        """Whether there is anything to do, for who has the lead."""
        return (
            self._due()
            or self._failing
            or self._tending
            or self._wal.pinned is not None
            or self._writer.stopped is not None
        )

    def _carry_out(self) -> bool:
        """Commit, for one who has taken the lead, and leave it; False if that was the last."""
        shared, refused = self.shared, None
        if shared is not None and not shared.alone(LONGEST_WAIT_S):
            shared, refused = None, sqlite3.OperationalError(HELD)
        try:
            return self._write(self._take(), refused)
        finally:
            if shared is not None:
                shared.released()
            self._leave_lead()

    def _gather(self) -> None:
        """Wait for the entries that are expected, as long as some come."""
        before, until = 0, time.monotonic() + LONGEST_S
        self._gathers = True
        while before < len(self._queue) < self._expected_commit.expected and not self._closing:
            if time.monotonic() > until:
                break
            before = len(self._queue)
            self._wake.wait(QUIET_S)
        self._gathers = False

    def _take(self) -> _Round:
        """Begin a round with all that waits."""
        with self._lock:
            batch, self._queue = self._queue, []
            self._expected_commit.taken(len(batch))
            if self._retry:
                batch = self._retry + batch
            noted, closing = self._acknowledged, self._closing
            if is_alone(batch) and not (noted.due or closing):
                return batch, NOTHING, True, closing
            self._acknowledged = Acknowledged()
            return batch, noted, False, closing

    def _write(self, taken: _Round, refused: sqlite3.Error | None = None) -> bool:
        """Commit a round and tell who waits for it; False if it was the last.

        ``refused``: why it cannot be committed now.
        """
        batch, noted, alone, closing = taken
        failing = self._failing
        if not (batch or noted or failing or closing):
            # Woken for the WAL alone.
            self._tend()
            return self._writer.stopped is None
        began = 0.0 if self._on_commit is None else time.perf_counter()
        error = refused or self._writer.commit(batch, noted, alone=alone, probe=failing)
        busy = error is not None and not (failing or closing) and is_busy(error)
        if busy and self._wait_on(batch, noted):
            return True
        if self._on_commit is not None and refused is None:
            written = sum(len(entry.rows) for entry in batch)
            self._on_commit(written, time.perf_counter() - began, error)
        if error is not None and isinstance(error, sqlite3.IntegrityError):
            batch, error = self._commit_one_by_one(batch, noted)
        if error is not None:
            self._not_written(batch, noted, error)
        else:
            if failing or self._busy_since is not None:
                self._works_again()
            with waking_together():
                self._told(batch)
            for then in noted.after:
                then()
            if self._guard.wal_bytes >= self._wal.tend_at:
                self._tend()
        return not closing and self._writer.stopped is None

    def _not_written(
        self, batch: list[JournalEntry], noted: Acknowledged, error: Exception
    ) -> None:
        """Tell who waits, and keep what must be written all the same."""
        if not self._failing:
            _log.error("store_commit_failed", error=str(error))
        self._failing = True
        self._on_health(error)
        for entry in batch:
            if not entry.done:
                entry.fail(entry.failure(error))
        self._retry = [entry for entry in batch if entry.patient]
        self._put_back(noted)
        self._delay_s = min(2 * self._delay_s, _LAST_RETRY_S)

    def _works_again(self) -> None:
        """Note a commit after others that failed, or that others' transactions held up."""
        if self._failing:
            _log.info("store_recovered")
            self._on_health(self._wal.pinned)
        self._failing, self._retry, self._delay_s = False, [], _FIRST_RETRY_S
        self._busy_since = None

    def _wait_on(self, batch: list[JournalEntry], noted: Acknowledged) -> bool:
        """Try again soon, for as long as another transaction may last; else False."""
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since >= BUSY_S:
            self._busy_since = None
            return False
        with self._lock:
            # Back into the queue, where callers may give their entries up.
            again = batch[len(self._retry) :]
            self._queue[:0] = again
            for entry in again:
                # At its deadline it was in our hands, not in the queue.
                if entry.given_up:
                    self._let_go(entry)
        self._put_back(noted)
        return True

    def _tend(self) -> None:
        """Empty a long WAL; refuse new calls while it is too long and a reader is in the way."""
        self._tending = False
        try:
            changed = self._wal.tend()
        except Stopped as error:
            self.stop_for(error)
            return
        if changed:
            self._on_health(self._wal.pinned)

    def _commit_one_by_one(
        self, batch: list[JournalEntry], noted: Acknowledged
    ) -> tuple[list[JournalEntry], Exception | None]:
        """Commit a batch that broke a constraint without the entry that did.

        That is a defect of rifl's, which must not fail the others' calls.
        Returns the entries that are left to be told, and their error.
        """
        for at, entry in enumerate(batch):
            error = self._writer.commit([entry], NOTHING, alone=is_alone([entry]))
            if isinstance(error, sqlite3.IntegrityError):
                _log.critical("entry_refused", row=entry.rows[0][:2], error=str(error))
                if not entry.done:
                    entry.fail(entry.failure(error))
            elif error is not None:
                return batch[at:], error
            else:
                self._told([entry])
        return [], self._writer.commit([], noted)

    @staticmethod
    def _told(written: list[JournalEntry]) -> None:
        for entry in written:
            try:
                if entry.durable is not None:
                    entry.durable(entry)
            except Exception as error:  # noqa: BLE001 - logged; the others' calls have to end
                _log.critical("entry_not_settled", row=entry.rows[0][:2], error=repr(error))
                if not entry.done:
                    entry.fail(entry.failure(error))
            if not entry.done:
                entry.succeed()
