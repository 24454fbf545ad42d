"""Driver of the product's ``Leading`` of a player: processes of which one leads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.course import Course
from chaos.sim.loop import Process
from chaos.sim.player.cast import LETTERS, LOG, PLAYER, PlayerCast
from chaos.sim.player.log_calls import SimulatedCalls
from chaos.sim.player.network import Path, SimulatedLink
from chaos.sim.player.target import SimulatedTarget
from sharedlog._core.errors import LogError
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.player.feeder import FeederState
from sharedlog._log.place import Place
from sharedlog._player.declared import PlayerSettings, Target, check_targets
from sharedlog._player.leading import Leading
from sharedlog._player.outside import Outside
from sharedlog._player.watching import PlayerWatchers

__all__ = ["PlayerProcess"]

_TAKEOVER = timedelta(seconds=2)
_STATES = {
    FeederState.S: Point.TARGET_S,
    FeederState.ASKED: Point.TARGET_ASKED,
    FeederState.RF: Point.TARGET_RF,
    FeederState.FC: Point.TARGET_FC,
    FeederState.N: Point.TARGET_N,
}


class PlayerProcess:
    """One process that may lead, through its lives."""

    def __init__(
        self,
        cast: PlayerCast,
        index: int,
        declared: Sequence[Target],
        targets: Sequence[SimulatedTarget],
    ) -> None:
        self._cast = cast
        self.index = index
        self.name = f"player{index}"
        self._declared = declared
        self._targets = {each.setup.name: each for each in targets}
        self.courses: dict[Course, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        self._lives = 0
        self._leading: Leading | None = None
        self._closing: asyncio.Event | None = None

    def start(self) -> None:
        """Begin a life, unless it lives."""
        cast = self._cast
        if self.process.alive or cast.over:
            return
        self._lives += 1
        self.process = cast.life(self.name)
        self.courses.clear()
        self._leading = None
        self._events = cast.events(self.process)
        Course(cast, self, read_incarnation, Point.FOLLOWING, self._opened).go()

    def crash(self, seconds: float) -> None:
        """Die, and begin again so much later."""
        if not self.process.alive:
            return
        self.count(Fault.CRASH)
        self._cast.trace(self.name, "dies")
        self.process.kill()
        for call in self._calls():
            call.break_off()
        self._cast.loop.after(seconds, self.start)

    def drain(self, seconds: float) -> None:
        """Close in order, and begin again so much later."""
        if self.process.alive and self._closing is not None:
            self.count(Fault.DRAIN)
            self._events.call_soon(self._closing.set)
            self._cast.loop.after(seconds, self._again)

    def _again(self) -> None:
        self.process.kill()
        self.start()

    @property
    def leads(self) -> bool:
        """Whether it sends, as it last knew."""
        leading = self._leading
        return self.process.alive and leading is not None and leading.fence is not None

    def at(self, point: Point) -> bool:
        """Whether it is about something."""
        return any(each is point for each in self._points())

    def count(self, fault: Fault) -> None:
        """Count a fault at all that it is about."""
        points = self._points() or [Point.IDLE]
        for point in points:
            self._cast.coverage.hit(fault, point)

    def _points(self) -> list[Point]:
        found = [each.point for each in self.courses]
        if self.leads and self._leading is not None:
            found += [_STATES[each.feeder.state] for each in self._leading.courses.values()]
            found += [each.point for each in self._calls()]
        return found

    def _calls(self) -> list[Any]:
        return [each for each in self._cast.calls if each.back.to is self._events.process]

    def _opened(self, incarnation: str | None, error: LogError | None) -> None:
        cast = self._cast
        if incarnation is None:
            cast.oracle.broken("refused", f"{self.name}: {error!r}")
            return
        place = Place(None, incarnation, 2.0, threading.Event(), "simulated")  # type: ignore[arg-type]  # it is asked by ``Outside``
        settings = PlayerSettings(PLAYER, LOG, LETTERS, _TAKEOVER)
        settings.targets = check_targets(self._declared, LETTERS)
        process, who = self.process, f"{self.index}{self._lives:07d}".encode()
        cast.lives.append((process, who))
        outside = Outside(
            lambda _: SimulatedCalls(cast, self),
            self._link,
            lambda: int(process.wall_clock() * 1e6),
            cast.random.random,
            who,
            f"{self.name}:{self._lives}",
        )
        self._leading = Leading(place, settings, PlayerWatchers(PLAYER, ()), outside)
        self._closing = asyncio.Event()
        self._events.create_task(self._lead(self._leading, self._closing))

    async def _lead(self, leading: Leading, closing: asyncio.Event) -> None:
        try:
            await leading.run(closing)
        except Exception as error:  # noqa: BLE001 - nothing may end it
            self._cast.oracle.broken("raised", f"{self.name}: {type(error).__name__}: {error}")

    def _link(self, declared: Target) -> SimulatedLink:
        target = self._targets[declared.name]
        find: Callable[[], Any] = target.find
        path = Path(self._cast, self.index, target.index)
        patience_s = declared.patience.total_seconds()
        return SimulatedLink(self._cast, self, self._events, find, path, patience_s)
