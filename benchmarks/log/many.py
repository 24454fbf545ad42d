"""A log of a million entries: how long it takes to open, and to read a thousand of them by tag.

They are written by a process that is killed, so that the first to open the log finds it as a
crash leaves it. ``python -m benchmarks.log.many URL ENTRIES`` is that process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import sharedlog
from benchmarks.log.own import Tell
from benchmarks.pairs import Spread

__all__ = ["many"]

_RARE, _COMMON = "rare", "orders"
_WANTED = 1000
_BODY = bytes(100)
_ROUNDS = 9


def many(folder: Path, entries: int, tell: Tell) -> None:
    """Fill two logs in SQLite files, and tell what the large one costs beside the small one."""
    large, small = (f"sqlite:///{folder}/{name}.db" for name in ("large", "small"))
    began = time.perf_counter()
    for url, count in ((small, _WANTED), (large, entries)):
        subprocess.run([sys.executable, "-m", "benchmarks.log.many", url, str(count)], check=False)
    filled = time.perf_counter() - began
    first = _opened(large)
    spread = Spread.of([_opened(large) for _ in range(_ROUNDS)])
    tell(
        "open",
        f"{first:.3f} s after a kill, {spread.median:.4f} s otherwise, with {entries:,} entries "
        f"(written in {filled:.0f} s)",
        {"entries": entries, "after_a_kill_s": round(first, 4), "s": spread},
    )
    with sharedlog.open(large) as of_many, sharedlog.open(small) as of_few:
        pairs = [(_seconds(of_many), _seconds(of_few)) for _ in range(_ROUNDS)]
    spread = Spread.of([of_many / of_few for of_many, of_few in pairs])
    tell(
        "tagged",
        f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}] times what {_WANTED:,} "
        f"messages cost in a log that has no others, {_WANTED:,} of {entries:,}",
        {"ratio": spread},
    )


def _opened(url: str) -> float:
    """Return how long it takes until a log is open and has read its end."""
    began = time.perf_counter()
    with sharedlog.open(url) as log:
        log.read(_RARE, 0, "end")
        return time.perf_counter() - began


def _seconds(log: Any) -> float:
    began = time.perf_counter()
    found = log.read(_RARE, 0, None, _WANTED)
    took = time.perf_counter() - began
    if len(found) != _WANTED:
        raise RuntimeError(f"{len(found)} messages of {_WANTED}")
    return took


def main() -> None:
    """Write so many entries, evenly a thousand of them with a rare tag, and die."""
    url, entries = sys.argv[1], int(sys.argv[2])
    log = sharedlog.create(url)
    log.stream(_RARE, substreams=1)
    log.stream(_COMMON)
    producer = log.producer()
    for _ in range(_WANTED):
        with producer.transaction() as transaction:
            transaction.publish(_RARE, _BODY)
            for _ in range(entries // _WANTED - 1):
                transaction.publish(_COMMON, _BODY)
    os._exit(0)


if __name__ == "__main__":
    main()
