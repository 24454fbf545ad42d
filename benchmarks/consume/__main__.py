"""``python -m benchmarks.consume``: how fast consuming, updating and producing is, beside others.

``throughput``: of messages of 1 KiB that wait, beside loops by hand, the same consumer without its
guarantee, Kafka's transactions and Redis Streams with an inbox. ``latency``: from publication to
effect and output, at a pace. ``takeover``: until the shards of a killed process have effects again.
``recovery``: until a state in the log is read again. ``idle``: processor time of processes that
wait, over SQLite and etcd. Medians of rounds that take turns, with
intervals of about 95 %; only ratios count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.consume.parts import PARTS, Size, run
from benchmarks.deliver.report import Report


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.consume", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=3000, help="of a half of throughput")
    parser.add_argument("--pace", type=float, default=100, help="messages a second, of latency")
    parser.add_argument("--paced", type=int, default=200, help="messages of a half of latency")
    parser.add_argument("--kills", type=int, default=9)
    parser.add_argument("--changes", type=int, default=1_000_000, help="of recovery")
    parser.add_argument("--idle", type=int, default=20, help="processes of idle")
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--without-postgresql", action="store_true")
    parser.add_argument("--kafka", type=Path, metavar="FOLDER", help="of its jars; else without")
    options = parser.parse_args(arguments)
    parts = PARTS if options.only is None else options.only
    if options.kafka is None:
        sys.stdout.write("without Kafka: its jars are not there\n")
    size = Size(
        options.rounds,
        options.messages,
        options.pace,
        options.paced,
        options.kills,
        options.changes,
        options.idle,
        options.idle_seconds,
    )
    report = Report()
    with tempfile.TemporaryDirectory(prefix="rifl-bench-") as name:
        run(
            Path(name),
            parts,
            size,
            report,
            options.kafka,
            postgresql=not options.without_postgresql,
        )
    sys.stdout.write("\n" + report.markdown)
    figures = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), **report.figures}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
