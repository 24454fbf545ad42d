"""The lead that threads pass on: one of them does the work of all that wait, then the next."""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock, get_ident
from collections.abc import Callable
from typing import Generic, TypeVar

from _rifl_ground.owned_lock import LONGEST_S, WITHIN, OwnedLock, too_long
from sharedlog._core.errors import LogUnavailable, ReentrantCall


class Candidate:
    """One thread's: it waits until somebody did its work, or for the lead."""

    __slots__ = ("_told", "leads", "thread", "waited", "waits")

    def __init__(self) -> None:
        # That it comes in.
        self.thread = 0
        self.waits = False
        # It came while another one led.
        self.waited = False
        # It has the lead, and has to give it on.
        self.leads = False
        self._told = told = allocate_lock()
        told.acquire()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until its work was done, it is to lead, or others came; whether that was in time."""
        return self._told.acquire(True, timeout_s)

    def wake(self) -> None:
        """End the wait; again changes nothing, but that who gathers does so no longer."""
        if self._told.locked():
            self._told.release()


T = TypeVar("T", bound=Candidate)


class Lead(Generic[T]):
    """Goes from thread to thread in the order in which they came. Any thread.

    A signal's exception may come between any two steps of the thread that it meets. What that
    leaves half done ``_leave`` does again: each of its steps may be taken twice.
    """

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        """Nobody leads. ``longest_s``: how long a thread waits, at most."""
        self._gate = OwnedLock(ReentrantCall)
        self._longest_s = min(longest_s, TIMEOUT_MAX)
        self._leader: T | None = None
        # Those that wait, in their order, by thread.
        self._waiting: dict[int, T] = {}
        # Those whose work is done with the leader's: they are woken when it leaves.
        self._riding: dict[int, T] = {}
        # Who waits until that many wait.
        self._gathering: tuple[T, int] | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def run(self, mine: T, act: Callable[[T], None]) -> None:
        """Have ``act`` called with it, once it leads; not if another one took it along.

        Raises ``ReentrantCall`` in a thread that is in the middle of this, by a signal's handler,
        say; ``LogUnavailable`` with ``appended`` False if neither the lead nor a thread that takes
        it along comes within ``longest_s``. It returns after that time, too, if a thread has taken
        it along and is not done.
        """
        try:
            try:
                if self._turn(mine):
                    act(mine)
            finally:
                if mine.leads or mine.waits:
                    self._leave(mine)
        except BaseException:
            self._leave(mine)
            raise

    def take(self, fits: Callable[[T], bool]) -> list[T]:
        """Take those along that came first, as long as they fit; for the one that leads."""
        if not self._waiting:
            # Whoever comes now comes too late, as behind the gate.
            return []
        with self._gate:
            waiting = list(self._waiting.items())
            count = 0
            while count < len(waiting) and fits(waiting[count][1]):
                count += 1
            self._riding = riding = dict(waiting[:count])
            self._waiting = dict(waiting[count:])
            return list(riding.values())

    def gather(self, mine: T, more: int, timeout_s: float) -> bool:
        """Wait, leading, until that many more wait; whether that was in time."""
        with self._gate:
            self._gathering = (mine, len(self._waiting) + more)
        if mine.wait(timeout_s):
            return True
        with self._gate:
            vain = self._gathering is not None
            self._gathering = None
        return not vain

    def _turn(self, mine: T) -> bool:
        """Wait for the lead (True), or until one that leads has done what is wanted."""
        mine.thread = thread = get_ident()
        with self._gate:
            leader, waiting = self._leader, self._waiting
            if leader is None:
                mine.leads = True
                self._leader = mine
                return True
            if leader.thread == thread or thread in waiting or thread in self._riding:
                raise ReentrantCall(WITHIN)
            mine.waited = mine.waits = True
            waiting[thread] = mine
            gathering = self._gathering
            if gathering is not None and len(waiting) >= gathering[1]:
                self._gathering = None
                gathering[0].wake()
        if not mine.wait(self._longest_s):
            with self._gate:
                if self._waiting.get(thread) is mine:
                    late = LogUnavailable(too_long("appends", self._longest_s))
                    late.appended = False
                    raise late
        mine.waits = False
        return mine.leads

    def _leave(self, mine: T) -> None:
        """Wait for nothing any more; who leads wakes those it led, and gives the lead on."""
        if not mine.leads and not mine.waits:
            return
        with self._gate:
            waiting, riding = self._waiting, self._riding
            if mine.waits:
                for those in (waiting, riding):
                    if those.get(mine.thread) is mine:
                        del those[mine.thread]
                mine.waits = False
            if self._leader is mine:
                self._gathering = None
                for thread, each in riding.items():
                    # Those who still wait were not taken along.
                    if waiting.get(thread) is not each:
                        each.wake()
                self._riding = {}
                self._leader = next(iter(waiting.values()), None)
            leader = self._leader
            if leader is not None:
                if waiting.get(leader.thread) is leader:
                    del waiting[leader.thread]
                leader.leads = True
                leader.wake()
            mine.leads = False
