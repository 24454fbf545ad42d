"""The budget for retries and hedges, for each target, and when hedges are due (DESIGN §3)."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

# Without a token one retry is sent to a target in each such time: the probe.
_PROBE_S = 1.0
# Between two looks of a call that waits for a token, and of two calls that do, in their order.
_LOOK_S = 0.1
_BETWEEN_LOOKS_S = 0.01
# Of how many answers of a method the 95th percentile is taken, and from how many on.
_DURATIONS = 64
_LEAST_DURATIONS = 20
_SLOW = 0.95


class HeldBack(NamedTuple):
    """A retry, or a hedge, that found no token at a target; ``first``: since there were many."""

    method: str
    target: int
    hedge: bool
    first: bool


class _Bucket:
    __slots__ = ("look_at", "low", "probe_at", "tokens")

    def __init__(self, tokens: float) -> None:
        self.tokens = tokens
        self.probe_at = -math.inf
        self.look_at = -math.inf
        # Who was held back since it was full: retries, hedges.
        self.low: set[bool] = set()


class RetryBudget:
    """A bucket of tokens for each target: a retry takes one, an answered call adds a part.

    Invariants:

    1. Over any time a target is sent at most ``tokens`` retries and hedges, ``ratio`` more
       for each call that was answered, and one retry a second. Those that are free are not
       asked for.
    2. Hedges go only while more than half of the tokens are there.

    ``answered`` is a count that only grows: what was answered since the last look goes to the
    bucket that is looked at. Times are seconds of any monotonic clock. No I/O, no clock;
    serialised by the shell.
    """

    def __init__(self, tokens: float | None, ratio: float) -> None:
        """``tokens``: None for no bound."""
        self._most = tokens
        self._ratio = ratio
        self._answered = 0
        self._buckets: dict[int, _Bucket] = {}

    def take(self, target: int, now: float, answered: int, *, hedge: bool = False) -> bool:
        """Take a token for an attempt at a target; False if the attempt has to wait."""
        if self._most is None:
            return True
        bucket = self._look(target, answered)
        if bucket.tokens >= 1.0 and not (hedge and bucket.tokens <= self._most / 2):
            bucket.tokens -= 1.0
        elif hedge or now < bucket.probe_at:
            return False
        bucket.probe_at = now + _PROBE_S
        return True

    def has(self, target: int, answered: int, count: int) -> bool:
        """Whether so many attempts at a target would find tokens."""
        return self._most is None or self._look(target, answered).tokens >= count

    def held_back(self, method: str, target: int, *, hedge: bool) -> HeldBack:
        """Note that an attempt begins to wait."""
        bucket = self._bucket(target)
        first = hedge not in bucket.low
        bucket.low.add(hedge)
        return HeldBack(method, target, hedge, first)

    def look_at(self, target: int, now: float) -> float:
        """Return when a call that found no token looks again: one after the other."""
        bucket = self._bucket(target)
        at = max(bucket.look_at + _BETWEEN_LOOKS_S, now + _LOOK_S)
        bucket.look_at = min(at, now + _PROBE_S)
        return bucket.look_at

    def _bucket(self, target: int) -> _Bucket:
        found = self._buckets.get(target)
        if found is None:
            found = self._buckets[target] = _Bucket(self._most or 0.0)
        return found

    def _look(self, target: int, answered: int) -> _Bucket:
        bucket, most = self._bucket(target), self._most or 0.0
        added = (answered - self._answered) * self._ratio
        self._answered = answered
        bucket.tokens = min(bucket.tokens + added, most)
        if bucket.low and bucket.tokens >= most:
            bucket.low.clear()
        return bucket


class UsualDuration:
    """How long answers of one method take: the 95th percentile of the latest ones."""

    __slots__ = ("_at", "_latest", "_slow_s")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_DURATIONS)
        self._slow_s = 0.0
        self._at = 0

    def took(self, seconds: float) -> None:
        """Note the duration of an attempt that was answered."""
        self._latest.append(seconds)
        self._at += 1
        # Sorting costs more than the rest: so often is enough.
        if self._at % 4 == 0 and len(self._latest) >= _LEAST_DURATIONS:
            self._slow_s = sorted(self._latest)[int(len(self._latest) * _SLOW)]

    @property
    def slow_s(self) -> float:
        """What one in twenty exceeds; 0 while too few are known."""
        return self._slow_s
