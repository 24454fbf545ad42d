"""Group commit: appends of threads that meet share one transaction, and one sync."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import LogUnavailable
from sharedlog._core.steps import Lsns

# What one transaction holds at most, of commits that met.
_MOST = 1000
_MOST_BYTES = 16 << 20
# How long one waits for those to come back that were just answered, as a part of what writing
# took; and how many transactions nobody waits after it was in vain.
_PATIENCE = 0.5
_LONGEST_S = 0.005
_VAIN = 20


class Pending:
    """One caller's commit on its way; whoever writes it says what became of it."""

    __slots__ = ("_error", "_lsns", "_told", "bytes", "commit", "leads", "waits")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.bytes = sum(len(each.body) for each in commit.entries)
        self.waits = False
        # It has the lead, and has to give it on.
        self.leads = False
        self._lsns: Lsns | None = None
        self._error: Exception | None = None
        self._told = threading.Lock()
        self._told.acquire()

    def done(self, found: Lsns | Refused) -> None:
        """Note what the engine found, once that is durable."""
        if isinstance(found, Refused):
            self._error = found
        else:
            self._lsns = found

    def failed(self, error: Exception) -> None:
        """Note why it is not known to have happened."""
        self._error = error

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until it was written, is to lead, or others came; whether that was in time."""
        return self._told.acquire(timeout=timeout_s)

    def wake(self) -> None:
        """End the wait; again changes nothing, but that who gathers does so no longer."""
        if self._told.locked():
            self._told.release()

    def result(self) -> Lsns:
        """Return or raise what was noted."""
        if self._error is not None:
            raise self._error
        if self._lsns is None:
            raise LogUnavailable("nobody wrote this one")
        return self._lsns


class Together:
    """Has one thread write for all that wait, and then the next. Any thread.

    ``write`` is called by one thread at a time, and says of each what became of it: by
    ``done``, or by raising, which is then everybody's. While one transaction is synced, the next
    ones gather; who leads those waits, for a part of what a sync takes, for the ones that were
    just answered, which mostly come again. One that is alone waits for nobody.

    A signal's exception may come between any two steps of the thread that it meets. What that
    leaves half done ``_leave`` does again: each of its steps may be taken twice.
    """

    def __init__(self, write: Callable[[Sequence[Pending]], None]) -> None:
        self._write = write
        self._gate = threading.Lock()
        self._waiting: list[Pending] = []
        self._leader: Pending | None = None
        # Whose commits travel with the leader's: they are woken when it leaves.
        self._riding: list[Pending] = []
        # Of the last transaction: how many it was for, and how long it took.
        self._last = 0
        self._last_s = 0.0
        # Who waits until that many wait.
        self._gathering: tuple[Pending, int] | None = None
        self._vain = 0

    def commit(self, commit: Commit) -> Lsns:
        """Have it written; blocks. Raises ``Refused``, ``LogError``."""
        mine = Pending(commit)
        try:
            try:
                if self._turn(mine):
                    self._lead(mine)
            finally:
                self._leave(mine)
        except BaseException:
            self._leave(mine)
            raise
        return mine.result()

    def _turn(self, mine: Pending) -> bool:
        """Wait for the lead (True), or until somebody who leads has written it."""
        with self._gate:
            if self._leader is None:
                mine.leads = True
                self._leader = mine
                return True
            mine.waits = True
            self._waiting.append(mine)
            gathering = self._gathering
            if gathering is not None and len(self._waiting) >= gathering[1]:
                self._gathering = None
                gathering[0].wake()
        mine.wait()
        mine.waits = False
        if mine.leads:
            self._gather(mine)
        return mine.leads

    def _lead(self, mine: Pending) -> None:
        together = self._gathered(mine)
        began = time.monotonic()
        try:
            self._write(together)
            self._last, self._last_s = len(together), time.monotonic() - began
        except Exception as error:  # noqa: BLE001 - everybody's
            for each in together:
                each.failed(error)
        except BaseException:
            # A signal's, in this thread: it is not the others' to raise.
            for each in together:
                each.failed(LogUnavailable("the thread that wrote for this one was interrupted"))
            raise

    def _gather(self, mine: Pending) -> None:
        with self._gate:
            if self._vain:
                self._vain -= 1
                return
            self._gathering = (mine, len(self._waiting) + self._last)
        if not mine.wait(min(_PATIENCE * self._last_s, _LONGEST_S)):
            with self._gate:
                if self._gathering is not None:
                    self._gathering = None
                    self._vain = _VAIN

    def _gathered(self, mine: Pending) -> list[Pending]:
        with self._gate:
            count, size = 0, mine.bytes
            for each in self._waiting[: _MOST - 1]:
                size += each.bytes
                if size > _MOST_BYTES:
                    break
                count += 1
            self._riding = self._waiting[:count]
            together = [mine, *self._riding]
            del self._waiting[:count]
        return together

    def _leave(self, mine: Pending) -> None:
        """Wait for nothing any more; who leads wakes those it wrote for, and gives the lead on."""
        if not mine.leads and not mine.waits:
            return
        with self._gate:
            waiting = self._waiting
            if mine.waits:
                mine.waits = False
                if mine in waiting:
                    waiting.remove(mine)
            if self._leader is mine:
                if self._gathering is not None and self._gathering[0] is mine:
                    self._gathering = None
                for each in self._riding:
                    # Those who still wait were not taken along.
                    if each not in waiting:
                        each.wake()
                self._riding = []
                self._leader = waiting[0] if waiting else None
            leader = self._leader
            if leader is not None:
                if waiting and waiting[0] is leader:
                    waiting.pop(0)
                leader.leads = True
                leader.wake()
            mine.leads = False
