"""Saturation: which rates of events are tried, and what is told of those that a query holds.

A rate is held while the p99 of delays is at most four times what it is on an idle pipeline, which
is one of few events a second: without any there is no delay. One that misses by less than twice
that is tried once more, as whatever else the machine did may have been it. Pure.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple, Self

__all__ = [
    "HALF",
    "IDLE",
    "RISING",
    "Delays",
    "Found",
    "Measured",
    "by_query",
    "long_enough",
    "notes",
    "summary",
]

# Why a rate is tried: for what is idle, for what is held, at half of what Kafka holds.
IDLE, RISING, HALF = "idle", "rising", "half"
# Of an idle pipeline's, that is one which holds a rate no longer.
_SATURATED = 4.0
_DOUBTFUL = 2 * _SATURATED
# From one rate to the next until one is not held, and between a held one and one that is not.
_COARSE, _FINE = 2.4, 1.25
_ENDLESS = math.inf
# Of an idle pipeline's p99, so long a step is, and no longer than that, in seconds.
_STEP, _LONGEST_S = 6.0, 30.0


def long_enough(seconds: float, idle_p99: float) -> float:
    """Return for how long a rate is tried, at least ``seconds``, to tell whether it is held.

    Where half more comes than goes, the last rows of six times an idle delay are late by three of
    it, beside their own: four, which is held no longer. A shorter step would seem to be held.
    """
    return max(seconds, min(_STEP * idle_p99, _LONGEST_S))


class Delays(NamedTuple):
    """Of rows, in seconds: how many there were, and their delays."""

    rows: int
    p50: float
    p99: float

    @classmethod
    def of(cls, delays: Iterable[float], *, all_came: bool = True) -> Self:
        """Return those of what came; endless where nothing did, or not all."""
        ranked = sorted(delays)
        if not ranked or not all_came:
            return cls(len(ranked), _ENDLESS, _ENDLESS)
        return cls(len(ranked), ranked[len(ranked) // 2], ranked[int(0.99 * (len(ranked) - 1))])


class Measured(NamedTuple):
    """Delays at a rate of events a second, of a query over a system."""

    query: str
    side: str
    why: str
    rate: int
    delays: Delays

    def line(self) -> str:
        """Return it as a line of JSON; null where no delay has an end."""
        rows, *delays = self.delays
        p50, p99 = (round(each, 4) if math.isfinite(each) else None for each in delays)
        told = {**self._asdict(), "delays": {"rows": rows, "p50_s": p50, "p99_s": p99}}
        return json.dumps(told)

    @classmethod
    def read(cls, line: str) -> Self:
        """Return what a line has."""
        told = json.loads(line)
        delays = told.pop("delays")
        p50, p99 = (_ENDLESS if each is None else each for each in list(delays.values())[1:])
        return cls(**told, delays=Delays(delays["rows"], p50, p99))


class Found(NamedTuple):
    """What came of a query over a system, as it was measured."""

    steps: tuple[Measured, ...] = ()

    @property
    def idle_p99(self) -> float:
        """The p99 of the idle pipeline: the median of its rounds."""
        return _median(each.delays.p99 for each in self.steps if each.why == IDLE)

    @property
    def over(self) -> int | None:
        """The slowest rate that was not held at any try, None: all were."""
        held = self._within(_SATURATED)
        return min((each.rate for each in self._tried if each.rate not in held), default=None)

    @property
    def held(self) -> int:
        """The highest rate that was held, below those that were not; 0: not even an idle one."""
        if not math.isfinite(self.idle_p99):
            return 0
        idle = max(each.rate for each in self.steps if each.why == IDLE)
        over = self.over or _ENDLESS
        held = (rate for rate in self._within(_SATURATED) if rate < over)
        return max(held, default=idle)

    @property
    def half(self) -> Delays:
        """Delays at half of what Kafka holds: medians of the rounds."""
        rounds = [each.delays for each in self.steps if each.why == HALF]
        return Delays(
            sum(each.rows for each in rounds),
            _median(each.p50 for each in rounds),
            _median(each.p99 for each in rounds),
        )

    def next(self, most: int, first: int = 0) -> int | None:
        """Return the rate to be tried next, None: what is held is known, or is ``most``.

        None below ``first`` is tried but between one that is held and one that is not.
        """
        held, over = self.held, self.over
        if not held or held >= most:
            return None
        if over is None:
            return min(max(round(held * _COARSE), first), most)
        if over in self._within(_DOUBTFUL) and [each.rate for each in self._tried].count(over) == 1:
            return over
        return round(math.sqrt(held * over)) if over > held * _FINE else None

    @property
    def _tried(self) -> list[Measured]:
        return [each for each in self.steps if each.why == RISING]

    def _within(self, times: float) -> set[int]:
        most = times * self.idle_p99
        return {each.rate for each in self._tried if each.delays.p99 <= most}


Queries = dict[str, dict[str, Found]]


def by_query(steps: Iterable[Measured]) -> Queries:
    """Return what came of each query and system."""
    found: Queries = {}
    for each in steps:
        sides = found.setdefault(each.query, {})
        sides[each.side] = Found((*sides.get(each.side, Found()).steps, each))
    return found


def summary(found: Queries) -> dict[str, float]:
    """Return ratios of rifl to others, geometric means over all queries.

    A query that ours does not even hold idle has a ratio of 0, and so has the mean then.
    """
    told = {}
    for other in ("kafka", "synced"):
        held = [
            each["log"].held / each[other].held
            for each in found.values()
            if "log" in each and other in each and each[other].held
        ]
        if held:
            told[f"saturation to {other}"] = _mean(held)
            told[f"saturation to {other}, least"] = min(held)
    for other in ("kafka", "synced", "plain"):
        pairs = [
            (each["log"].half, each[other].half)
            for each in found.values()
            if "log" in each and other in each and each[other].half.rows
        ]
        # Where the other one's have no end there is nothing to compare with.
        pairs = [(ours, theirs) for ours, theirs in pairs if math.isfinite(theirs.p99)]
        if pairs:
            told[f"p50 to {other}"] = _mean(ours.p50 / theirs.p50 for ours, theirs in pairs)
            told[f"p99 to {other}"] = _mean(ours.p99 / theirs.p99 for ours, theirs in pairs)
    return told


def notes(found: Queries, most: int) -> list[str]:
    """Return what ratios do not say: what is held at ``most`` may be held beyond."""
    told = []
    for query, sides in found.items():
        for side, each in sides.items():
            if not any(step.why == IDLE for step in each.steps):
                continue
            if each.held >= most:
                told.append(f"{query} over {side}: holds {most:,}, the highest tried, or more")
            elif not each.held:
                told.append(f"{query} over {side}: not even idle")
            elif each.next(most) is not None:
                told.append(f"{query} over {side}: cut off at {each.held:,}")
    return told


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else _ENDLESS


def _mean(ratios: Iterable[float]) -> float:
    known = list(ratios)
    return math.prod(known) ** (1 / len(known)) if 0 not in known else 0.0
