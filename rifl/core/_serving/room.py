"""Rooms: how many handlers of a policy run at once, and which call is next (DESIGN §4).

No clock and no lock: times are given, and a shell makes each method of a ``HandlerRoom`` atomic.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from rifl.core._serving.admission import Steps, admit
from rifl.core._serving.answer import Answer
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.records import Records, waited
from rifl.core._serving.serving import execute
from rifl.core._serving.unclaimed import is_first
from rifl.core._shared.call import Call
from rifl.core._shared.errors import Overloaded

# Of so many runs the times are kept; they are sorted again after so many more.
_KEPT = 128
_SORTED_EVERY = 16
# Fewer say nothing.
_LEAST = 16
_QUICK = 0.1
# The oldest call waits longer than usual if it has waited for so many runs, or for this share of
# the time that it had.
_USUAL_RUNS = 4
_USUAL_SHARE = 0.5
# Load lasts if so many more calls came than were placed, for each place.
_BEHIND = 16
# Of the calls that have too little time one in so many runs: the estimate is tested.
_SPARED = 16
# A call came too late if less of its own run's time was left, as answers are on their way, too.
# After that calls need twice the usual time, but at most so much more.
_LATE_SHARE = 0.1
_ON_THE_WAY_S = 0.05


class RunTimes:
    """How long the last runs took, in seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_KEPT)
        self._sorted: list[float] = []
        self._since = 0
        self._short = 0
        # So many runs until late ones are forgotten.
        self._late = 0

    def note(self, seconds: float, left_s: float = math.inf) -> None:
        """Note one run; ``left_s``: what was left of its call's time."""
        self._last.append(seconds)
        self._late = _KEPT if left_s < _LATE_SHARE * seconds else max(self._late - 1, 0)
        self._since += 1
        if self._since >= _SORTED_EVERY:
            self._since = 0
            self._sorted = sorted(self._last)

    @property
    def quick(self) -> float:
        """What one run in ten stays below; 0 as long as too few are known."""
        return self._at(_QUICK)

    @property
    def usual(self) -> float:
        """The median; 0 as long as too few are known."""
        return self._at(0.5)

    def refuses(self, left_s: float) -> bool:
        """Whether a call with so much time left is refused: it would hardly be answered in time.

        If one of the last runs ended too late, sooner: those that wait behind it have more time. A
        small share is not: if runs became quicker, the estimate is to learn it.
        """
        needed_s = self.quick
        if self._late:
            needed_s = self.usual + min(self.usual, _ON_THE_WAY_S)
        if left_s >= needed_s:
            return False
        self._short += 1
        return self._short % _SPARED != 0

    def _at(self, share: float) -> float:
        known = self._sorted
        return known[int(len(known) * share)] if len(known) >= _LEAST else 0.0


class PlaceWaiter:
    """A call that waits for a place.

    ``until``: when its caller leaves. ``wanted_until``: when the answer is of no more use, to no
    attempt of the call. ``wake`` is called, outside of locks, when it is ``placed`` or ``refused``.
    """

    __slots__ = ("placed", "refused", "since", "until", "wake", "wanted_until")

    def __init__(
        self, since: float, until: float, wanted_until: float, wake: Callable[[], None]
    ) -> None:
        self.since = since
        self.until = until
        self.wanted_until = wanted_until
        self.wake = wake
        self.placed = False
        self.refused = ""


