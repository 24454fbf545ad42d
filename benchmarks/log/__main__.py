"""``python -m benchmarks.log``: what the shared log costs, beside rows by hand and others.

``own``: beside rows inserted by hand into a SQLite file. ``beside``: beside Redis Streams, a
table with LISTEN/NOTIFY, and Kafka. ``many``: with a million entries. ``followed``: a served log
with many followers: processor time of the server, and deliveries. Medians over rounds that
take turns, with intervals of about 95 %; figures are of this machine, now.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.log.beside import beside
from benchmarks.log.followed import followed
from benchmarks.log.many import many
from benchmarks.log.own import own
from benchmarks.pairs import Spread

_PARTS = ("own", "many", "beside", "followed")


def main() -> int:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log", description=__doc__)
    parser.add_argument("--only", choices=_PARTS, help="this part")
    parser.add_argument(
        "--log", metavar="URL", help="of a log that is not there yet, instead of one in SQLite: own"
    )
    parser.add_argument("--rounds", type=int, default=11, help="of own")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each side of its rounds")
    parser.add_argument("--entries", type=int, default=1_000_000, help="of many")
    parser.add_argument("--followers", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--followed-seconds", type=float, default=10.0)
    parser.add_argument("--beside-rounds", type=int, default=7)
    parser.add_argument("--beside-seconds", type=float, default=1.0)
    parser.add_argument("--kafka", type=Path, metavar="FOLDER", help="of its jars; else without")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"cores": os.cpu_count()}

    def tell(name: str, told: str, found: dict[str, Any]) -> None:
        figures[name] = {key: _plain(value) for key, value in found.items()}
        sys.stdout.write(f"  {name:14} {told}\n")
        sys.stdout.flush()

    parts = _PARTS if arguments.only is None else (arguments.only,)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "own" in parts:
            url = arguments.log or f"sqlite:///{folder}/log.db"
            own(url, folder, arguments.rounds, arguments.seconds, tell)
        if "followed" in parts:
            followed(folder, arguments.followers, arguments.followed_seconds, tell)
        if "many" in parts:
            many(folder, arguments.entries, tell)
    if "beside" in parts:
        if arguments.kafka is None:
            sys.stdout.write("  without Kafka: its jars are not there\n")
        table, found = beside(arguments.beside_rounds, arguments.beside_seconds, arguments.kafka)
        figures["beside"] = found
        sys.stdout.write(table)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def _plain(value: Any) -> Any:
    return [round(each, 4) for each in value] if isinstance(value, Spread) else value


if __name__ == "__main__":
    sys.exit(main())
