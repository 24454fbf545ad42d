"""The recovery of a state that is in the log, after many changes: without a snapshot, and with one.

One substream, whose messages change a thousand keys each. A process that takes it over reads the
newest snapshot, and the changes behind it, before anything else.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest import mock

import sharedlog
from benchmarks.consume.ours import IN_LOG
from benchmarks.consume.worker import INPUT
from sharedlog._core.consumer.in_log import InLog

__all__ = ["recovered"]

_KEYS = 1000
_BUILD_S = 300.0


def recovered(folder: Path, changes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds that each take-over took, without a snapshot and with one."""
    url = f"sqlite:///{folder / 'state.db'}"
    with sharedlog.create(url) as log:
        log.stream(INPUT, substreams=1)
        producer = log.producer()
        with producer.transaction() as transaction:
            for number in range(changes // _KEYS):
                transaction.publish(INPUT, f"{number}")
        # It takes none by itself.
        with mock.patch.object(InLog, "_due", return_value=False):
            _consumer(log).once()
            without = [_taken_over(log) for _ in range(rounds)]
        # However few changes there are.
        due = mock.patch.object(InLog, "_due", return_value=True)
        with due, _consumer(log)._member() as work:
            end = time.monotonic() + _BUILD_S
            while not _keeper(work) or not _keeper(work).changelog.snapshot.pieces:
                work.round()
                if time.monotonic() > end:
                    raise RuntimeError("no snapshot was taken")
        return without, [_taken_over(log) for _ in range(rounds)]


def _consumer(log: sharedlog.Log) -> sharedlog.Consumer:
    consumer = sharedlog.Consumer(log, "bench", [INPUT], IN_LOG, batch=10)

    @consumer.on(INPUT, str)
    def change(number: str, effects: sharedlog.Effects) -> None:
        for key in range(_KEYS):
            effects.state[f"key {key} of {int(number) % 100}"] = number

    return consumer


def _taken_over(log: sharedlog.Log) -> float:
    began = time.perf_counter()
    with _consumer(log)._member() as work:
        while not (keeper := _keeper(work)) or not keeper.sure:
            work.round()
        return time.perf_counter() - began


def _keeper(work: Any) -> Any:
    """Return what has the state; None: the substream is not this process's yet."""
    return next((own.shard.keeper for own in work._own.values()), None)
