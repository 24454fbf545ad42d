"""Many schedules, on all processors."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from chaos.sim.faults import Coverage
from chaos.sim.run import Result, simulate
from chaos.sim.schedule import draw

__all__ = ["Tally", "run_many"]

_CHUNK = 10


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


def run_many(work: Iterable[tuple[str, int]], *, jobs: int | None = None) -> Iterator[Result]:
    """Run schedules (kind and seed) and yield what came of each, in their order.

    ``jobs`` processes; None means as many as there are processors for this one.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1:
        quiet()
        try:
            yield from map(_one, work)
        finally:
            logging.disable(logging.NOTSET)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_settle) as pool:
        yield from pool.imap(_one, work, chunksize=_CHUNK)


def quiet() -> None:
    """Keep the product's log, which tells of every fault, to itself."""
    logging.disable(logging.CRITICAL)


def _settle() -> None:
    quiet()
    # A terminal's Ctrl-C goes to all: who gave the work out ends those who do it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A schedule's objects live as long as it does, and what is imported for ever: the
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
