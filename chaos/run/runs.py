"""Runs of scenarios, each in a process of its own: several at once."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from chaos.run.run import Result, run
from chaos.run.scenario import Scenario

__all__ = ["Wanted", "run_all"]

# A scenario and the seed of its faults.
Wanted = tuple[Scenario, int]


class _Running(NamedTuple):
    number: int
    process: BaseProcess
    said: Connection


def run_all(
    wanted: Sequence[Wanted],
    jobs: int,
    directory: Path,
    *,
    began: Callable[[int], None],
    went_on: Callable[[int, float, int], None],
    ended: Callable[[int, Result], None],
) -> list[Result]:
    """Run all of ``wanted``, up to ``jobs`` at once, below an empty directory.

    A scenario that is ``alone`` has no other beside it. The callbacks get a run's place in
    ``wanted``; ``went_on`` its seconds and answers so far, too. The results are in the order of
    ``wanted``. An exception ends the runs.
    """
    results: dict[int, Result] = {}
    for left, at_once in _turns(wanted, jobs):
        with _ended_at_last() as running:
            while left or running:
                while left and len(running) < at_once:
                    number = left.pop(0)
                    running.append(_start(number, wanted[number], directory / str(number)))
                    began(number)
                for each in _ready(running):
                    said = _next(each, wanted[each.number])
                    if isinstance(said, Result):
                        running.remove(each)
                        results[each.number] = said
                        ended(each.number, said)
                    else:
                        went_on(each.number, *said)
    return [results[number] for number in range(len(wanted))]


def _turns(wanted: Sequence[Wanted], jobs: int) -> Iterator[tuple[list[int], int]]:
    """Yield the runs that share the machine, the longest first, and those that do not."""
    order = sorted(range(len(wanted)), key=lambda number: -wanted[number][0].seconds)
    yield [number for number in order if not wanted[number][0].alone], jobs
    yield [number for number in order if wanted[number][0].alone], 1


def _start(number: int, wanted: Wanted, directory: Path) -> _Running:
    context = multiprocessing.get_context("spawn")
    said, says = context.Pipe(duplex=False)
    # Toxiproxy's client knows one server in a process.
    process = context.Process(target=_run, args=(*wanted, directory, says), daemon=True)
    process.start()
    says.close()
    return _Running(number, process, said)


def _ready(running: Sequence[_Running]) -> list[_Running]:
    """Wait until one of them says something, or is over."""
    ready = wait([each.said for each in running])
    return [each for each in running if each.said in ready]


def _next(each: _Running, wanted: Wanted) -> Result | tuple[float, int]:
    """Return what a run says next: how far it is, or its result."""
    try:
        said: Result | tuple[float, int] = each.said.recv()
    except EOFError:
        each.process.join()
        scenario, seed = wanted
        problem = f"the process of the run ended with {each.process.exitcode}"
        said = Result(scenario=scenario, seed=seed, problems=[problem])
    if isinstance(said, Result):
        each.process.join()
        each.said.close()
    return said


@contextmanager
def _ended_at_last() -> Iterator[list[_Running]]:
    """Have runs that are left clean up and end."""
    running: list[_Running] = []
    try:
        yield running
    finally:
        for each in running:
            each.process.terminate()
        for each in running:
            each.process.join()


def _run(scenario: Scenario, seed: int, directory: Path, says: Connection) -> None:
    # A terminal's Ctrl-C goes to all: the parent process ends the runs. No SIG_IGN, which the
    # processes of the scenario would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    says.send(run(scenario, seed, directory, partial(_say, says)))


def _say(says: Connection, seconds: float, answers: int) -> None:
    says.send((seconds, answers))
