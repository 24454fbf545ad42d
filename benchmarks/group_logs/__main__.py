"""``python -m benchmarks.group_logs``: appends to each log engine, and how soon a follower hears.

One writer appends batches of 1, 10 and 100 entries of 300 bytes with one tag, one
append after the other, each durable before the next. A follower in a process of its own
waits for appends 50 ms apart: the time from the append's return to its waking. Then its
processor time while nothing happens. Figures are of this machine, now.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from curp.log import create_log, open_engine
from curp.log._commits import GroupLog
from curp.log._values import NewLogEntry
from examples.redis_process import running_redis

_BODY = bytes(300)
_BATCHES = (1, 10, 100)
_APART_S = 0.05
_WAKINGS = 60
_IDLE_S = 2.0


def main() -> int:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_logs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of appends, for each figure")
    parser.add_argument("--follow", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow:
        return _follow(arguments.follow)
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        figures["sqlite"] = _measure(
            "SQLite", f"sqlite:///{folder}/log.db?group=bench", arguments.seconds
        )
        with running_redis(Path(folder)) as socket:
            figures["redis"] = _measure("Redis", f"unix://{socket}?group=bench", arguments.seconds)
    sys.stdout.write(json.dumps({"cores": os.cpu_count(), **figures}) + "\n")
    return 0


def _measure(name: str, url: str, seconds: float) -> dict[str, Any]:
    create_log(url)
    engine = open_engine(url)
    try:
        sys.stdout.write(f"{name}. {engine.durability}\n")
        number = engine.take_leadership("bench", "", term_s=3600.0)
        figures: dict[str, Any] = {}
        for batch in _BATCHES:
            times = _appends(engine, number, batch, seconds)
            figures[f"append_{batch}"] = {
                "median_ms": _ms(statistics.median(times)),
                "p99_ms": _ms(statistics.quantiles(times, n=100)[98]),
                "entries_per_s": round(batch * len(times) / sum(times)),
            }
            sys.stdout.write(f"  append of {batch:3}: {figures[f'append_{batch}']}\n")
        figures["follower"] = _followed(engine, number, url)
        sys.stdout.write(f"  follower: {figures['follower']}\n")
    finally:
        engine.close()
    return figures


def _appends(engine: GroupLog, number: int, batch: int, seconds: float) -> list[float]:
    entries = [NewLogEntry(_BODY, ("bench",))] * batch
    times: list[float] = []
    tail = engine.tail()
    while sum(times) < seconds or len(times) < 10:
        name = uuid.uuid4().bytes
        start = time.perf_counter()
        tail = engine.append(entries, configuration=number, expected_tail=tail, append_id=name)
        times.append(time.perf_counter() - start)
    return times


def _followed(engine: GroupLog, number: int, url: str) -> dict[str, float]:
    follower = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.group_logs", "--follow", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if follower.stdout is None:
        raise RuntimeError("the follower has no output")
    try:
        follower.stdout.readline()
        tail, delays = engine.tail(), []
        for _ in range(_WAKINGS):
            threading.Event().wait(_APART_S)
            name = uuid.uuid4().bytes
            tail = engine.append(
                [NewLogEntry(_BODY)], configuration=number, expected_tail=tail, append_id=name
            )
            returned = time.monotonic()
            woken = float(follower.stdout.readline())
            # It may wake before the append has returned here.
            delays.append(max(0.0, woken - returned))
        before = _cpu_s(follower.pid)
        threading.Event().wait(_IDLE_S)
        idle = (_cpu_s(follower.pid) - before) / _IDLE_S
    finally:
        follower.kill()
        follower.wait()
    return {
        "median_ms": _ms(statistics.median(delays)),
        "longest_ms": _ms(max(delays)),
        "idle_cpu_percent": round(100 * idle, 1),
    }


def _follow(url: str) -> int:
    engine = open_engine(url)
    tail = engine.tail()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        found = engine.wait(tail, timeout_s=10.0)
        if found > tail:
            sys.stdout.write(f"{time.monotonic()}\n")
            sys.stdout.flush()
            tail = found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


if __name__ == "__main__":
    sys.exit(main())
