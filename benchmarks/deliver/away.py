"""The targets that are away: one that is stopped among 20, and one that missed much.

- A target is stopped in every other round: how the others' apply delays change.
- A target was away while so many messages were published, which others took. How fast it catches
  up, by itself and while the main stream goes on to another target; each time into a new index.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.deliver.delays import Delays, Side, apply_delays, in_turns
from benchmarks.deliver.fleet import Fleet
from benchmarks.deliver.messages import APPLY, EVERYBODY, small
from sharedlog import Log

__all__ = ["CatchUp", "beside_a_stopped_one", "caught_up"]

# After that it counts as down.
_PATIENCE_S = 1.0
_AT_ONCE = 500
_STUCK_S = 60.0


def beside_a_stopped_one(
    fleet: Fleet, side: Side, targets: int, rounds: int, transactions: int
) -> dict[str, list[Delays]]:
    """Return the apply delays of the others in rounds, while the last target is stopped or not."""
    last = targets - 1
    fleet.play(
        [
            *(fleet.declared(each) for each in range(last)),
            fleet.declared(last, patience=_PATIENCE_S),
        ]
    )

    def stopped() -> list[int]:
        fleet.targets[last].halt()
        try:
            return apply_delays(side, targets, transactions, but={last})
        finally:
            fleet.targets[last].go_on()
            fleet.fed()

    ways = {"stopped": stopped, "all": lambda: apply_delays(side, targets, transactions, {last})}
    return in_turns(ways, rounds)


class CatchUp(NamedTuple):
    """Deliveries a second, of each round: by itself, and while the main stream goes on."""

    alone: list[float]
    beside: list[float]
    # What was published meanwhile, a second.
    main: list[float]


def caught_up(fleet: Fleet, messages: int, rounds: int, pace: int, alone: int) -> CatchUp:
    """Have target 1 catch up in rounds; target 0 is fed ``pace`` messages a second meanwhile.

    ``alone``: how many messages it catches up with where it is by itself.
    """
    publish_many(fleet.log, messages)
    here = fleet.declared(0, everybody=True, start="end")
    fleet.play([here])
    numbers = itertools.count(1)
    found = CatchUp([], [], [])
    for counted in range(rounds):
        for beside in (True, False) if counted % 2 else (False, True):
            away = fleet.declared(1, everybody=True, number=next(numbers))
            if beside:
                with _going_on(fleet.log, pace) as published:
                    rate, took_s = _rate(fleet, [here, away], messages)
                    found.beside.append(rate)
                    found.main.append(published[0] / took_s)
            else:
                found.alone.append(_rate(fleet, [here, away], min(alone, messages))[0])
            fleet.play([here])
    return found


def publish_many(log: Log, messages: int) -> None:
    """Publish so many small messages to everybody."""
    producer = log.producer()
    for first in range(0, messages, _AT_ONCE):
        with producer.transaction() as transaction:
            for _ in range(min(_AT_ONCE, messages - first)):
                transaction.publish_call(EVERYBODY, APPLY, small())


def _rate(fleet: Fleet, targets: list[dict[str, Any]], messages: int) -> tuple[float, float]:
    counts, before = fleet.board.counts, fleet.board.counts[1]
    fleet.declare(targets)
    while counts[1] == before:
        time.sleep(0.001)
    began, first = time.monotonic(), counts[1]
    grew_s, seen = began, first
    while counts[1] - before < messages:
        time.sleep(0.005)
        now = time.monotonic()
        if counts[1] != seen:
            grew_s, seen = now, counts[1]
        elif now - grew_s > _STUCK_S:
            raise TimeoutError(f"{seen - before} of {messages} messages were caught up with")
    took_s = time.monotonic() - began
    return (counts[1] - first) / took_s, took_s


@contextmanager
def _going_on(log: Log, pace: int) -> Iterator[list[int]]:
    """Publish at this pace meanwhile; what was published."""
    ended, published = threading.Event(), [0]

    def run() -> None:
        producer, began = log.producer(), time.monotonic()
        while not ended.wait(0.01):
            due = int((time.monotonic() - began) * pace) - published[0]
            if due > 0:
                with producer.transaction() as transaction:
                    for _ in range(due):
                        transaction.publish_call(EVERYBODY, APPLY, small())
                published[0] += due

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield published
    finally:
        ended.set()
        thread.join()
