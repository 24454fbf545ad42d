"""A group whose log's disk is slow for a while: whether calls are answered meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc

import rifl
from chaos.group_processes import GroupProcesses
from chaos.run.slow_disk import slow_disks

__all__ = ["SYNC_MS", "WRITE_MS", "SlowLog", "slow_log"]

# How much longer each write into a file takes, and each sync of one.
WRITE_MS, SYNC_MS = 25, 400
_CALLERS = 4

# Makes one call of a channel's, by the number of who calls.
Call = Callable[[rifl.Channel, int], object]


class SlowLog(NamedTuple):
    """While the disk was slow: answers, the longest time without one, leads that were lost."""

    answers: int
    pause_s: float
    lost: int


def slow_log(directory: Path, log: str, seconds: float, call: Call) -> SlowLog:
    """Have the disk of all replicas be slow for so long, and callers go on."""
    running = GroupProcesses(directory, "benchmarks.keyed", log)
    disk = slow_disks(["log"], directory)["log"]
    for address in running.replicas:
        running.environments[address] = dict(disk.environment)
    with running, rifl.connect(running.replicas, follow_leaders=True) as channel:
        answered, ended = [time.monotonic()], threading.Event()

        def go_on(number: int) -> None:
            while not ended.is_set():
                with contextlib.suppress(grpc.RpcError):
                    call(channel, number)
                    answered.append(time.monotonic())

        for _ in range(20):
            call(channel, 0)
        callers = [threading.Thread(target=go_on, args=(each,)) for each in range(_CALLERS)]
        before = _lost(directory)
        disk.slow_down(WRITE_MS, 0, SYNC_MS)
        began = time.monotonic()
        for each in callers:
            each.start()
        time.sleep(seconds)
        over = time.monotonic()
        lost = _lost(directory) - before
        ended.set()
        disk.slow_down(-WRITE_MS, 0, -SYNC_MS)
        for each in callers:
            each.join()
    at = [began, *sorted(each for each in answered if began < each < over), over]
    pause_s = max(later - earlier for earlier, later in itertools.pairwise(at))
    return SlowLog(len(at) - 2, pause_s, lost)


def _lost(directory: Path) -> int:
    """Return how often a replica lost the lead to another, or its lease."""
    return sum(each.read_text().count("stepped_down") for each in directory.glob("*.err"))
