"""Each query over all systems at rising rates, in turns: what the machine does befalls all of them.

The drivers of a query, one a system, are there at once, and stand still (SIGSTOP) while another one
is measured. After that each gets a few events first: Spark ends workers that had nothing to do.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.fleet import DriverProcess
from benchmarks.nexmark.load import PATIENCE_S, Load, Step, run_step
from benchmarks.nexmark.parts import system
from benchmarks.nexmark.saturation import (
    HALF,
    IDLE,
    RISING,
    Delays,
    Found,
    Measured,
    long_enough,
)

__all__ = ["rising"]

# No system may stand still in the midst of a first micro-batch.
_WARM_S, _WARM_PATIENCE_S = 1.0, 300.0
# For the next row of what a pipeline was overrun with.
_DRAIN_PATIENCE_S = 60.0
# Of a query that joins or counts windows so few events may make no row at all.
_TURN_PATIENCE_S = 5.0
# Steps of a system in a row.
_TURN = 3

Keep = Callable[[Measured], None]


def rising(folder: Path, options: argparse.Namespace, query: str, keep: Keep) -> None:
    """Measure a query over all systems; ``keep`` gets each step when it ends.

    First idle, then until it is known what each holds, then all at half of what Kafka holds, or
    of what the log does where there is no Kafka. Of ``plain`` only the last is asked for.
    """
    with ExitStack() as stack:
        sides = {
            side: stack.enter_context(_side(folder / query / side, options, query, side, keep))
            for side in options.sides
        }
        searched = [each for name, each in sides.items() if name != "plain"]
        for number in range(options.rounds):
            for each in _in_turn(searched, number):
                with each.turn():
                    each.run(IDLE, options.idle)
        left = searched
        while left := [each for each in left if each.found.next(options.most, options.first)]:
            for each in left:
                with each.turn():
                    each.search(options.most)
        of = sides.get("kafka") or sides.get("log")
        if of is None or not of.found.held:
            return
        half = max(options.idle, of.found.held // 2)
        for number in range(options.rounds):
            for each in _in_turn(list(sides.values()), number):
                with each.turn():
                    each.run(HALF, half)


class _Side:
    """A query over one system, whose driver runs."""

    def __init__(
        self,
        options: argparse.Namespace,
        query: str,
        side: str,
        keep: Keep,
        load: Load,
        driver: DriverProcess,
    ) -> None:
        self._options, self._query, self._side, self._keep = options, query, side, keep
        self._load, self._driver = load, driver
        self._events = 0
        self.found = Found()
        # What Spark compiles, and how its processes start.
        self._warm(options.seconds, _WARM_PATIENCE_S)
        driver.pause()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have it run, and no other."""
        self._driver.go_on()
        self._warm(_WARM_S, _TURN_PATIENCE_S)
        yield
        self._driver.pause()

    def run(self, why: str, rate: int, seconds: float | None = None) -> None:
        """Measure a rate, for as long as a step is where nothing else is said."""
        delays = self._step(rate, self._options.seconds if seconds is None else seconds)
        measured = Measured(self._query, self._side, why, rate, delays)
        self.found = Found((*self.found.steps, measured))
        self._keep(measured)
        if math.isinf(delays.p99):
            # What is left of it would be before the next one's; or its driver had no room for it,
            # and begins anew.
            self._warm(_WARM_S, _DRAIN_PATIENCE_S)

    def search(self, most: int) -> None:
        """Measure rates that are to be tried, a few of them."""
        for _ in range(_TURN):
            rate = self.found.next(most, self._options.first)
            if rate is None:
                break
            self.run(RISING, rate, long_enough(self._options.seconds, self.found.idle_p99))

    def _warm(self, seconds: float, patience_s: float) -> None:
        while True:
            self._step(self._options.idle, seconds, patience_s)
            # One that was paused in the midst of something may fail.
            if self._driver.runs:
                return

    def _step(self, rate: int, seconds: float, patience_s: float = PATIENCE_S) -> Delays:
        self._driver.mend()
        step = Step(rate, seconds, self._events)
        # Nothing that follows it has a number twice.
        self._events += step.events + int(rate * _WARM_PATIENCE_S)
        return run_step(self._load, self._query, step, patience_s)


@contextmanager
def _side(
    folder: Path, options: argparse.Namespace, query: str, side: str, keep: Keep
) -> Iterator[_Side]:
    folder.mkdir(parents=True)
    longest_us = Events(rate=options.idle).longest_us
    with system(folder, options, side) as (load, told):
        driver = DriverProcess(
            *told,
            *("--queries", query),
            *("--directory", str(folder)),
            *("--longest", f"{longest_us} microseconds"),
            *("--late", "200 milliseconds", "--window", "1 second", "--slide", "200 milliseconds"),
            *("--conf", *options.conf),
            log=folder / "driver.log",
        )
        with driver:
            yield _Side(options, query, side, keep, load, driver)


def _in_turn(sides: list[_Side], number: int) -> list[_Side]:
    """Return them, another one first in each round."""
    first = number % max(1, len(sides))
    return sides[first:] + sides[:first]
