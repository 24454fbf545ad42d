"""The lead that threads pass on: one of them does the work of all that wait, then the next."""

from __future__ import annotations

from _thread import TIMEOUT_MAX, allocate_lock, get_ident
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from _rifl_ground.owned_lock import LONGEST_S, WITHIN, OwnedLock, too_long
from sharedlog._core.errors import LogUnavailable, ReentrantUse


class Candidate:
    """One thread's: it waits until another thread did its work, or for the lead."""

    __slots__ = ("_told", "leads", "thread", "timed", "waited", "waits")

    # That it comes in; there once it waits or leads.
    thread: int
    # It waits with a timeout; there once it waits.
    timed: bool

    def __init__(self) -> None:
        # Until its work was done, or it leads.
        self.waits = False
        # It came while another one led.
        self.waited = False
        # It has the lead, and has to give it on.
        self.leads = False
        self._told = told = allocate_lock()
        told.acquire()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait until its work was done, it leads, or others came; return if that was in time."""
        return self._told.acquire(True, timeout_s)

    def wake(self) -> None:
        """End the wait; again changes nothing, but that who gathers does so no longer."""
        if self._told.locked():
            self._told.release()


T = TypeVar("T", bound=Candidate)
# So many of those that wait do so with a timeout: the next one to lead, and one it may take along.
# A timeout costs a seventh of the wait: the kernel sets a timer. The others rely on these.
_TIMED = 2


class Lead(Generic[T]):
    """Goes from thread to thread in the order in which they came. Any thread.

    A signal's exception may come between any two steps of the thread that it meets. What that
    leaves half done ``_leave`` does again: each of its steps may be taken twice.
    """

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        """No thread leads at first. ``longest_s``: how long a thread waits, at most."""
        self._gate = OwnedLock(ReentrantUse)
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

        Raises ``ReentrantUse`` in a thread that is in the middle of this, by a signal's handler,
        say; ``LogUnavailable`` with ``appended`` False if neither the lead nor a thread that takes
        it along comes within ``longest_s``, or twice that if others wait, too. It returns after
        that time, too, if a thread has taken it along and is not done.
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
            # A thread that comes now is too late, as if it came after the gate.
            return []
        with self._gate:
            waiting = self._waiting
            riding: dict[int, T] = {}
            for thread, each in waiting.items():
                if not fits(each):
                    break
                riding[thread] = each
            self._riding = riding
            self._waiting = dict(list(waiting.items())[len(riding) :])
            _time(riding)
            _time(self._waiting)
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
            leader = self._leader
            if leader is None:
                mine.leads = True
                self._leader = mine
                return True
            waiting = self._waiting
            mine.timed = len(waiting) < _TIMED
            mine.waited = mine.waits = True
            if (
                leader.thread == thread
                or thread in self._riding
                or waiting.setdefault(thread, mine) is not mine
            ):
                mine.waits = False
                raise ReentrantUse(WITHIN)
            gathering = self._gathering
            if gathering is not None and len(waiting) >= gathering[1]:
                self._gathering = None
                gathering[0].wake()
        wait = mine._told.acquire
        while True:
            in_time = wait(True, self._longest_s if mine.timed else -1)
            if not mine.waits:
                return mine.leads
            if not in_time:
                with self._gate:
                    if self._waiting.get(thread) is mine:
                        late = LogUnavailable(too_long("appends", self._longest_s))
                        late.appended = False
                        raise late
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
                    _time(those)
                mine.waits = False
            if self._leader is mine:
                self._gathering = None
                if riding:
                    # Those who still wait were not taken along: an interrupt came between.
                    for thread in waiting.keys() & riding:
                        riding.pop(thread)
                    for each in riding.values():
                        each.waits = False
                        # What ``wake`` does, once for each message.
                        told = each._told
                        if told.locked():
                            told.release()
                    self._riding = {}
                self._leader = next(iter(waiting.values())) if waiting else None
            leader = self._leader
            if leader is not None:
                if waiting.get(leader.thread) is leader:
                    del waiting[leader.thread]
                    _time(waiting)
                leader.leads = True
                leader.waits = False
                leader.wake()
            mine.leads = False


def _time(those: Mapping[int, Candidate]) -> None:
    """Have all of them wait with a timeout if none does."""
    for each in those.values():
        if each.timed:
            return
    for each in those.values():
        each.timed = True
        each.wake()
