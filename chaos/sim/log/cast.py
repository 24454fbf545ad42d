"""Machinery: what the processes of one simulated log share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random

from chaos.sim.faults import Coverage, Point
from chaos.sim.log.course import Actor
from chaos.sim.log.oracle import Oracle
from chaos.sim.log.server import LogServer
from chaos.sim.loop import Loop, Process
from chaos.sim.planned import Schedule
from chaos.sim.result import Result
from sharedlog._core.producers import NewMessage

__all__ = ["TAGS", "Cast"]

# Substreams of two streams.
TAGS = ("orders/0", "orders/1", "orders/2", "audit/0", "audit/1")


class Cast:
    """Time, dice, the log, and who judges."""

    def __init__(self, seed: int, *, tracing: bool) -> None:
        self.loop = Loop(tracing=tracing)
        self.random = Random(f"log world {seed}")  # noqa: S311 - repeatable, not secret
        self.coverage = Coverage()
        self.server = LogServer(self.loop, self.random, self.coverage)
        self.oracle = Oracle()
        self.seed = seed
        self.over = False
        # No more faults come.
        self.healed = False
        # What the clocks of machines show beside the truth, by who runs there.
        self.offsets: dict[str, float] = {}
        # Producers whose spans only a store's owner decides.
        self.homes: set[int] = set()
        # Strikes that wait for an actor at a point, and for which actors.
        self.aims: dict[Point, list[tuple[Callable[[Actor], bool], Callable[[Actor], None]]]] = {}
        # What must fail once an actor has asked for something.
        self.outages: dict[Point, list[Callable[[], None]]] = {}

    def until(self, done: Callable[[], bool], within_s: float, *, look_s: float = 0.1) -> None:
        """Let things happen until that is so, at most for so long."""
        loop = self.loop
        until = loop.now + within_s
        while loop.now < until and not done():
            loop.run(min(loop.now + look_s, until))

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Have what a run raises be a problem of it, but for one that is traced."""
        try:
            yield
        except Exception as error:
            if self.loop.tracing:
                raise
            self.oracle.problems.append(f"raised: {type(error).__name__}: {error}")

    def result(self, schedule: Schedule, began: float, outcomes: Mapping[str, int]) -> Result:
        """Return what came of a run that ``began`` then, by the process's time."""
        return Result(
            schedule.kind,
            schedule.seed,
            self.oracle.problems,
            len(schedule.calls),
            len(schedule.faults),
            self.loop.events,
            self.loop.now,
            time.process_time() - began,
            self.coverage,
            dict(outcomes),
            self.loop.lines,
        )

    def life(self, name: str, machine: str = "") -> Process:
        """Return a process that begins, with the clock of its machine."""
        return Process(self.loop, name, wall_offset_s=self.offsets.get(machine or name, 0.0))

    def trace(self, who: str, text: str) -> None:
        """Add a line to the log of events."""
        self.loop.trace(who, text)

    def reached(self, actor: Actor, point: Point) -> None:
        """Have what waited for this strike soon: before, while or after the engine does it.

        What was asked for just now meets an outage that waited for it.
        """
        for begin in self.outages.pop(point, ()):
            begin()
        if point in self.aims:
            waiting = self.aims.pop(point)
            for wanted, strike in waiting:
                if wanted(actor):
                    self.loop.after(0.004 * self.random.random(), strike, actor)
                else:
                    self.aims.setdefault(point, []).append((wanted, strike))

    def messages(self, call: int, part: int, count: int) -> list[NewMessage]:
        """Return the messages of one append of a call: always the same."""
        dice = Random(f"{self.seed} {call} {part}")  # noqa: S311 - repeatable, not secret
        found = []
        for at in range(count):
            tags = dice.sample(TAGS, 2 if dice.random() < 0.2 else 1)
            found.append(NewMessage(f"{call}.{part}.{at}".encode(), tuple(sorted(tags))))
        return found
