"""The delays: of the player beside a bare fan-out, of applying beside Kafka and Redis Streams.

Transactions of ten keys of a kilobyte over 1 to 20 targets, each with a SQLite file. One is in
flight at a time; the next is published a while after the last was applied by all its targets.

- *Player delay*: from a message's dispatch by the player to its handler's start; of the fan-out,
  from before the first is sent. The handlers do nothing.
- *Apply delay*: from before the transaction is begun to the commit of each handler's effect.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from benchmarks.deliver.board import Board
from benchmarks.deliver.fanout import PAUSE_S
from benchmarks.deliver.fleet import Fleet
from benchmarks.deliver.messages import KEYS, shares
from benchmarks.deliver.publishing import Publisher, Rifl
from benchmarks.deliver.worker import Worker
from benchmarks.pairs import Spread

__all__ = ["Delays", "Side", "ahead", "apply_delays", "in_turns", "player_delays"]

_APPLIED_S = 60.0


class Delays(NamedTuple):
    """Of one round: milliseconds."""

    mean: float
    median: float
    p99: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Delays:
        """Return those of a round's messages."""
        ranked = sorted(each / 1e6 for each in nanoseconds)
        p99 = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
        return cls(statistics.fmean(ranked), statistics.median(ranked), p99)


class Side(NamedTuple):
    """One system: how it is published to, and where its targets say what they did.

    ``numbers``: of the first key of each transaction.
    """

    publisher: Publisher
    board: Board
    numbers: Iterator[int]


def apply_delays(
    side: Side, targets: int, transactions: int, but: Collection[int] = ()
) -> list[int]:
    """Return the apply delays of so many transactions, but those of some targets."""
    found: list[int] = []
    for _ in range(transactions):
        mine = shares(next(side.numbers), targets)
        wanted = [each for target, some in mine.items() if target not in but for each in some]
        began = time.monotonic_ns()
        side.publisher.publish(mine)
        side.board.wait(side.board.committed, wanted, _APPLIED_S)
        found += [side.board.committed[each] - began for each in wanted]
        time.sleep(PAUSE_S)
    return found


def player_delays(
    fleet: Fleet, fanout: Worker, targets: int, rounds: int, transactions: int
) -> dict[str, list[Delays]]:
    """Return the player's delays in rounds, and those of a fan-out by streams, and by calls."""
    side = Side(Rifl(fleet.log, effects=False), fleet.board, fleet.numbers)
    ways: dict[str, Callable[[], list[int]]] = {
        "player": lambda: _played(side, targets, transactions),
        "stream": lambda: _fanned(fleet, side, fanout, "stream", targets, transactions),
        "unary": lambda: _fanned(fleet, side, fanout, "unary", targets, transactions),
    }
    return in_turns(ways, rounds)


def in_turns(ways: dict[str, Callable[[], list[int]]], rounds: int) -> dict[str, list[Delays]]:
    """Run all of them in each round, the order changing; one more before is for warming up."""
    found: dict[str, list[Delays]] = {name: [] for name in ways}
    for counted in range(rounds + 1):
        order = list(ways) if counted % 2 else list(reversed(ways))
        for name in order:
            delays = ways[name]()
            if counted:
                found[name].append(Delays.of(delays))
    return found


def _played(side: Side, targets: int, transactions: int) -> list[int]:
    found: list[int] = []
    board = side.board
    for _ in range(transactions):
        first = next(side.numbers)
        numbers = range(first, first + KEYS)
        side.publisher.publish(shares(first, targets))
        board.wait(board.started, numbers, _APPLIED_S)
        board.wait(board.dispatched, numbers, _APPLIED_S)
        found += [board.started[each] - board.dispatched[each] for each in numbers]
        time.sleep(PAUSE_S)
    return found


def _fanned(
    fleet: Fleet, side: Side, fanout: Worker, kind: str, targets: int, transactions: int
) -> list[int]:
    firsts = [next(side.numbers) for _ in range(transactions)]
    fanout.ask(f"{kind} {firsts[0]} {transactions} {targets}")
    board = fleet.board
    numbers = range(firsts[0], firsts[-1] + KEYS)
    return [board.started[each] - board.dispatched[each] for each in numbers]


def ahead(
    ours: Sequence[Delays], theirs: Sequence[Delays], part: Callable[[Delays], float]
) -> Spread:
    """Return how many times as long theirs take, pair by pair."""
    return Spread.of([part(b) / part(a) for a, b in zip(ours, theirs, strict=True)])
