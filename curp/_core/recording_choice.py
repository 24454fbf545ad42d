"""The choice whether a method's calls are recorded on witnesses, by speed (DESIGN §7)."""

from __future__ import annotations

import enum
from typing import NamedTuple

# A call that is recorded must be answered so much sooner to be worth the work it is
# to client and witness; and it is given up once it is no sooner.
_WORTH_IT = 0.9
_NOT_WORTH_IT = 1.0
# Calls of a trial, for a caller that is alone; and how many times as many go the
# chosen way before the next one, at first and at most.
_LEAST_TRIED = 16
_LEAST_UNTOUCHED = 4
_FIRST_RUN, _LONGEST_RUN = 8, 64
# The share of a stretch, its slowest calls, that does not count: one stall decides nothing.
_LEFT_OUT = 1 / 8
# A trial that speaks against the choice does so beside one of so many before it.
_HEARD = 2


class Way(enum.Enum):
    """How a call travels."""

    # To the leader and the witnesses at once: one round trip.
    RECORDED = "recorded"
    # To the leader, which appends before it answers: a round trip and the append.
    LEADER_ONLY = "leader-only"


class BegunCall(NamedTuple):
    """A call that was begun: its way, and the stretch of calls it counts for; 0: for none."""

    way: Way
    stretch: int


# A call that is recorded whatever was measured.
UNCOUNTED = BegunCall(Way.RECORDED, 0)


class RecordingChoice:
    """Chooses the way of one method's calls by what was measured of both.

    1. Calls go in stretches, all of one way. A short one, the trial, goes the other way; what
       its calls took on average is held against as many calls just before it, without the
       slowest eighth of each. So what is compared is a client that records with one that does
       not, under the load of that time: a single call that goes another way than all others
       around it tells little.
    2. A trial speaks for RECORDED when that took less than 0.9 of what LEADER_ONLY took, for
       LEADER_ONLY when it took no less than that, in between for what is chosen. The choice
       changes when two of three trials speak against it: one may have met a moment when the
       machine was busy.
    3. While a choice stands its stretches grow, up to 64 trials' length: then trials are less
       than 2% of all calls. After a trial that spoke against it the next one comes soon.
    4. Of a trial, calls that may have been begun beside those of the stretch before do not
       count; calls that failed never do.

    ``chosen`` decides about speed only: an answer to a call that is not recorded is final by
    invariant 1, as that of a caller who knows no group. No clock; not thread-safe.
    """

    __slots__ = (
        "_against",
        "_failed",
        "_in_flight",
        "_measured",
        "_previous_s",
        "_run",
        "_stretch",
        "_target",
        "_trial",
        "_untouched",
        "chosen",
    )

    def __init__(self) -> None:
        self.chosen = Way.RECORDED
        self._trial = False
        # Whether the last trials, the latest last, spoke against what is chosen.
        self._against: list[bool] = []
        self._run = _FIRST_RUN
        self._in_flight = 0
        self._stretch = 0
        self._previous_s = 0.0
        self._begin_stretch(_FIRST_RUN * _LEAST_UNTOUCHED)

    def begin(self) -> BegunCall:
        """Begin a call; ``ended`` or ``failed`` follows."""
        self._in_flight += 1
        way = self.chosen
        if self._trial:
            way = Way.LEADER_ONLY if way is Way.RECORDED else Way.RECORDED
        if self._untouched:
            self._untouched -= 1
            return BegunCall(way, 0)
        return BegunCall(way, self._stretch)

    def failed(self, begun: BegunCall) -> None:
        """Handle a call that got no answer, which tells nothing."""
        self._in_flight -= 1
        if self._trial and begun.stretch == self._stretch:
            self._failed += 1
            if self._failed >= self._target:
                # Nor does this trial.
                self._end_trial()

    def ended(self, begun: BegunCall, seconds: float) -> None:
        """Take how long a call took to its final answer."""
        self._in_flight -= 1
        if begun.stretch != self._stretch:
            return
        self._measured.append(seconds)
        if len(self._measured) >= self._target:
            self._end_stretch()

    def _end_stretch(self) -> None:
        kept = sorted(self._measured)[: -int(_LEFT_OUT * self._target)]
        mean_s = sum(kept) / len(kept)
        if not self._trial:
            self._trial = True
            self._previous_s = mean_s
            self._begin_stretch(max(_LEAST_UNTOUCHED, self._in_flight))
            return
        self._judge(mean_s)
        self._end_trial()

    def _end_trial(self) -> None:
        self._trial = False
        self._previous_s = 0.0
        self._begin_stretch(self._run * self._target)

    def _judge(self, tried_s: float) -> None:
        recorded_s, alone_s = tried_s, self._previous_s
        if self.chosen is Way.RECORDED:
            recorded_s, alone_s = alone_s, recorded_s
        ratio = recorded_s / max(alone_s, 1e-9)
        speaks_for = self.chosen
        if ratio < _WORTH_IT:
            speaks_for = Way.RECORDED
        elif ratio >= _NOT_WORTH_IT:
            speaks_for = Way.LEADER_ONLY
        against = speaks_for is not self.chosen
        if against and any(self._against):
            self.chosen = speaks_for
            self._against = []
        else:
            self._against = [*self._against, against][-_HEARD:]
        self._run = _FIRST_RUN if against else min(2 * self._run, _LONGEST_RUN)

    def _begin_stretch(self, untouched: int) -> None:
        self._stretch += 1
        self._untouched = untouched
        self._target = max(_LEAST_TRIED, 2 * self._in_flight)
        self._measured: list[float] = []
        self._failed = 0
