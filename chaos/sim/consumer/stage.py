"""Machinery: what the processes of a consumer and the ways between them share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, Protocol

from chaos.sim.consumer.names import LETTERS, OUTPUTS, STREAMS, TAGS
from chaos.sim.consumer.strands import Strands
from chaos.sim.faults import Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.onlooker import Asked
from chaos.sim.loop import Process
from sharedlog._core.catalog import make_stream
from sharedlog._core.commit import Commit
from sharedlog._core.envelope import About, pack
from sharedlog._core.producers import NewMessage

__all__ = ["Acting", "Plan", "Pointed", "Setup", "Stage", "chained", "read_first"]

_OUTPUTS = 4
# Of a message that publishes much: more than an append has; or no more, with those before it.
_MANY, _MANY_OF_ONE = 20, 8
_EPOCH_US = 1_800_000_000_000_000


class Acting(Protocol):
    """A process of the consumer, as what it asks for knows it."""

    process: Process
    courses: dict[Any, None]
    # What closes what its life has open, at its end.
    opened: list[Callable[[], None]]
    # The shard whose timer fires.
    ticked: str
    # Of shards whose handler called with another thing than before, how often.
    strayed: Counter[str]

    def start(self) -> None:
        """Begin a life, unless it lives."""

    def crash(self, seconds: float) -> None:
        """Die, and begin again so much later."""

    def at(self, point: Point) -> AbstractContextManager[None]:
        """Be about something."""

    def reading(self, tag: str | None) -> Point:
        """Return what it is about when it reads a shard's stream."""


class Setup(NamedTuple):
    """What a consumer of a run is.

    ``store``: ``sqlite``, ``postgres``, ``redis`` or ``log``. ``buries``: there are dead letters.
    ``calls``: its handlers call a service. ``aside``: what shards owe is appended in other threads.
    ``resets``: an operator has all be done again, from the beginning. ``joined``: the log is in the
    store's database, and what handlers publish is in its transactions. ``pass_s``: how often idle
    shards move their checkpoints.
    """

    store: str
    processes: int
    batch: int
    attempts: int
    buries: bool
    calls: bool
    aside: bool
    timer: bool
    resets: bool
    joined: bool
    pass_s: float


class Plan(NamedTuple):
    """What a handler does with a message: always the same.

    It fails so often before it does not, ends its process so often, makes so many calls and
    publishes so many messages. ``hides``: it goes on without what a call did not answer.
    ``strays``: what it calls with is another thing each time.
    ``spoils``: over Redis, so often a command fails as the transaction commits; ``late``: behind
    its effects.
    """

    fails: int
    kills: int
    calls: int
    outputs: int
    hides: bool
    spoils: int
    late: bool
    strays: bool


class Stage(Cast):
    """Time, dice, the log, who judges; and what waits for the log."""

    def __init__(self, seed: int, setup: Setup, *, tracing: bool) -> None:
        super().__init__(seed, tracing=tracing)
        self.setup = setup
        self.strands = Strands(lambda text: self.oracle.broken("raised", text))
        # How often the handler ran with each message.
        self.tries: Counter[str] = Counter()
        # Calls whose answer some handler had.
        self.heard: set[str] = set()
        for name, count in STREAMS.items():
            self.server.carry_out(make_stream(name, count))
        self.server.carry_out(make_stream(OUTPUTS, _OUTPUTS))
        self.server.carry_out(make_stream(LETTERS, 1))
        self.plan = lru_cache(None)(self._plan)
        # Who waits for the log to grow.
        self.wakers: list[Callable[[], object]] = []
        self.server.watchers.append(self._grown)
        # The store has no room until then.
        self.full_until = 0.0

    def messages(self, call: int, part: int, count: int) -> list[NewMessage]:
        """Return the messages of one append of a call: always the same."""
        dice = Random(f"{self.seed} {call} {part}")  # noqa: S311 - repeatable, not secret
        found = []
        for at in range(count):
            body = f"{call}.{part}.{at}".encode()
            found.append(NewMessage(pack(body, None, About(), _EPOCH_US), (dice.choice(TAGS),)))
        return found

    def _plan(self, body: str) -> Plan:
        dice = Random(f"{self.seed} plan {body}")  # noqa: S311 - repeatable, not secret
        fails = kills = 0
        fate = dice.random()
        if fate < 0.01:
            # Without dead letters an operator mends it, and lets it go on.
            fails = 1_000_000 if self.setup.buries else self.setup.attempts + 2
        elif fate < 0.05:
            fails = dice.randint(1, 3)
        elif fate < 0.06:
            kills = dice.randint(1, 2)
        elif fate < 0.063 and self.setup.buries:
            kills = 1_000_000
        alone = self.setup.joined and self.setup.store == "sqlite"
        many = _MANY_OF_ONE if alone else _MANY
        outputs = dice.choice((0, 1, 1, 2, 3)) if dice.random() < 0.9 else many
        calls = dice.choice((1, 1, 2, 3)) if self.setup.calls and dice.random() < 0.3 else 0
        hides = dice.random() < 0.3
        spoils = dice.randint(1, 2) if self.setup.store == "redis" and dice.random() < 0.04 else 0
        late = dice.random() < 0.6
        strays = bool(calls) and self.setup.buries and dice.random() < 0.05
        if strays:
            fails = max(fails, 1)
        return Plan(fails, kills, calls, outputs, hides, spoils, late, strays)

    def _grown(self, asked: Asked, commit: Commit) -> None:
        del asked
        if commit.entries:
            waiting, self.wakers = self.wakers, []
            for wake in waiting:
                wake()


def _at(name: str, point: Point) -> Any:
    """Return a method of a store's that is about something."""

    def act(self: Pointed, *given: Any, **named: Any) -> Any:
        with self.about(point):
            return getattr(super(Pointed, self), name)(*given, **named)

    return act


class Pointed:
    """A lane of the product's that says what its requests are about; by default a handler's."""

    point = Point.HANDLER
    take = _at("take", Point.STORE_TAKEN)
    rewind = _at("rewind", Point.STORE_TAKEN)
    calls = _at("calls", Point.STORE_TAKEN)
    note = _at("note", Point.NOTE)
    intend = _at("intend", Point.INTENDED)
    answered = _at("answered", Point.ANSWER_KEPT)
    commit = _at("commit", Point.STORE_COMMIT)

    @contextmanager
    def about(self, point: Point) -> Iterator[None]:
        """Be about something."""
        before, self.point = self.point, point
        try:
            yield
        finally:
            self.point = before


def read_first(store: str, shard: str) -> bool:
    """Whether handlers read what is there: over Redis that takes a transaction for each message."""
    return store != "redis" or shard.startswith("orders/")


def chained(chain: str, body: str, answers: list[str]) -> str:
    """Return what a substream's effects hash to, with one more: their order shows in it."""
    return hashlib.blake2b(repr((chain, body, answers)).encode(), digest_size=8).hexdigest()
