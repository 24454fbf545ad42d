"""The lead of a journal: whoever has it commits, or has the file for another connection."""

from __future__ import annotations

import collections
import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rifl._stores.pending import Pending
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal_queue import JournalQueue
from rifl.core._shared.errors import StoreUnavailable

if TYPE_CHECKING:
    from rifl._stores.sqlite.shared_transactions import SharedTransactions

HELD = "a handler has kept its turn in the shared transaction for too long"


class JournalLead(JournalQueue):
    """The part of ``Journal`` that goes from one who writes to the file to the next."""

    def __init__(self, connection: sqlite3.Connection, guard: Guard) -> None:
        super().__init__(connection, guard)
        # Where handlers write to the file too, in turn with us; set once, if at all.
        self.shared: SharedTransactions | None = None
        # Who waits to write by another connection.
        self._guests: collections.deque[Pending] = collections.deque()

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
        with self._wake:
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
            with self._wake:
                if waiter.done:
                    return
                self._guests.remove(waiter)
        except BaseException:
            self._give_up_lead(waiter)
            raise
        raise StoreUnavailable(f"the turn to write did not come in {limit_s:.3g} s")

    def _give_up_lead(self, waiter: Pending) -> None:
        """Wait no longer, for a signal's exception came; it may have the lead by now."""
        with self._wake:
            if not waiter.done:
                self._guests.remove(waiter)
                return
        self._leave_lead()

    def _is_called(self) -> bool:
        """Whether there is something to be committed, and nobody does so."""
        raise NotImplementedError

    def _leave_lead(self) -> None:
        with self._wake:
            if self._guests:
                self._guests.popleft().succeed()
                return
            self._led = False
            if self._is_called():
                # What came meanwhile waits for somebody.
                self._wake.notify()