class HandlerRoom:
    """The places of one policy's handlers, and the calls that wait for one.

    Invariants:

    1. At most ``places`` runs hold one, and a call waits only while all are held.
    2. A waiter is placed or refused once, or leaves.

    The call that has waited longest is next, which answers all in time that waited through a
    standstill. If it has waited longer than usual, and since then too many more calls came than
    were placed, load lasts. Then the newest is next, until more are placed than come: it has the
    most time left, while the oldest would be answered just in time, and so would all others after
    it. Not thread-safe.
    """

    def __init__(self, places: int, most_waiting: int) -> None:
        self.times = RunTimes()
        self._free = places
        self._most = most_waiting
        # How many more calls came than were placed, since the oldest waits longer than usual; no
        # more are counted than tell that load lasts: of a standstill they could be any number.
        self._behind = 0
        self._lasts = _BEHIND * places
        # The oldest first.
        self._waiting: OrderedDict[PlaceWaiter, None] = OrderedDict()

    def __len__(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    def take(self) -> bool:
        """Take a place, if one is free."""
        if self._free:
            self._free -= 1
            return True
        return False

    def line_up(self, waiter: PlaceWaiter) -> PlaceWaiter | None:
        """Have a call wait, as no place is free; returns the one that is refused for it, if any."""
        waiting, now = self._waiting, waiter.since
        self._behind = min(self._behind + 1, self._lasts)
        if self.times.refuses(waiter.wanted_until - now):
            waiter.refused = "its time left is below that of quick runs"
            return waiter
        refused = None
        if len(waiting) >= self._most:
            refused = next(iter(waiting)) if waiting and self._newest_first(now) else waiter
            refused.refused = "too many calls wait for a place"
            waiting.pop(refused, None)
        if refused is not waiter:
            waiting[waiter] = None
        return refused

    def leave(
        self, now: float, ran_s: float | None = None, left_s: float = math.inf
    ) -> list[PlaceWaiter]:
        """Give a place back after a run, if there was one; returns who is placed, or refused.

        ``left_s``: what was left of its call's time.
        """
        if ran_s is not None:
            self.times.note(ran_s, left_s)
        told: list[PlaceWaiter] = []
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=self._newest_first(now))
            told.append(waiter)
            if waiter.until <= now:
                waiter.refused = "its caller's deadline passed while it waited for a place"
            elif self.times.refuses(waiter.wanted_until - now):
                waiter.refused = "its time left is below that of quick runs"
            else:
                waiter.placed = True
                self._behind -= 1
                return told
        self._free += 1
        return told

    def forget(self, waiter: PlaceWaiter) -> bool:
        """Wait no longer; False if the waiter was placed, or refused, before."""
        return self._waiting.pop(waiter, self) is None

    def _newest_first(self, now: float) -> bool:
        oldest = next(iter(self._waiting))
        usual = self.times.usual * _USUAL_RUNS or math.inf
        given = (oldest.until - oldest.since) * _USUAL_SHARE
        if now - oldest.since <= min(usual, given):
            self._behind = 0
        return self._behind >= self._lasts


class HandlerPlace(Protocol):
    """One arrival's place in a room, as the rules see it; a shell's object."""

    held: bool

    def enter(self) -> Later | None:
        """Take a place, or wait for one; raises ``Overloaded``."""

    def leave(self) -> None:
        """Give it back, if it is held."""


def enters_first(store: Records, call: Call) -> bool:
    """Whether a call takes its place before it is claimed; the others do once they are.

    A claim in a store that replicas share would keep it from running elsewhere, and outlive a
    crash. Of a first attempt it is as good as known that it is new. A duplicate holds no place and
    waits for none, and only the store knows which others are new.
    """
    return call.key is None and is_first(call) and not store.decides_here


def serve_in_place(store: Records, call: Call, policy: MethodPolicy, place: HandlerPlace) -> Steps:
    """Serve a call as ``serve`` does, whose handler needs a place."""
    if enters_first(store, call):
        yield from waited(place.enter())
    admitted = yield from admit(store, call, policy, waits=place.leave)
    if isinstance(admitted, Answer):
        return admitted
    if not place.held:
        try:
            yield from waited(place.enter())
        except Exception:
            # Left behind, the claim would never end.
            yield from waited(store.abandon(admitted))
            raise
    return (yield from execute(store, admitted))


def overloaded(why: str, call: Call, policy: MethodPolicy) -> Overloaded:
    """Return the refusal of a call, which says no more than is known of it."""
    refusal = Overloaded(f"the server has more calls than it can answer in time: {why}")
    if call.configuration or policy.claim == "never":
        # It may be on a witness (DESIGN §7.13), or run without a claim.
        refusal.may_have_run()
    return refusal
