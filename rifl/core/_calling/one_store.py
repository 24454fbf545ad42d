"""Targets over one store: whose turn it is, which are left out, and until when (DESIGN §5)."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Collection, Iterator

# A target that failed is tried again after a pause, which doubles while it fails.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 10.0
# One that is over another store, or knows no leases.
_OTHER_PAUSE_S, _LONGEST_OTHER_PAUSE_S = 60.0, 960.0
# Whether enough calls were made for another trial is seen no sooner than after so long.
_LOOK_S = 0.1
# Its fraction after multiplication is another number of the client's own.
_MIXED = 997
# A trial that has not been answered for so long was lost.
_LOST_S = 30.0


class Trial(enum.Enum):
    """What became of the renewal of a lease at a target that did not grant it."""

    YES = "yes"
    # No server answered, or it cannot now; SILENT: nor did anything on the way to it.
    FAILED = "failed"
    SILENT = "silent"
    # Another store's, or no lease service.
    REFUSED = "refused"


class _Place:
    """One target. ``ours``: it renewed the lease, and has not refused it since."""

    __slots__ = ("back_at", "calls", "left_out", "ours", "pause_s", "silent", "tried", "try_at")

    def __init__(self, *, ours: bool) -> None:
        self.ours = ours
        self.left_out = not ours
        self.try_at = math.inf if ours else -math.inf
        self.tried = False
        self.silent = False
        self.pause_s = 0.0
        self.back_at = -math.inf
        # How many calls there were at the last trial.
        self.calls = -1

    @property
    def untried(self) -> bool:
        """Whether no trial of the lease has ended there yet."""
        return self.left_out and self.pause_s == 0

    @property
    def waits(self) -> bool:
        """Whether it is tried in its turn: it is over the store, or may be."""
        return self.left_out and (self.ours or self.untried)


class OneStore:
    """Which targets are over the store that granted the lease, and take its calls in turn.

    The target that granted it is, and each that answers a renewal of it with *yes*, the trial.

    Invariants:

    1. A target takes calls in turn only after a *yes*, and after a failure or a refusal only
       after another one.
    2. There are turns only while two targets are known to be over one store, which has a number,
       and none is known to lead. Else ``turn`` is None.
    3. A target is tried once for each lease; after that only while calls are made, and after
       pauses: of 1 to 10 s if it failed, of 1 to 16 minutes if it is over another store.
    4. Of those over the store that failed, or that a lease was not tried at, one is tried at a
       time, the next one after as many calls as there are: when all clients begin, or after a
       restart of all targets, calls make more load than trials. At once only the first: the
       client's own.
    5. Until all were tried, the target that granted the lease, which is most clients' first, has
       no more than its share of the calls.

    Times are seconds of any monotonic clock. No I/O, no randomness; serialised by the shell,
    which may read ``used`` and take from ``turn`` at any time.
    """

    def __init__(self, count: int) -> None:
        self.store = 0
        # Those that take calls, in their order; and whose turn it is, without end.
        self.used: tuple[int, ...] = ()
        self.turn: Iterator[int] | None = None
        self._count = count
        self._places: dict[int, _Place] = {}
        # Those that wait to be tried in their turn; the others.
        self._waiting: list[int] = []
        self._others: list[int] = []
        self._place = 0.0
        # Where the lease was granted.
        self._home = 0
        # When one that had to wait was tried last, and how many calls there were.
        self._tried_at, self._calls = -math.inf, -self._count

    @property
    def known(self) -> list[int]:
        """The targets over the store, those left out included."""
        return [index for index, place in self._places.items() if place.ours]

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.known) > 1

    @property
    def may_take(self) -> list[int]:
        """The known ones; if none takes calls, those that the lease was not tried at, too."""
        return [
            index
            for index, place in self._places.items()
            if place.ours or (place.untried and not self.used)
        ]

    def granted(self, index: int, store: int, place: float) -> None:
        """Take a lease that a target granted, of a store; 0: it has no number.

        ``place``: the client's own, at least 0 and below 1: where its turns begin. What is known
        of the store stays so.
        """
        if store == self.store:
            for each in self._places.values():
                if each.left_out:
                    # The last id may have been refused because it was over.
                    each.tried, each.try_at, each.pause_s = False, -math.inf, 0.0
            self._sort()
            return
        self.end()
        if store and self._count > 1:
            self.store, self._place, self._home = store, place, index
            others = [each for each in range(self._count) if each != index]
            first = int(place * len(others))
            order = [index, *others[first:], *others[:first]]
            self._places = {each: _Place(ours=each == index) for each in order}
            self._sort()

    def end(self) -> None:
        """Know nothing: one of the targets leads, or what granted the lease is not known."""
        self.store = 0
        self._places = {}
        self._take_turns()

    def choose(self, avoid: Collection[int], prefer: int | None) -> int | None:
        """Return whose turn it is: ``prefer`` if it takes calls; None if all must be avoided."""
        used, turn = self.used, self.turn
        if prefer in used and prefer not in avoid:
            return prefer
        return next((index for _ in used if (index := next(turn)) not in avoid), None)  # type: ignore[arg-type]

    def due(
        self, now: float, calls: int, *, silent: bool | None = None, most: int | None = None
    ) -> list[int]:
        """Take the targets that must be tried now, ``most`` of them; ``tried`` is told of each.

        ``calls``: how many there were so far. ``silent``: of those alone that did or did not
        answer at all.
        """
        found = [index for index in self._others if self._is_due(index, now, calls)]
        # The count of calls may begin anew.
        if not 0 <= calls - self._calls < len(self._waiting):
            # That has waited longest.
            waiting = [index for index in self._waiting if self._is_due(index, now, calls)]
            first = min(waiting, key=lambda index: self._places[index].try_at, default=None)
            if first is not None:
                found = [index for index in self._places if index == first or index in found]
        if silent is not None:
            found = [index for index in found if self._places[index].silent is silent]
        for index in found[:most]:
            place = self._places[index]
            if place.waits:
                self._tried_at, self._calls = now, calls
            place.tried, place.calls, place.try_at = True, calls, now + _LOST_S
        return found[:most]

    def _is_due(self, index: int, now: float, calls: int) -> bool:
        place = self._places[index]
        return now >= place.try_at and (not place.tried or calls != place.calls)

    def due_at(self, now: float) -> float | None:
        """Return when to look at ``due`` again, after a look at it now; None: when woken."""
        at = min([place.try_at for place in self._places.values()], default=math.inf)
        if at <= now:
            # Too few calls were made since the last trial.
            return now + min(max(now - self._tried_at, _LOOK_S), _LONGEST_PAUSE_S)
        return None if at == math.inf else at

    def tried(self, index: int, trial: Trial, now: float) -> bool:
        """Take the end of a trial; True if ``used`` changed."""
        place = self._places.get(index)
        if place is None:
            return False
        place.silent = trial is Trial.SILENT
        if trial is not Trial.YES:
            return self._leave(place, now, other=trial is Trial.REFUSED)
        place.ours, place.left_out, place.try_at = True, False, math.inf
        place.back_at = now
        return self._take_turns()

    def failed(self, index: int, now: float) -> bool:
        """Note that nothing can be had at a target; True if ``used`` changed."""
        place = self._places.get(index)
        if place is None or place.left_out:
            return False
        if now - place.back_at >= _LONGEST_PAUSE_S:
            place.pause_s = 0.0
        return self._leave(place, now, other=False)

    def refused(self, index: int, now: float) -> bool:
        """Leave a target out that is over another store; False unless several are over this one."""
        place = self._places.get(index)
        if place is None or not self.several:
            return False
        if place.ours:
            place.pause_s = 0.0
        self._leave(place, now, other=True)
        return True

    def _leave(self, place: _Place, now: float, *, other: bool) -> bool:
        least, most = (
            (_OTHER_PAUSE_S, _LONGEST_OTHER_PAUSE_S) if other else (_PAUSE_S, _LONGEST_PAUSE_S)
        )
        place.pause_s = min(max(2 * place.pause_s, least), most)
        place.left_out, place.ours = True, place.ours and not other
        # Clients of which each has a place of its own do not come back together.
        place.try_at = now + place.pause_s * (1 + self._place) / 2
        return self._take_turns()

    def _sort(self) -> None:
        waits = {index: place.waits for index, place in self._places.items()}
        self._waiting = [index for index in waits if waits[index]]
        self._others = [index for index in waits if not waits[index]]

    def _take_turns(self) -> bool:
        self._sort()
        before, known = self.used, self.known
        first = int(self._place * self._count)
        used = [index for index in known if not self._places[index].left_out]
        used.sort(key=lambda index: (index - first) % self._count)
        # Each is good with the other's last value: an interrupt may come between the two.
        if len(known) > 1 and used:
            self.turn = itertools.cycle(self._in_turn(used))
            self.used = tuple(used)
        else:
            self.used = ()
            self.turn = None
        return self.used != before

    def _in_turn(self, used: list[int]) -> list[int]:
        """Return the turns: others take those of targets that are not known yet."""
        others = [index for index in used if index != self._home]
        untried = sum(place.untried for place in self._places.values())
        if not untried or not others or len(others) == len(used):
            return used
        turns = [*itertools.islice(itertools.cycle(others), len(others) + untried)]
        # A client may make few calls: among those of many, the first target's turn comes anywhere.
        turns.insert(int(self._place * _MIXED % 1 * (len(turns) + 1)), self._home)
        return turns
