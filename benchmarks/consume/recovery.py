"""Recovery of a consumer's state from the log: ``python -m benchmarks.consume.recovery``.

A consumer changes its state a million times; then a process that knows nothing reads it: without a
snapshot all changes, with one what it has and what was changed behind it (DESIGN-LOG §14, T4).
Prints a line of JSON for each. Beside wall time it tells the processor's, which other programs on
the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import sharedlog
from sharedlog._core.consumer import in_log
from sharedlog._core.consumer.changelog import Changelog

_PER_MESSAGE = 100
_REPETITIONS = 3


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    given = parser.parse_args()
    for snapshots in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            url = f"sqlite:///{Path(directory) / 'log.db'}"
            _change(url, given.changes, given.keys, snapshots=snapshots)
            found = _recovered(url, given.keys)
        told = {"changes": given.changes, "keys": given.keys, "snapshot": snapshots, **found}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _change(url: str, changes: int, keys: int, *, snapshots: bool) -> None:
    """Have a consumer change its state so often, with or without snapshots on the way."""
    due = in_log._SINCE_BYTES, in_log._ENTRIES
    if not snapshots:
        in_log._SINCE_BYTES = in_log._ENTRIES = 1 << 60
    try:
        with sharedlog.create(url) as log:
            log.stream("in", 1)
            _publish(log, changes // _PER_MESSAGE)
            consumer = sharedlog.Consumer(log, "counting", ["in"], "log")
            done = 0

            @consumer.on("in", bytes)
            def count(_: bytes, effects: sharedlog.Effects) -> None:
                nonlocal done
                for _each in range(_PER_MESSAGE):
                    effects.state[f"key {done % keys:07}"] = {"changed": done}
                    done += 1

            consumer.once()
    finally:
        in_log._SINCE_BYTES, in_log._ENTRIES = due


def _publish(log: sharedlog.Log, messages: int) -> None:
    producer = log.producer()
    for first in range(0, messages, 1000):
        with producer.transaction() as transaction:
            for _ in range(min(1000, messages - first)):
                transaction.publish("in", b"")


def _recovered(url: str, keys: int) -> dict[str, float]:
    """Read the state anew, as who takes over does: the best of three."""
    best = (float("inf"), float("inf"))
    behind = 0
    for _ in range(_REPETITIONS):
        with sharedlog.open(url) as log:
            began = time.perf_counter(), time.process_time()
            state = Changelog("counting", "in/0", log.incarnation, None)
            while log._run(state.read()):
                pass
            best = min(best, (time.perf_counter() - began[0], time.process_time() - began[1]))
            if len(state.table) != keys:
                raise AssertionError(f"{len(state.table)} keys of {keys}")
            behind = state.since
    return {
        "recovery_s": round(best[0], 3),
        "processor_s": round(best[1], 3),
        "bytes_behind_snapshot": behind,
    }


if __name__ == "__main__":
    main()
