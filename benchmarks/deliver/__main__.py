"""``python -m benchmarks.deliver``: how fast deliveries are, beside others.

``delays``: of the player beside a bare fan-out, and of applying beside Kafka's transactions, each
of which is on the disk; ``unsynced``: of applying beside plain Kafka and Redis Streams groups, all
in files in memory; ``stopped``: a target of 20 that is; ``away``: one that missed many messages;
``sustained``: small messages to four targets, beside batched calls of rifl's own client. Medians of
pairs that alternate, with intervals of about 95 %; only ratios count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.deliver.parts import PARTS, measured
from benchmarks.deliver.report import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deliver", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts")
    parser.add_argument("--targets", type=int, nargs="+", default=[1, 5, 10, 20])
    parser.add_argument("--rounds", type=int, default=7, help="pairs")
    parser.add_argument("--transactions", type=int, default=15, help="of each half of a pair")
    parser.add_argument("--away", type=int, default=20_000, help="messages that were missed")
    parser.add_argument("--away-rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=20_000, help="of them, at most, undisturbed")
    parser.add_argument("--pace", type=int, default=500, help="of the main stream, a second")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a half of sustained")
    parser.add_argument("--kafka", type=Path, metavar="FOLDER", help="of its jars; else without")
    options = parser.parse_args(arguments)
    parts = PARTS if options.only is None else options.only
    if options.kafka is None:
        sys.stdout.write("without Kafka: its jars are not there\n")
    report = Report()
    told = 0
    with tempfile.TemporaryDirectory(prefix="rifl-bench-") as name:
        folder = Path(name)
        for part in measured(folder, parts, options, report):
            for row in report.rows[told:]:
                sys.stdout.write(f"  {part:10} {row[0]:55} {row[1]} {row[2]}\n")
            sys.stdout.flush()
            told = len(report.rows)
    sys.stdout.write("\n" + report.markdown)
    figures = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), **report.figures}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
