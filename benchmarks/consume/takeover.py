"""The taking over of a killed process's shards: ``python -m benchmarks.consume.takeover LOG DB``.

Two processes of a consumer share the substreams; a message comes to each substream again and again.
One process is killed: how long until all substreams of its have effects again?
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import sharedlog
from benchmarks.consume.worker import INPUT, SUBSTREAMS

__all__ = ["taken_over"]

_START_S = 60.0
_EVERY_S, _LOOK_S = 0.02, 0.005


def taken_over(url: str, folder: Path, kills: int) -> list[float]:
    """Return how long each took, in seconds. ``url``: of a log, which is made."""
    folder.mkdir()
    database = folder / "effects.db"
    with contextlib.closing(sqlite3.connect(database)) as effects:
        effects.execute("PRAGMA journal_mode = WAL")
        effects.execute("CREATE TABLE effect (substream INTEGER PRIMARY KEY, pid INT)")
    with sharedlog.create(url) as log, contextlib.ExitStack() as stack:
        log.stream(INPUT, substreams=SUBSTREAMS)
        processes = [_started(stack, url, database) for _ in range(2)]
        closing = threading.Event()
        publishing = threading.Thread(target=_publish, args=(log, closing))
        publishing.start()
        stack.callback(publishing.join)
        stack.callback(closing.set)
        found = []
        for turn in range(kills):
            pids = {each.pid for each in processes}
            _wait(database, pids.__eq__)
            victim = processes[turn % 2]
            victim.kill()
            killed = time.monotonic()
            victim.wait()
            _wait(database, {victim.pid}.isdisjoint)
            found.append(time.monotonic() - killed)
            processes[turn % 2] = _started(stack, url, database)
        return found


def _started(stack: contextlib.ExitStack, url: str, database: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.consume.takeover", url, str(database)]
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _publish(log: sharedlog.Log, closing: threading.Event) -> None:
    with contextlib.suppress(sharedlog.LogError):
        while not closing.wait(_EVERY_S):
            # Without a key the substreams take turns.
            with log.producer().transaction() as transaction:
                for _ in range(SUBSTREAMS):
                    transaction.publish(INPUT, b"")


def _owners(database: Path) -> dict[int, int]:
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as effects:
        return dict(effects.execute("SELECT substream, pid FROM effect"))


def _wait(database: Path, there: Callable[[set[int]], bool]) -> None:
    """Wait until the processes that had the substreams last are as they should be."""
    end = time.monotonic() + _START_S
    while len(owners := _owners(database)) < SUBSTREAMS or not there(set(owners.values())):
        if time.monotonic() > end:
            raise RuntimeError(f"the processes have {owners}")
        time.sleep(_LOOK_S)


def main(url: str, database: str) -> None:
    """Consume until it is killed."""
    with sharedlog.open(url) as log:
        consumer = sharedlog.Consumer(log, "bench", [INPUT], f"sqlite:///{database}")

        @consumer.on(INPUT)
        def note(message: sharedlog.Message, effects: sharedlog.Effects) -> None:
            effects.connection.execute(
                "INSERT INTO effect VALUES (?, ?) "
                "ON CONFLICT (substream) DO UPDATE SET pid = excluded.pid",
                (message.substream, os.getpid()),
            )

        consumer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
