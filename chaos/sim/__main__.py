"""``python -m chaos.sim``: run schedules from seeds, or show one (``--trace``).

Exits with 1 if a run broke a promise, 3 if a fault never struck where it has to
(``--require-coverage``), 2 for wrong arguments, 130 if it was interrupted (SIGINT, SIGTERM): what
came of the schedules until then is told all the same. How far it is stands on standard
error (``--every``).
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path

from chaos.sim.code_coverage import reach
from chaos.sim.consumer.schedule import ONE_IN as CONSUMERS
from chaos.sim.fault_coverage import KINDS, REQUIRED
from chaos.sim.player.schedule import ONE_IN as PLAYERS
from chaos.sim.pool import Tally, quiet, run_many
from chaos.sim.query.schedule import ONE_IN as QUERIES
from chaos.sim.report import lines, unhit
from chaos.sim.run import Result, simulate
from chaos.sim.schedule import draw
from chaos.sim.shrink import shrink

_SHOWN = 5
# Deployments of one server: with and without a disk.
_ONE_SERVER = ("memory", "sqlite")
# Where other kinds are run, too, one seed of so many is run, which stands for one of so many of
# its kind: such a schedule takes longer, and has faults in turn.
_ONE_IN = {"query": (QUERIES, QUERIES), "player": (9, PLAYERS), "consumer": (CONSUMERS, CONSUMERS)}
_interrupted = threading.Event()


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the exit status."""
    options = _parser().parse_args(arguments)
    quiet()
    if options.trace or options.history is not None:
        return _show(options)
    kinds: list[str] = options.deployment or list(KINDS)
    seeds = range(options.seed, options.seed + options.runs)
    print(f"seeds {seeds.start} to {seeds.stop - 1}, deployments {', '.join(kinds)}", flush=True)
    tally = Tally()
    began = time.perf_counter()
    _run(_work(kinds, seeds), options, tally)
    interrupted = _interrupted.is_set()
    for line in lines(tally, time.perf_counter() - began):
        print(line, flush=True)
    if options.coverage and not (tally.failed or interrupted):
        for line in reach(kinds, options.coverage, options.seed):
            print(line)
    if tally.failed:
        print(f"{len(tally.failed)} schedules broke a promise")
        _shrink(tally.failed[0])
        return 1
    if interrupted:
        print("interrupted; no promise was broken until then")
        return 130
    if options.require_coverage and (missed := list(unhit(tally, REQUIRED))):
        print(*missed, sep="\n")
        return 3
    print("no promise was broken")
    return 0


def _interrupt(signum: int, frame: object) -> None:
    """End between two results; the second time at once.

    An exception here would come in the midst of a lock of the pool's.
    """
    signal.signal(signum, signal.default_int_handler)
    _interrupted.set()


def _run(work: list[tuple[str, int]], options: argparse.Namespace, tally: Tally) -> None:
    told = time.perf_counter()
    for result in run_many(work, jobs=options.jobs, ended=_interrupted.is_set):
        tally.add(result)
        if time.perf_counter() - told >= options.every:
            told = time.perf_counter()
            print(f"{tally.runs} of {len(work)} schedules", file=sys.stderr, flush=True)
        if result.problems:
            _tell(result)
            if len(tally.failed) >= options.stop_after:
                break


def _work(kinds: list[str], seeds: range) -> list[tuple[str, int]]:
    """Every seed of every kind; of the two of one server, which are one kind, every other.

    Beside others of some kinds fewer.
    """
    both = set(_ONE_SERVER) <= set(kinds)
    found = []
    for seed in seeds:
        for kind in kinds:
            if kind in _ONE_SERVER and both and kind != _ONE_SERVER[seed % 2]:
                continue
            each, stands_for = _ONE_IN.get(kind, (1, 1)) if len(kinds) > 1 else (1, 1)
            if seed % each == 0:
                found.append((kind, seed // each * stands_for))
    return found


def _tell(result: Result) -> None:
    print(f"FAILED: --deployment {result.kind} --seed {result.seed}")
    for problem in result.problems[:_SHOWN]:
        print(f"  {problem}", flush=True)


def _shrink(result: Result) -> None:
    print("shrinking the first ...", flush=True)
    quiet()
    calls, faults = shrink(draw(result.kind, result.seed))
    print(
        f"enough to fail: python -m chaos.sim --deployment {result.kind} --seed {result.seed} "
        f"--trace --calls {_ranges(calls)} --faults {_ranges(faults)}"
    )


def _show(options: argparse.Namespace) -> int:
    status = 0
    for kind in options.deployment or KINDS:
        schedule = draw(kind, options.seed).only(options.calls, options.faults)
        result = simulate(schedule, tracing=options.trace)
        if options.trace:
            print(f"{kind}, seed {options.seed}: {schedule.setting}")
            print(*result.lines, sep="\n")
            for problem in result.problems:
                print(f"BROKEN: {problem}")
        if options.history is not None and result.history is not None:
            result.history.write(options.history)
        if result.problems:
            status = 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="schedules of each kind")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--deployment", action="append", choices=KINDS, help="these only")
    parser.add_argument("--jobs", type=int, help="processes; as many as processors")
    parser.add_argument("--stop-after", type=int, default=3, help="stop after so many failures")
    parser.add_argument(
        "--every", type=float, default=60.0, metavar="SECONDS", help="tell how far it is"
    )
    parser.add_argument("--require-coverage", action="store_true")
    parser.add_argument(
        "--coverage",
        type=int,
        metavar="N",
        help="measure how much of the cores' code N schedules of each kind reach",
    )
    parser.add_argument("--trace", action="store_true", help="show the events of one seed")
    parser.add_argument("--history", type=Path, help="write what chaos.check reads, of one seed")
    parser.add_argument("--calls", type=_numbers, help="these calls only, as in 3,7-9")
    parser.add_argument("--faults", type=_numbers, help="these faults only, from 0")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in filter(None, text.replace("none", "").split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _ranges(numbers: tuple[int, ...]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "none"


if __name__ == "__main__":
    # However it is ended, what came of it is wanted; a shell's background job would ignore
    # the former.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    sys.exit(main())
