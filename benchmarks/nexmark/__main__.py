"""``python -m benchmarks.nexmark``: what NEXMark's queries cost over the log, beside Kafka.

``alone``: rows a second of Spark's source and sink for themselves, beside Kafka's and Parquet.
``batches``: where the time of a micro-batch goes, in milliseconds, and what Spark's options change.
``rising``: how long after its event time a row is at the output (p50, p99) as the rate of events
rises, until p99 is four times that of an idle pipeline; over the log, over Kafka with a flush of
each message and without, in turns; and at half of what Kafka holds, also over the log without its
guarantee. Windows are of one second. Rough where the machine does other things, too: the load is
told. Each step is printed, and with ``--keep`` appended to a file, when it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.nexmark.batches import PARTS, Batches, Medians, batches
from benchmarks.nexmark.parts import SIDES, TARGETS, alone, alone_summary, system
from benchmarks.nexmark.rising import rising
from benchmarks.nexmark.saturation import Measured, Queries, by_query, notes, summary
from benchmarks.nexmark.schemas import OUTPUTS
from benchmarks.nexmark.steps import steps

# All queries, in two hours or more; and some of them: a rate that is not held takes minutes.
_SHORT = {
    "sides": ["log", "plain", "kafka"],
    "seconds": 5.0,
    "rows": 300_000,
    "rounds": 2,
}
_QUICK = {**_SHORT, "queries": ["q1", "q5", "q8"], "rows": 200_000}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument(
        "--only",
        choices=("alone", "batches", "rising"),
        help="alone: rows a second of Spark's sources and sinks; batches: where the time of a "
        "micro-batch goes; rising: how long after its event time a row is at the output",
    )
    parser.add_argument("--short", action="store_true", help="fewer and shorter steps")
    parser.add_argument("--quick", action="store_true", help="the same of three queries")
    parser.add_argument("--queries", nargs="+", choices=OUTPUTS)
    parser.add_argument("--sides", nargs="+", choices=SIDES)
    # At fewer events there are seconds without a row of some queries.
    parser.add_argument("--idle", type=int, default=2000, help="events a second of an idle one")
    parser.add_argument("--first", type=int, default=0, help="above the idle one, the lowest tried")
    parser.add_argument("--most", type=int, default=160_000, help="events a second")
    parser.add_argument("--seconds", type=float, help="of a rate")
    parser.add_argument("--rows", type=int, help="of sources and sinks alone: events")
    parser.add_argument("--rounds", type=int, help="of these, and of delays that are compared")
    parser.add_argument("--keep", type=Path, help="where steps of rising rates are appended")
    parser.add_argument("--again", type=Path, metavar="KEPT", help="only tell what such a file has")
    parser.add_argument("--conf", nargs="*", default=[], help="NAME=VALUE, of Spark's")
    parser.add_argument("--kafka", type=Path, metavar="FOLDER", help="of its jars; else without")
    parser.add_argument("--spark-kafka", type=Path, metavar="FOLDER", help="of Spark's jars for it")
    parser.set_defaults(queries=list(OUTPUTS), sides=list(SIDES))
    parser.set_defaults(seconds=15.0, rows=1_000_000, rounds=3)
    said = sys.argv[1:] if arguments is None else arguments
    for name, defaults in {"--short": _SHORT, "--quick": _QUICK}.items():
        if name in said:
            parser.set_defaults(**defaults)
    options = parser.parse_args(arguments)
    # A terminated run ends its drivers, some of which stand still.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.again is not None:
        found = by_query(map(Measured.read, options.again.read_text().splitlines()))
        return _tell({"queries": _told(found)}, summary(found), notes(found, options.most))
    if options.kafka is None:
        sys.stdout.write("without Kafka: its jars are not there\n")
        options.sides = [each for each in options.sides if each in ("log", "plain")]
    figures: dict[str, object] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    ratios: dict[str, float] = {}
    more: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rifl-nexmark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if options.only in (None, "alone"):
            figures["alone"] = _alone(folder, options, ratios)
        if options.only in (None, "batches"):
            figures["steps"] = _steps(folder)
            figures["batches"] = _batches(folder, options)
        if options.only in (None, "rising"):
            queries = _rising(folder, options)
            ratios |= summary(queries)
            more = notes(queries, options.most)
            figures["queries"] = _told(queries)
    return _tell(figures, ratios, more)


def _tell(figures: dict[str, object], ratios: dict[str, float], more: Sequence[str]) -> int:
    sys.stdout.write("\n| | found | to reach |\n| --- | --- | --- |\n")
    for name, each in ratios.items():
        sys.stdout.write(f"| {name} | {each:.2f} | {TARGETS.get(name, '')} |\n")
    sys.stdout.write("".join(f"{each}\n" for each in more))
    figures["ratios"] = {name: round(each, 2) for name, each in ratios.items()}
    figures["notes"] = list(more)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def _alone(folder: Path, options: argparse.Namespace, ratios: dict[str, float]) -> dict[str, int]:
    measured = alone(folder, options)
    ratios |= alone_summary(measured)
    found = {name: round(each) for name, each in measured.items()}
    sys.stdout.write("\n| alone | rows a second |\n| --- | --- |\n")
    for name, each in found.items():
        sys.stdout.write(f"| {name} | {each:,} |\n")
    sys.stdout.flush()
    return found


def _steps(folder: Path) -> dict[str, float]:
    found = {name: round(each, 1) for name, each in steps(folder).items()}
    sys.stdout.write("\n| of the log alone, a micro-batch's | ms |\n| --- | --- |\n")
    for name, each in found.items():
        sys.stdout.write(f"| {name} | {each:.1f} |\n")
    sys.stdout.flush()
    return found


def _batches(folder: Path, options: argparse.Namespace) -> Batches:
    def tell(side: str, name: str, each: Medians) -> None:
        told = " | ".join(f"{each.get(part, 0):.0f}" for part in PARTS)
        sys.stdout.write(f"| {side} | {name} | {told} |\n")
        sys.stdout.flush()

    def head(what: str) -> None:
        sys.stdout.write(f"\n| {what} | Spark | {' | '.join(PARTS)} |\n")
        sys.stdout.write("| --- " * (2 + len(PARTS)) + "|\n")

    head(f"one run of {options.queries[0]} over")
    found = batches(folder / "batches", options, system, tell)
    head(f"{options.queries[0]} over")
    for side, of in found.items():
        for name, each in of.items():
            tell(side, name, each)
    return found


def _rising(folder: Path, options: argparse.Namespace) -> Queries:
    steps: list[Measured] = []

    def keep(step: Measured) -> None:
        steps.append(step)
        *told, delays = step
        told += [delays.rows, f"{delays.p50:.2f} s", f"{delays.p99:.2f} s"]
        sys.stdout.write(f"| {' | '.join(map(str, told))} |\n")
        sys.stdout.flush()
        if options.keep is not None:
            with options.keep.open("a") as kept:
                kept.write(step.line() + "\n")

    sys.stdout.write("\n| query | over | what for | events a second | rows | p50 | p99 |\n")
    sys.stdout.write("| --- " * 7 + "|\n")
    for query in options.queries:
        rising(folder / "rising", options, query, keep)
    return by_query(steps)


def _told(found: Queries) -> dict[str, dict[str, object]]:
    return {
        query: {
            side: {"held": each.held, "steps": [json.loads(step.line()) for step in each.steps]}
            for side, each in sides.items()
        }
        for query, sides in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
