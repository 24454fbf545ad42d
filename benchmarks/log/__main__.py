"""``python -m benchmarks.log``: what the shared log costs, beside rows inserted by hand.

Publishing from 16 threads and from one, in rounds that take turns with a hand-written group commit
in a SQLite file on the same disk; transactions of 100 messages of 1 KiB; reading them, all and by
tag; from an append to a waiter in another process, in commits of one writer. Medians over the
rounds, with intervals of about 95 %. Figures are of this machine, now; ``--log URL`` measures
another engine, where the rows by hand are in a file all the same.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.log.raw import RawRows
from benchmarks.pairs import Spread
from sharedlog._core.producers import NewMessage, append, grant
from sharedlog._core.streams import commits_tag, tag_of
from sharedlog._engines.driving import carry_out
from sharedlog._engines.engine import Engine
from sharedlog._engines.opening import create_engine, open_engine

_SMALL, _LARGE = 200, 1024
_SUBSTREAMS = 8
_TRANSACTION = 100
_APART_S = 0.03
_WAKINGS = 60


class _Publisher:
    """A producer of one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._producer = carry_out(engine, grant(os.urandom(16)))
        self._seq = 0
        self._small, self._large = os.urandom(_SMALL), os.urandom(_LARGE)

    def one(self) -> None:
        """Publish a message."""
        self._publish([_message(self._small, self._seq)])

    def transaction(self) -> None:
        """Publish a transaction that is one append."""
        self._publish([_message(self._large, number) for number in range(_TRANSACTION)])

    def _publish(self, messages: list[NewMessage]) -> None:
        self._seq += 1
        carry_out(self._engine, append(self._producer, self._seq, messages))


def _message(body: bytes, number: int) -> NewMessage:
    return NewMessage(body, (tag_of("orders", number % _SUBSTREAMS), commits_tag("orders")))


def main() -> int:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log", description=__doc__)
    parser.add_argument("--log", metavar="URL", help="of a log that is not there yet")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each side of a round")
    parser.add_argument("--follow", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.follow:
        return _follow(arguments.follow)
    with tempfile.TemporaryDirectory() as folder:
        url = arguments.log or f"sqlite:///{folder}/log.db"
        engine, raw = create_engine(url, {}), RawRows(Path(folder, "raw.db"))
        sys.stdout.write(f"{engine.durability}\n")
        try:
            figures = _measure(engine, raw, url, arguments.rounds, arguments.seconds)
        finally:
            engine.close()
            raw.close()
    sys.stdout.write(json.dumps({"cores": os.cpu_count(), **figures}) + "\n")
    return 0


def _measure(engine: Engine, raw: RawRows, url: str, rounds: int, seconds: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}

    def tell(name: str, told: str, **found: Any) -> None:
        figures[name] = found
        sys.stdout.write(f"  {name:13} {told}\n")
        sys.stdout.flush()

    publishers = [_Publisher(engine) for _ in range(16)]
    body = os.urandom(_SMALL)
    for threads in (16, 1):
        ratios, rates, by_hand = [], [], []
        for _ in range(rounds):
            before = _rate(threads, seconds / 2, lambda _: raw.insert(body))
            rates.append(_rate(threads, seconds, lambda number: publishers[number].one()))
            by_hand.append((before + _rate(threads, seconds / 2, lambda _: raw.insert(body))) / 2)
            ratios.append(rates[-1] / by_hand[-1])
        # Of one thread, how long it takes; of many, how many there are.
        spread = Spread.of([1 / each for each in ratios] if threads == 1 else ratios)
        what = "times a raw commit's latency" if threads == 1 else "of raw rows a second"
        tell(
            f"publish_{threads}",
            f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}] {what} "
            f"({statistics.median(rates):.0f}/s, by hand {statistics.median(by_hand):.0f}/s)",
            ratio=spread._asdict(),
            per_s=round(statistics.median(rates)),
        )
    for threads in (1, 4):
        rates = [
            _TRANSACTION * _rate(threads, seconds, lambda number: publishers[number].transaction())
            for _ in range(max(3, rounds // 2))
        ]
        spread = Spread.of(rates)
        tell(
            f"transactions_{threads}",
            f"{spread.median:,.0f} [{spread.low:,.0f}, {spread.high:,.0f}] messages/s",
            per_s=spread._asdict(),
        )
    for name, tag in (("read", None), ("read_tag", tag_of("orders", 3))):
        spread = Spread.of([_read(engine, tag) for _ in range(3)])
        tell(name, f"{spread.median:,.0f} messages/s", per_s=spread._asdict())
    commits, wakes = _followed(publishers[0], url)
    spread = Spread.of([each / statistics.median(commits) for each in wakes])
    tell(
        "wake",
        f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}] commits from an append's begin "
        f"to a waiter in another process (a commit: {1000 * statistics.median(commits):.2f} ms)",
        commits=spread._asdict(),
    )
    return figures


def _rate(threads: int, seconds: float, work: Callable[[int], None]) -> float:
    """Return how often a second it is done by so many threads."""
    end = time.perf_counter() + seconds
    counts = [0] * threads

    def run(number: int) -> None:
        while time.perf_counter() < end:
            work(number)
            counts[number] += 1

    started = time.perf_counter()
    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return sum(counts) / (time.perf_counter() - started)


def _read(engine: Engine, tag: str | None) -> float:
    """Return how many messages a second are read, from the beginning, of the newest ones."""
    after, count = max(0, engine.tail() - 40_000), 0
    started = time.perf_counter()
    while (found := engine.read(after, 1000, tag)).rows:
        count += len(found.rows)
        after = found.through
    return count / (time.perf_counter() - started)


def _followed(publisher: _Publisher, url: str) -> tuple[list[float], list[float]]:
    """Return how long appends took, and how long until the follower woke, seconds."""
    follower = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.log", "--follow", url],
        stdout=subprocess.PIPE,
        text=True,
    )
    if follower.stdout is None:
        raise RuntimeError("the follower has no output")
    commits, wakes = [], []
    try:
        follower.stdout.readline()
        for _ in range(_WAKINGS):
            threading.Event().wait(_APART_S)
            began = time.monotonic()
            publisher.one()
            commits.append(time.monotonic() - began)
            wakes.append(float(follower.stdout.readline()) - began)
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()
    return commits, wakes


def _follow(url: str) -> int:
    engine = open_engine(url)
    tail = engine.tail()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        found = engine.wait(tail, 10.0)
        if found > tail:
            sys.stdout.write(f"{time.monotonic()}\n")
            sys.stdout.flush()
            tail = found


if __name__ == "__main__":
    sys.exit(main())
