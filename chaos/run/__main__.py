"""``python -m chaos.run NAME ...``: break real deployments, and judge what callers were told.

NAME is a scenario of ``chaos/run/scenarios``, or a file of one's own. Exits with 1 if a
promise was broken, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from chaos.programs import NotInstalled
from chaos.run.report import print_table, write
from chaos.run.run import Result
from chaos.run.runs import Wanted, run_all
from chaos.run.scenario import Scenario
from chaos.run.scenario_files import BadScenario, read, read_all
from chaos.run.toxiproxy import executable


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        known = read_all()
        if options.list:
            for scenario in known.values():
                short = "short" if scenario.short else ""
                print(f"{scenario.name:<28}{short:<7}{scenario.title}")
            return 0
        chosen = _choose(known, options)
        executable()
    except (BadScenario, NotInstalled, OSError) as error:
        parser.error(str(error))
    if not chosen:
        parser.error("name scenarios, or --short or --all; --list shows them")
    # A terminated run cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 140)
    seeds = range(options.seed, options.seed + options.times)
    console.print(
        f"{len(chosen)} scenarios, seed {options.seed}"
        + (f" to {seeds[-1]}" if len(seeds) > 1 else ""),
        highlight=False,
    )
    wanted = [(scenario, seed) for seed in seeds for scenario in chosen]
    began = time.monotonic()
    results = _run(console, wanted, options.jobs or len(os.sched_getaffinity(0)))
    took_s = time.monotonic() - began
    print_table(console, results)
    write(options.report, results)
    held = sum(result.good for result in results)
    console.print(
        f"{held} of {len(results)} held in {took_s:.0f} s; report: {options.report / 'index.html'}",
        highlight=False,
    )
    return 0 if held == len(results) else 1


def _run(console: Console, wanted: list[Wanted], jobs: int) -> list[Result]:
    with (
        tempfile.TemporaryDirectory(prefix="rifl-chaos-") as directory,
        Progress(
            TextColumn("{task.description:<30}"),
            BarColumn(),
            TextColumn("{task.fields[answers]:>7}"),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
    ):
        overall = progress.add_task("scenarios", total=len(wanted), answers="")
        tasks: dict[int, TaskID] = {}

        def began(number: int) -> None:
            scenario, _ = wanted[number]
            tasks[number] = progress.add_task(scenario.name, total=scenario.seconds, answers="")

        def went_on(number: int, seconds: float, answers: int) -> None:
            progress.update(tasks[number], completed=seconds, answers=f"{answers:,}")

        def ended(number: int, result: Result) -> None:
            progress.remove_task(tasks.pop(number))
            word = "[green]held[/]" if result.good else "[bold red]BROKEN[/]"
            progress.console.print(
                f"{result.scenario.name:<28} seed {result.seed:<5} {result.seconds:6.1f} s  {word}",
                highlight=False,
            )
            progress.advance(overall)

        return run_all(wanted, jobs, Path(directory), began=began, went_on=went_on, ended=ended)


def _choose(known: dict[str, Scenario], options: argparse.Namespace) -> list[Scenario]:
    if options.all:
        return list(known.values())
    chosen = [each for each in known.values() if options.short and each.short]
    for name in options.names:
        if name in known:
            chosen.append(known[name])
        elif name.endswith(".toml"):
            chosen.append(read(Path(name)))
        else:
            raise BadScenario(f"there is no scenario {name!r}: {', '.join(known)}")
    return chosen


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios, or files of them")
    parser.add_argument("--all", action="store_true", help="every scenario")
    parser.add_argument("--short", action="store_true", help="the short selection")
    parser.add_argument("--list", action="store_true", help="show the scenarios and end")
    parser.add_argument("--seed", type=int, default=1, help="of faults' times, targets and sizes")
    parser.add_argument("--times", type=int, default=1, help="run all so often, seed by seed")
    parser.add_argument("--jobs", type=int, help="scenarios at once; as many as processors")
    parser.add_argument(
        "--report", type=Path, default=Path("build/chaos"), metavar="DIR", help="where to write"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
