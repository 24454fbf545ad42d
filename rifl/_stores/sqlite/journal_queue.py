"""The queue of a journal: what waits to be made durable, and what is noted along with it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable

from _rifl_ground.log import get_logger
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal_entries import Acknowledged, Entry
from rifl._stores.sqlite.journal_writer import JournalWriter
from rifl._stores.sqlite.write_queue import ExpectedCommit

_log = get_logger("rifl.store")
_WRITING = "another connection holds the file's lock for writing"


class JournalQueue:
    """The part of ``Journal`` that takes entries, and knows when they are due."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard) -> None:
        self._writer = JournalWriter(connection, guard, self._stop)
        self._queue: list[Entry] = []
        self._acknowledged = Acknowledged()
        self._wake = threading.Condition()
        # Whether there is a committer.
        self._led = False
        self._closing = False
        self._expected_commit = ExpectedCommit()
        self._gathers = False

    def lead(self) -> None:
        """Commit what is queued, in the thread of one who blocks for it, if nobody does."""
        raise NotImplementedError

    def submit(self, entry: Entry, *, awaited: bool = False) -> Entry:
        """Queue an entry, and return it; it is done when it is durable.

        ``awaited``: the caller waits for that, in whichever way, and does so at once:
        until then it may be that nobody commits.
        """
        with self._wake:
            if self._writer.stopped is None and not self._closing:
                self._queue.append(entry)
                entry.home = self
                if awaited and not self._led and self._expected_commit.expected == 1:
                    # Told when somebody waits, and in which way.
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
        with self._wake:
            noted = self._acknowledged
            noted.acknowledge(client_id, first_incomplete, completed, released)
            if noted.urgent:
                self._wake.notify()

    def register(self, client_id: int, first_incomplete: int, completed: bytes) -> None:
        """Have a client's row in the next commit, with the first of its calls."""
        with self._wake:
            self._acknowledged.register(client_id, first_incomplete, completed)

    def remember(self, client_id: int, identity: int | bytes, method: str) -> None:
        """Have a call whose outcome is not known remembered, with the next commit."""
        with self._wake:
            row = (client_id, identity, method, int(time.time()), None)
            self._acknowledged.remember(row)

    def live(self, lived_s: int) -> None:
        """Have it noted how long the store has lived, soon."""
        with self._wake:
            self._acknowledged.live(lived_s)
            self._wake.notify()

    def drop(self, client_ids: list[int], after: Callable[[], None] | None = None) -> None:
        """Remove clients with all their rows, in one transaction, soon.

        ``after`` is called in the committer's thread once that is durable.
        """
        with self._wake:
            self._acknowledged.drop(client_ids, after)
            self._wake.notify()

    @property
    def stopped(self) -> Exception | None:
        """Why nothing is written to the file any more, None if it is."""
        return self._writer.stopped

    def give_up(self, entry: Entry) -> None:
        """Wait no longer for an entry that waits for another connection's transaction.

        Its call is not begun, or its record is written later. One that is just being committed
        is let go where that fails for the other's transaction, and it would wait again.
        """
        with self._wake:
            entry.given_up = True
            if entry in self._queue:
                self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        """Tell who gave up an entry that waits; under the lock, so that nobody takes it."""
        if not entry.done:
            if not entry.patient:
                self._queue.remove(entry)
            entry.fail(entry.failure(sqlite3.OperationalError(_WRITING)))

    def call(self) -> None:
        """Have the journal's own thread see to what is queued."""
        with self._wake:
            self._wake.notify()

    def _due(self) -> bool:
        return bool(self._queue or self._closing or self._acknowledged.urgent)

    def _put_back(self, noted: Acknowledged) -> None:
        with self._wake:
            self._acknowledged.put_before(noted)

    def _stop(self, error: Exception) -> None:
        with self._wake:
            self._writer.stopped = error
            stranded, self._queue = self._queue, []
            self._wake.notify()
        _log.critical("store_stopped", error=str(error))
        for entry in stranded:
            entry.fail(entry.failure(error))
