"""The idle processes of a consumer: ``python -m benchmarks.consume.idle LOG STORE`` is one.

So many of them share a partition each, and no message comes: how much processor time do they take,
of one core?
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import sharedlog
from benchmarks.consume.worker import INPUT
from benchmarks.served import Server, process

__all__ = ["idle"]

_SETTLED_S = 3.0
_START_S = 120.0


def idle(url: str, folder: Path, processes: int, seconds: float) -> float:
    """Return the part of one core that they take together. ``url``: of a log, which is made."""
    store = f"sqlite:///{folder / 'effects.db'}"
    with sharedlog.create(url) as log, contextlib.ExitStack() as stack:
        log.stream(INPUT, substreams=processes)
        started = [
            Server(*stack.enter_context(process("benchmarks.consume.idle", url, store)))
            for _ in range(processes)
        ]
        end = time.monotonic() + _START_S
        # Each has its hold once it has taken its partition over.
        while len(log.holds()) < processes:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(log.holds())} of {processes} partitions are followed")
            time.sleep(0.1)
        time.sleep(_SETTLED_S)
        before, began = sum(each.cpu_s() for each in started), time.monotonic()
        time.sleep(seconds)
        return (sum(each.cpu_s() for each in started) - before) / (time.monotonic() - began)


def main(url: str, store: str) -> None:
    """Consume until it is killed."""
    with sharedlog.open(url) as log:
        consumer = sharedlog.Consumer(log, "bench", [INPUT], store)

        @consumer.on(INPUT)
        def ignore(message: sharedlog.Message, effects: sharedlog.Effects) -> None:
            del message, effects

        print("ready", flush=True)
        consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
