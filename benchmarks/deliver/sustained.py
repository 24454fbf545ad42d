"""The sustained rate: small messages to four targets, beside batched calls of rifl's own client.

Each message is for every target, whose handler writes it in a transaction that deliveries share.
The publisher stays a little ahead; in the other half of a pair the same handlers are called in
batches, several of which are in flight at each target. Either half lasts for so long, and until as
much was done as the callers have in flight at once: on a machine that is busy with something else,
a window of time alone would count what is finished in it of the one and all that was begun in it
of the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.deliver.away import publish_many
from benchmarks.deliver.caller import BATCH, UNDER_WAY
from benchmarks.deliver.fleet import Fleet
from benchmarks.deliver.worker import Worker

__all__ = ["Rates", "sustained", "window"]

# Messages that are published and not yet taken by the slowest target, about.
_AHEAD = 4000
_AT_ONCE = 500
# Of each target, before it is measured: the player reads, and all of them commit.
_WARM = 500
_STUCK_S = 60.0


class Rates(NamedTuple):
    """Of each round, at all targets together, a second."""

    deliveries: list[float]
    calls: list[float]


def sustained(fleet: Fleet, rounds: int, seconds: float) -> Rates:
    """Measure in rounds, with all targets of a fleet."""
    found = Rates([], [])
    fleet.play([fleet.declared(each, everybody=True) for each in range(len(fleet.targets))])
    with Worker("caller", *fleet.ports) as caller:
        for counted in range(rounds + 1):
            for ours in (True, False) if counted % 2 else (False, True):
                rate = _delivered(fleet, seconds) if ours else float(caller.ask(str(seconds)))
                if counted:
                    (found.deliveries if ours else found.calls).append(rate)
    return found


def _delivered(fleet: Fleet, seconds: float) -> float:
    counts, targets = fleet.board.counts, range(len(fleet.targets))
    ended = threading.Event()
    began = [counts[each] for each in targets]
    published = 0

    def least() -> int:
        return min(counts[each] - began[each] for each in targets)

    def publish() -> None:
        nonlocal published
        while not ended.is_set():
            if published - least() < _AHEAD:
                publish_many(fleet.log, _AT_ONCE)
                published += _AT_ONCE
            else:
                time.sleep(0.005)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        _wait(lambda: least() >= _WARM)
        enough = len(targets) * UNDER_WAY * BATCH
        count, took_s = window(lambda: sum(counts[each] for each in targets), seconds, enough)
    finally:
        ended.set()
        thread.join()
    _wait(lambda: least() >= published)
    return count / took_s


def window(counted: Callable[[], int], seconds: float, enough: int) -> tuple[int, float]:
    """Wait for so long, and until so much was counted; return how much, and the seconds."""
    first, from_s = counted(), time.monotonic()
    time.sleep(seconds)
    _wait(lambda: counted() >= first + enough)
    return counted() - first, time.monotonic() - from_s


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + _STUCK_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("messages were not delivered")
        time.sleep(0.005)
