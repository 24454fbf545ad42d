"""A kit for testing what your consumers do when a process crashes, or an answer is lost.

The test drives a consumer in its own thread, over a log in memory (``sharedlog.create("memory:")``)
and a store of the test's own, and crashes it at any step::

    def test_each_order_is_billed_once_wherever_a_process_dies(tmp_path):
        for step in itertools.count(1):
            world = World(tmp_path / str(step))  # a log with messages, and an empty database
            died = sharedlog.testing.die(world.consumer(), before=step)
            sharedlog.testing.drain(world.consumer())
            assert world.bills() == EXPECTED
            if not died:
                break

Do not use it in production.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sharedlog._consumer.consumer import Consumer
from sharedlog._consumer.working import ShardWork
from sharedlog._core.commit import Commit
from sharedlog._core.consumer.asked import (
    AppendWithin,
    Bury,
    CommitStore,
    Died,
    Fire,
    NoteBegun,
    Rewind,
    Run,
    StoreStep,
    TakeStore,
)
from sharedlog._core.consumer.calls import CallStep, Intend, KeepAnswer, SendCall, Unanswered
from sharedlog._core.errors import LogUnavailable, StoreAway
from sharedlog._core.steps import Step

__all__ = ["Driven", "die", "drain", "driven", "lose"]

_CHANGES = (
    *(Commit, TakeStore, Rewind, NoteBegun, Run, Fire, Bury, AppendWithin, CommitStore),
    *(Intend, SendCall, KeepAnswer),
)
# So much later is each round: whatever waits for a time has waited.
_LATER_S = 1000.0
_MOST_ROUNDS = 10_000


class Driven:
    """One process of a consumer, driven by a test; what ``driven`` yields.

    ``steps``: the steps that it has begun and that change something, in their order: in the log,
    in the store, by handlers, or in a service that a handler calls.
    """

    def __init__(self, work: ShardWork) -> None:
        """Use ``driven``."""
        self.steps: list[str] = []
        self.dead = False
        # Called before and after each step, with its number from 1 on and its name.
        self.before: Callable[[int, str], None] = lambda number, name: None
        self.after: Callable[[int, str], None] = lambda number, name: None
        self._work = work
        self._do = work.carrier.do
        work.carrier.act = self._act

    @property
    def shards(self) -> list[str]:
        """The substreams that it has."""
        return self._work.shards

    def round(self) -> int:
        """Run one transaction of each of its substreams; return the number of messages done."""
        return self._work.round()

    def drain(self) -> int:
        """Consume what is there, and return how many messages that were."""
        done = self._work.done
        tail = self._work.tail
        for _ in range(_MOST_ROUNDS):
            if not self._work.round() and self._work.caught_up(tail):
                return self._work.done - done
        raise AssertionError(f"it has not ended after {_MOST_ROUNDS} rounds")

    def die(self) -> None:
        """Be killed, before the current step; its lease is over at once."""
        raise Died

    def _act(self, step: Step | StoreStep | CallStep) -> Any:
        if not isinstance(step, _CHANGES):
            return self._do(step)
        name = _name(step)
        self.steps.append(name)
        number = len(self.steps)
        self.before(number, name)
        found = self._do(step)
        self.after(number, name)
        return found


@contextmanager
def driven(consumer: Consumer) -> Iterator[Driven]:
    """Drive a consumer; at the end it leaves its substreams, unless it crashed."""
    now_s = 0.0

    def later() -> float:
        nonlocal now_s
        now_s += _LATER_S
        return now_s

    with consumer._member(later) as work:
        found = Driven(work)
        try:
            yield found
            work.sharing.end()
        except Died:
            found.dead = True
            work.abandon()


def drain(consumer: Consumer) -> int:
    """Consume what is there, as a new process, and return how many messages that were."""
    with driven(consumer) as process:
        return process.drain()


def die(consumer: Consumer, *, before: int) -> bool:
    """Consume what is there, and crash before a step, from 1 on; False: there were fewer steps."""
    with driven(consumer) as process:

        def kill(number: int, _: str) -> None:
            if number == before:
                process.die()

        process.before = kill
        process.drain()
    return process.dead


def lose(consumer: Consumer, *, of: int) -> bool:
    """Consume what is there, and lose the answer to a step. False: there were fewer steps.

    The log, store or service has done the step, and the consumer does not know.
    """
    lost = False
    with driven(consumer) as process:

        def lose_it(number: int, name: str) -> None:
            nonlocal lost
            if number == of and not name.startswith("handlers"):
                lost = True
                raise _lost(name.partition(":")[0])

        process.after = lose_it
        process.drain()
        return lost or len(process.steps) >= of


def _lost(by: str) -> Exception:
    why = "a test has lost the answer"
    if by == "service":
        return Unanswered(LogUnavailable(why), away=True)
    return (LogUnavailable if by == "log" else StoreAway)(why)


def _name(step: Step | StoreStep | CallStep) -> str:
    match step:
        case Commit(_, puts, entries, _):
            return "log: append" if entries else f"log: {puts[0].key.partition('/')[0]}"
        case TakeStore():
            return "store: take"
        case Rewind():
            return "store: rewind"
        case NoteBegun():
            return "store: note"
        case AppendWithin():
            return "store: append"
        case CommitStore():
            return "store: commit"
        case Intend():
            return "store: intend"
        case SendCall():
            return "service: call"
        case KeepAnswer():
            return "store: answer"
    return f"handlers: {type(step).__name__.lower()}"
