"""The journal: group commit of what calls make durable, one fsync for many (DESIGN §6).

It is another one than that of logs (``sharedlog/_engines/group_commit.py``), which serves every
engine: there a caller blocks for its own commit, and one of those that wait writes for all. Here
entries come from event loops, too, and are told by callbacks; a record outlives its caller and is
written again after a full disk; and the file goes in turn to handlers' shared transactions.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from _rifl_ground.log import get_logger
from _rifl_ground.sqlite.failures import Stopped, is_busy
from _rifl_ground.sqlite.long_wal import LongWal
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal_entries import NOTHING, Acknowledged, Entry
from rifl._stores.sqlite.journal_lead import HELD, JournalLead
from rifl._stores.sqlite.journal_writer import is_alone, is_fatal
from rifl._stores.sqlite.write_queue import LONGEST_S, LONGEST_WAIT_S, QUIET_S

_log = get_logger("rifl.store")
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
# Another connection holds the file's lock: that is looked at so often, and is a failed commit
# only after this. Callers give up at their deadlines.
_BUSY_PAUSE_S = 0.01
BUSY_S = 30.0


class _Round(NamedTuple):
    """What one commit is to make durable, and whether the journal closes with it.

    ``alone``: that can be one step that is its own transaction.
    """

    batch: list[Entry]
    noted: Acknowledged
    alone: bool
    closing: bool


class Journal(JournalLead):
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
        super().__init__(connection, guard)
        self._connection = connection
        self._guard = guard
        self._wal = LongWal(connection, guard)
        self._on_health = on_health
        self._on_commit = on_commit
        self._retry: list[Entry] = []
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
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._connection.close()

    def lead(self) -> None:
        """Commit what is queued, in the thread of one who blocks for it, if nobody does."""
        with self._wake:
            if self._failing or self._wal.pinned or self._busy_since is not None:
                self._wake.notify()
                return
            if self._led or not self._queue:
                # Whoever has the lead looks for more before leaving it.
                return
            self._led = True
        self._carry_out()

    @property
    def ended(self) -> bool:
        """Whether it is closed, and has written all it was given."""
        return self._closing and not (
            self._failing or self._writer.stopped or self._thread.is_alive()
        )

    def stop_for(self, error: Exception) -> bool:
        """Stop for good if a commit of another connection's failed so; whether it did.

        Then nobody can know whether that is on the disk, or the file is another's.
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
            with self._wake:
                self._tending = True
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
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
        return bool(
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
        with self._wake:
            batch, self._queue = self._queue, []
            self._expected_commit.taken(len(batch))
            if self._retry:
                batch = self._retry + batch
            noted, closing = self._acknowledged, self._closing
            if is_alone(batch) and not (noted.due or closing):
                return _Round(batch, NOTHING, True, closing)
            self._acknowledged = Acknowledged()
            return _Round(batch, noted, False, closing)

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
            self._told(batch)
            for then in noted.after:
                then()
            if self._guard.wal_bytes >= self._wal.tend_at:
                self._tend()
        return not closing and self._writer.stopped is None

    def _not_written(self, batch: list[Entry], noted: Acknowledged, error: Exception) -> None:
        """Tell who waits, and keep what has to be written all the same."""
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
        self, batch: list[Entry], noted: Acknowledged
    ) -> tuple[list[Entry], Exception | None]:
        """Commit a batch that broke a constraint without the entry that did.

        That is a defect of ours, which must not take the others' calls with it.
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
    def _told(written: list[Entry]) -> None:
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
