"""``python -m benchmarks.nexmark``: what NEXMark's queries cost over the log, beside Kafka.

``alone``: rows a second of Spark's source and sink for themselves, beside Kafka's and Parquet.
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

from benchmarks.nexmark.parts import SIDES, Found, alone, rising, summary
from benchmarks.nexmark.schemas import OUTPUTS

_RATES = (500, 2000, 5000, 10_000, 20_000, 40_000, 80_000)
_QUICK = {
    "queries": ["q1", "q5", "q8"],
    "sides": ["log", "plain", "kafka"],
    "rates": [500, 5000, 20_000],
    "seconds": 6.0,
    "rows": 200_000,
    "rounds": 2,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print tables, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--only", choices=("alone", "rising"))
    parser.add_argument("--quick", action="store_true", help="about ten minutes of it")
    parser.add_argument("--queries", nargs="+", choices=OUTPUTS)
    parser.add_argument("--sides", nargs="+", choices=SIDES)
    parser.add_argument("--rates", nargs="+", type=int, help="events a second, the slowest first")
    parser.add_argument("--seconds", type=float, help="of a rate")
    parser.add_argument("--rows", type=int, help="of sources and sinks alone: events")
    parser.add_argument("--rounds", type=int, help="of these")
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
        if options.only != "rising":
            figures["alone"] = _alone(folder, options)
        if options.only != "alone":
            figures |= _rising(folder, options)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def _alone(folder: Path, options: argparse.Namespace) -> dict[str, int]:
    found = {name: round(each) for name, each in alone(folder, options).items()}
    sys.stdout.write("\n| alone | rows a second |\n| --- | --- |\n")
    for name, each in found.items():
        sys.stdout.write(f"| {name} | {each:,} |\n")
    sys.stdout.flush()
    return found


def _rising(folder: Path, options: argparse.Namespace) -> dict[str, object]:
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
    ratios = {name: round(each, 2) for name, each in summary(found).items()}
    for name, each in ratios.items():
        sys.stdout.write(f"{name}: {each}\n")
    queries = {
        query: {side: one.figures for side, one in sides.items()} for query, sides in found.items()
    }
    return {"queries": queries, "ratios": ratios}


if __name__ == "__main__":
    sys.exit(main())
