"""Machinery: what the processes of one simulated player share."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from chaos.sim.event_loop import EventLoop
from chaos.sim.log.cast import Cast
from chaos.sim.loop import Process
from sharedlog._core.catalog import make_stream
from sharedlog._core.envelope import About, pack
from sharedlog._core.producers import NewMessage

__all__ = ["LETTERS", "LOG", "METHODS", "PLAYER", "STREAMS", "PlayerCast"]

PLAYER = "player"
# By which targets know the log.
LOG = "log"
LETTERS = "deadletters"
# Substreams of each stream, and the method that its messages call.
STREAMS = {"orders": 3, "audit": 2}
METHODS = {"orders": "/shop.v1.Orders/Take", "audit": "/shop.v1.Audit/Note"}
TAGS = tuple(f"{name}/{number}" for name, count in STREAMS.items() for number in range(count))
_EPOCH_US = 1_800_000_000_000_000
# Of messages: those that say their method, and those that say one that no client may call.
_SAYING, _FORBIDDEN = 0.3, 0.01


class Weather:
    """What is wrong between players and targets, until when."""

    def __init__(self) -> None:
        self.stalled: dict[tuple[int, int], float] = {}
        self.slow: dict[tuple[int, int], float] = {}
        self.copied_until = 0.0

    def heal(self) -> None:
        """Let everything through from now on."""
        self.stalled.clear()
        self.slow.clear()
        self.copied_until = 0.0


class PlayerCast(Cast):
    """Time, dice, the log, the ways to targets, and who judges."""

    def __init__(self, seed: int, *, tracing: bool) -> None:
        super().__init__(seed, tracing=tracing)
        self.weather = Weather()
        # Calls between players and targets that go on.
        self.calls: dict[Any, None] = {}
        # What was sent on each connection, by the link's number, the target, and the term.
        self.links = 0
        self.sent: dict[tuple[int, int, int], list[tuple[str, int, int]]] = {}
        # Which targets are sent streams; the others are sent batches.
        self.streams: list[bool] = []
        self.loops: list[EventLoop] = []
        # Ids of stores that were put back from a backup, and declared so; and those that an
        # operator adopted: of which target, for the index of which number.
        self.adoptable: set[str] = set()
        self.adopted: set[tuple[str, int, str]] = set()
        # By what each life of a player's process is known as the one that leads.
        self.lives: list[tuple[Process, bytes]] = []
        # How often each handler ran with a message: by target, and the message's body.
        self.tries: Counter[tuple[int, bytes]] = Counter()
        for name, count in STREAMS.items():
            self.server.carry_out(make_stream(name, count))
        self.server.carry_out(make_stream(LETTERS, 1))

    def events(self, process: Process) -> EventLoop:
        """Return an event loop of a process's life."""
        broken = self.oracle.broken
        found = EventLoop(  # type: ignore[abstract]  # nothing asks for sockets and signals
            process, lambda text: broken("raised", f"{process.name}: {text}")
        )
        self.loops.append(found)
        return found

    def messages(self, call: int, part: int, count: int) -> list[NewMessage]:
        """Return the messages of one append of a call: always the same."""
        dice = Random(f"{self.seed} {call} {part}")  # noqa: S311 - repeatable, not secret
        found = []
        for at in range(count):
            tag = dice.choice(TAGS)
            stream = tag.partition("/")[0]
            method = METHODS[stream] if dice.random() < _SAYING else ""
            if dice.random() < _FORBIDDEN:
                method = "/shop.v1.Orders/Drop"
            body = f"{call}.{part}.{at}".encode()
            about = About(method=method)
            found.append(NewMessage(pack(body, None, about, _EPOCH_US), (tag,)))
        return found
