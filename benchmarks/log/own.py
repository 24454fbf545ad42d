"""The costs of the log, beside rows inserted by hand into a SQLite file on the same disk.

Publishing from 16 threads and from one, in rounds that take turns with the rows; transactions
of 100 messages of 1 KiB; following, and reading one substream; from an append to a follower in
another process, in commits of one writer.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sharedlog
from benchmarks.log.raw import RawRows
from benchmarks.log.reader import Reader, stamped
from benchmarks.log.systems import Plain
from benchmarks.pairs import Spread
from sharedlog import Log

__all__ = ["Tell", "own"]

# Takes a figure's name, what is printed of it, and its numbers.
Tell = Callable[[str, str, dict[str, Any]], None]

_STREAM, _FILLED = "orders", "filled"
_SMALL, _LARGE = os.urandom(200), os.urandom(1024)
_TRANSACTION = 100
_FOLLOWED = 40_000
_APART_S = 0.03
_WAKINGS = 60


def own(url: str, folder: Path, rounds: int, seconds: float, tell: Tell) -> None:
    """Measure a log that is made here."""
    with sharedlog.create(url) as log:
        log.stream(_STREAM)
        tell("durability", log.durability, {"says": log.durability})
        _beside_rows(log, folder, rounds, seconds, tell)
        _in_transactions(log, max(3, rounds // 2), seconds, tell)
        _read(log, tell)
        _woken(log, url, tell)


def _beside_rows(log: Log, folder: Path, rounds: int, seconds: float, tell: Tell) -> None:
    raw = RawRows(folder / "raw.db", indexed=False)
    indexed = RawRows(folder / "indexed.db", indexed=True)
    for threads in (16, 1):
        rates, by_hand, ratios, to_indexed = [], [], [], []
        for _ in range(rounds):
            before = _rate(threads, seconds / 2, lambda: raw.insert(_SMALL))
            rates.append(_rate(threads, seconds, lambda: log.publish(_STREAM, _SMALL)))
            by_hand.append((before + _rate(threads, seconds / 2, lambda: raw.insert(_SMALL))) / 2)
            ratios.append(rates[-1] / by_hand[-1])
            to_indexed.append(
                rates[-1] / _rate(threads, seconds / 2, lambda: indexed.insert(_SMALL))
            )
        # Of one thread, how long it takes; of many, how many there are.
        alone = threads == 1
        plain, other = (
            Spread.of([1 / each for each in found] if alone else found)
            for found in (ratios, to_indexed)
        )
        tell(
            f"publish_{threads}",
            f"{_told(plain)} {'times the latency of a raw row' if alone else 'of raw rows'}, "
            f"{_told(other)} of one with an index "
            f"({statistics.median(rates):,.0f}/s, by hand {statistics.median(by_hand):,.0f}/s)",
            {"raw": plain, "indexed": other, "per_s": round(statistics.median(rates))},
        )
    raw.close()
    indexed.close()


def _in_transactions(log: Log, rounds: int, seconds: float, tell: Tell) -> None:
    for threads in (1, 4):
        producers = [log.producer() for _ in range(threads)]
        turns = itertools.cycle(producers)
        mine = threading.local()

        def publish(turns: Any = turns, mine: Any = mine) -> None:
            if not hasattr(mine, "producer"):
                mine.producer = next(turns)
            with mine.producer.transaction() as transaction:
                for _ in range(_TRANSACTION):
                    transaction.publish(_STREAM, _LARGE)

        spread = Spread.of([_TRANSACTION * _rate(threads, seconds, publish) for _ in range(rounds)])
        tell(f"transactions_{threads}", f"{_told(spread, 0)} messages/s", {"per_s": spread})


def _read(log: Log, tell: Tell) -> None:
    log.stream(_FILLED)
    producer = log.producer()
    for _ in range(_FOLLOWED // _TRANSACTION):
        with producer.transaction() as transaction:
            for _ in range(_TRANSACTION):
                transaction.publish(_FILLED, _LARGE)
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        with log.follow(_FILLED) as messages:
            count = sum(1 for _ in itertools.islice(messages, _FOLLOWED))
        rates.append(count / (time.perf_counter() - began))
    spread = Spread.of(rates)
    tell("follow", f"{_told(spread, 0)} messages/s", {"per_s": spread})
    rates = []
    for _ in range(3):
        after, count = None, 0
        began = time.perf_counter()
        while found := log.read(_FILLED, 3, after):
            after, count = found[-1].position, count + len(found)
        rates.append(count / (time.perf_counter() - began))
    spread = Spread.of(rates)
    tell("read_one", f"{_told(spread, 0)} messages/s of one substream", {"per_s": spread})


def _woken(log: Log, url: str, tell: Tell) -> None:
    publisher, reader = Plain(log), Reader("log", url)
    try:
        reader.meet(publisher)
        commits = []
        for _ in range(_WAKINGS):
            threading.Event().wait(_APART_S)
            began = time.monotonic()
            publisher.publish(stamped(1))
            commits.append(time.monotonic() - began)
        took = reader.seconds(publisher, 1, len(commits))
    finally:
        reader.close()
    commit = statistics.median(commits)
    spread = Spread.of([each / commit for each in took])
    tell(
        "wake",
        f"{_told(spread)} commits from publishing to a follower in another process "
        f"(a commit: {1000 * commit:.2f} ms)",
        {"commits": spread},
    )


def _rate(threads: int, seconds: float, work: Callable[[], object]) -> float:
    """Return how often a second it is done by so many threads."""
    end = time.perf_counter() + seconds
    counts = [0] * threads

    def run(number: int) -> None:
        while time.perf_counter() < end:
            work()
            counts[number] += 1

    started = time.perf_counter()
    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return sum(counts) / (time.perf_counter() - started)


def _told(spread: Spread, digits: int = 2) -> str:
    median, low, high = (f"{each:,.{digits}f}" for each in spread)
    return f"{median} [{low}, {high}]"
