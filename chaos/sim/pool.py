"""Machinery: many schedules, on all processors."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from chaos.sim.faults import Coverage
from chaos.sim.run import Result, simulate
from chaos.sim.schedule import draw

__all__ = ["Tally", "run_many"]

_CHUNK = 10
# How often it is looked whether it is to end, while no result comes.
_LOOK_S = 0.2


@dataclass(slots=True)
class Tally:
    """What came of many runs."""

    runs: int = 0
    calls: int = 0
    faults: int = 0
    events: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    by_kind: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    coverage: dict[str, Coverage] = field(default_factory=dict)
    failed: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """Count one run in."""
        self.runs += 1
        self.calls += result.calls
        self.faults += result.faults
        self.events += result.events
        self.simulated_s += result.simulated_s
        self.cpu_s += result.cpu_s
        self.by_kind[result.kind] += 1
        self.outcomes.update(result.outcomes)
        self.coverage.setdefault(result.kind, Coverage()).update(result.coverage)
        if result.problems:
            self.failed.append(result)


def run_many(
    work: Iterable[tuple[str, int]],
    *,
    jobs: int | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> Iterator[Result]:
    """Run schedules (kind and seed) and yield what came of each, in their order.

    ``jobs`` processes; None means as many as there are processors for this one. ``ended``: asked
    between results and while none comes; once it is true nothing more is yielded.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1:
        quiet()
        try:
            for each in work:
                if ended():
                    return
                yield _one(each)
        finally:
            logging.disable(logging.NOTSET)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_settle) as pool:
        # Chunks of our own: waiting for the pool's has no timeout.
        results = pool.imap(_several, _chunks(work))
        while not ended():
            try:
                yield from results.next(_LOOK_S)
            except multiprocessing.TimeoutError:
                continue
            except StopIteration:
                return


def _chunks(work: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    left = iter(work)
    while found := list(itertools.islice(left, _CHUNK)):
        yield found


def _several(work: list[tuple[str, int]]) -> list[Result]:
    return [_one(each) for each in work]


def quiet() -> None:
    """Keep the product's log, which tells of every fault, to itself."""
    logging.disable(logging.CRITICAL)


def _settle() -> None:
    quiet()
    # A terminal's Ctrl-C goes to all: who gave the work out ends those who do it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A schedule's objects live as long as it does, and imported modules to the end: the
    # collector looks between schedules, at them alone.
    gc.collect()
    gc.freeze()
    gc.disable()


def _one(item: tuple[str, int]) -> Result:
    result = simulate(draw(*item))
    if not gc.isenabled():
        gc.collect()
    # Large, and only wanted by who runs one.
    result.history = None
    return result
