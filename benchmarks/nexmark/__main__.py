"""``python -m benchmarks.nexmark``: what NEXMark's queries cost over the log, beside Kafka.

``alone``: rows a second of Spark's source and sink for themselves, beside Kafka's and Parquet.
``batches``: where the time of a micro-batch goes, in milliseconds, and what Spark's options change.
``rising``: how long after its event time a row is at the output (p50, p99) as the rate of events
rises, until p99 is four times that of the slowest rate; over the log with its guarantee and without
it, and over Kafka with a flush of each message and without. Windows are of one second. Rough where
the machine does other things, too: the load is told.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.nexmark.batches import PARTS, Batches, batches
from benchmarks.nexmark.parts import (
    SIDES,
    TARGETS,
    Found,
    alone,
    alone_summary,
    rising,
    summary,
    system,
)
from benchmarks.nexmark.schemas import OUTPUTS

# At fewer events there are seconds without a row of some queries.
_RATES = (2000, 5000, 10_000, 20_000, 40_000, 80_000, 160_000)
_QUICK = {
    "queries": ["q1", "q5", "q8"],
    "sides": ["log", "plain", "kafka"],
    "rates": [2000, 10_000, 40_000],
    "seconds": 6.0,
    "rows": 200_000,
    "rounds": 2,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--only", choices=("alone", "batches", "rising"))
    parser.add_argument("--quick", action="store_true", help="a part of it")
    parser.add_argument("--queries", nargs="+", choices=OUTPUTS)
    parser.add_argument("--sides", nargs="+", choices=SIDES)
    parser.add_argument("--rates", nargs="+", type=int, help="events a second, the slowest first")
    parser.add_argument("--seconds", type=float, help="of a rate")
    parser.add_argument("--rows", type=int, help="of sources and sinks alone: events")
    parser.add_argument("--rounds", type=int, help="of these")
    parser.add_argument("--conf", nargs="*", default=[], help="NAME=VALUE, of Spark's")
    parser.add_argument("--kafka", type=Path, metavar="FOLDER", help="of its jars; else without")
    parser.add_argument("--spark-kafka", type=Path, metavar="FOLDER", help="of Spark's jars for it")
    parser.set_defaults(
        queries=list(OUTPUTS), sides=list(SIDES), rates=list(_RATES), seconds=20.0, rows=1_000_000
    )
    parser.set_defaults(rounds=5)
    if "--quick" in (sys.argv[1:] if arguments is None else arguments):
        parser.set_defaults(**_QUICK)
    options = parser.parse_args(arguments)
    if options.kafka is None:
        sys.stdout.write("without Kafka: its jars are not there\n")
        options.sides = [each for each in options.sides if each in ("log", "plain")]
    figures: dict[str, object] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(prefix="rifl-nexmark-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ratios: dict[str, float] = {}
        if options.only in (None, "alone"):
            figures["alone"] = _alone(folder, options, ratios)
        if options.only in (None, "batches"):
            figures["batches"] = _batches(folder, options)
        if options.only in (None, "rising"):
            figures["queries"] = _rising(folder, options, ratios)
    sys.stdout.write("\n| | found | to reach |\n| --- | --- | --- |\n")
    for name, each in ratios.items():
        sys.stdout.write(f"| {name} | {each:.2f} | {TARGETS.get(name, '')} |\n")
    figures["ratios"] = {name: round(each, 2) for name, each in ratios.items()}
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


def _batches(folder: Path, options: argparse.Namespace) -> Batches:
    found = batches(folder / "batches", options, system)
    sys.stdout.write(f"\n| {options.queries[0]} over | Spark | {' | '.join(PARTS)} |\n")
    sys.stdout.write("| --- " * (2 + len(PARTS)) + "|\n")
    for side, of in found.items():
        for name, each in of.items():
            told = " | ".join(f"{each.get(part, 0):.0f}" for part in PARTS)
            sys.stdout.write(f"| {side} | {name} | {told} |\n")
    sys.stdout.flush()
    return found


def _rising(
    folder: Path, options: argparse.Namespace, ratios: dict[str, float]
) -> dict[str, object]:
    found: dict[str, dict[str, Found]] = {}
    sys.stdout.write(
        "\n| query | over | holds | p50, p99 at each rate |\n| --- | --- | --- | --- |\n"
    )
    for query in options.queries:
        found[query] = {}
        for side in options.sides:
            one = found[query][side] = rising(folder / query / side, options, query, side)
            told = "; ".join(f"{rate:,}: {at.p50:.2f} s, {at.p99:.2f} s" for rate, at in one.steps)
            sys.stdout.write(f"| {query} | {side} | {one.held:,} | {told} |\n")
            sys.stdout.flush()
    ratios |= summary(found)
    return {
        query: {side: one.figures for side, one in sides.items()} for query, sides in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
