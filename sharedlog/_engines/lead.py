"""The lead that threads pass on: one of them does the work of all that wait, then the next."""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Generic, TypeVar

from _rifl_ground.owned_lock import LONGEST_S, WITHIN, OwnedLock, too_long
from sharedlog._core.errors import ReentrantCall


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
        return self._told.acquire(timeout=timeout_s)

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

    def __init__(self) -> None:
        """Nobody leads."""
        self._gate = OwnedLock(ReentrantCall)
        # Those whose threads wait, by thread.
        self._threads: dict[int, T] = {}
        self._waiting: list[T] = []
        self._leader: T | None = None
        # Whose work is done with the leader's: they are woken when it leaves.
        self._riding: list[T] = []
        # Who waits until that many wait.
        self._gathering: tuple[T, int] | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def run(self, mine: T, act: Callable[[T], None]) -> None:
        """Have ``act`` called with it, once it leads; not if another one took it along.

        Raises ``ReentrantCall`` in a thread that is in the middle of this, by a signal's handler,
        say, and where the one that leads does not end: it may wait for this thread.
        """
        try:
            try:
                if self._turn(mine):
                    act(mine)
            finally:
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
            waiting = self._waiting
            count = 0
            while count < len(waiting) and fits(waiting[count]):
                count += 1
            self._riding = riding = waiting[:count]
            del waiting[:count]
        return riding

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
        mine.thread = get_ident()
        with self._gate:
            if self._leader is None:
                mine.leads = True
                self._leader = mine
                return True
            if self._leader.thread == mine.thread or mine.thread in self._threads:
                raise ReentrantCall(WITHIN)
            mine.waited = mine.waits = True
            self._threads[mine.thread] = mine
            self._waiting.append(mine)
            gathering = self._gathering
            if gathering is not None and len(self._waiting) >= gathering[1]:
                self._gathering = None
                gathering[0].wake()
        leader = self._leader
        while not mine.wait(LONGEST_S):
            with self._gate:
                if self._leader is leader:
                    if mine in self._waiting:
                        raise ReentrantCall(too_long("appends"))
                    # The other one writes for this one, or has: what it notes nobody waits for.
                    return False
                leader = self._leader
        self._threads.pop(mine.thread, None)
        mine.waits = False
        return mine.leads

    def _leave(self, mine: T) -> None:
        """Wait for nothing any more; who leads wakes those it led, and gives the lead on."""
        if not mine.leads and not mine.waits:
            return
        with self._gate:
            waiting = self._waiting
            if mine.waits:
                self._threads.pop(mine.thread, None)
                mine.waits = False
                if mine in waiting:
                    waiting.remove(mine)
            if self._leader is mine:
                self._gathering = None
                riding = self._riding
                # Those who still wait were not taken along.
                if riding and not (waiting and waiting[0] is riding[0]):
                    for each in riding:
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
