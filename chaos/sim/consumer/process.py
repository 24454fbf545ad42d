"""Driver of the product's ``Consumer``, in virtual time: one process, through its lives.

What is put in the place of the product's: the log's engine, the store's way to its database, the
channels to services, and the threads (``strands``).
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.engine import SimulatedEngine
from chaos.sim.consumer.handler import Functions
from chaos.sim.consumer.names import CONSUMER, LETTERS, STREAMS
from chaos.sim.consumer.strands import Event, Strands
from chaos.sim.faults import Fault, Point
from chaos.sim.loop import Process
from sharedlog._consumer.consumer import Consumer
from sharedlog._consumer.membership import Membership
from sharedlog._consumer.settling import Carry, Settling
from sharedlog._consumer.working import ShardWork
from sharedlog._core.consumer.asked import (
    Bury,
    CommitStore,
    Fire,
    Passed,
    Resend,
    TakeStore,
)
from sharedlog._core.consumer.calls import Open, SendCall
from sharedlog._core.errors import (
    LogError,
    LogUnavailable,
    StoreAway,
)
from sharedlog._core.incarnation import read_incarnation
from sharedlog._log.place import Place
from sharedlog._log.placing import Placing

__all__ = ["ConsumerProcess"]

# How soon its supervisor starts it again.
_AGAIN_S = 0.4
_TICK = timedelta(seconds=1.5)


class _At:
    """What a strand is about."""

    def __init__(self, point: Point) -> None:
        self.point = point


class _Aside(Settling):
    """What shards owe is appended in strands of the process."""

    def __init__(self, strands: Strands, process: Process, aside: Any) -> None:
        super().__init__(None)
        self._aside = aside
        self._strands = strands
        self._process = process
        self._begun: list[Any] = []
        if aside is not None:
            self._pool = self  # type: ignore[assignment]  # it submits

    def submit(self, work: Any, *given: Any) -> Future[Any]:
        """See ``ThreadPoolExecutor``."""
        future = self._strands.begin(self._process, lambda: work(*given), awaited=True)
        self._begun = [each for each in self._begun if not each.done()] + [future]
        return future

    def wait(self, owned: Any) -> bool:
        """See ``Settling``."""
        running = [each.settling for each in owned if each.settling is not None]
        if not running:
            return False
        if not any(each.done() for each in running):
            self._strands.current.sleep(0.002)
        return any(each.done() for each in running)

    def close(self) -> None:
        """See ``Settling``."""
        for each in self._begun:
            each.wait()


class ConsumerProcess:
    """One process, through its lives."""

    def __init__(self, cast: ConsumerCast, index: int) -> None:
        self.cast = cast
        self._index = index
        self.name = f"consumer{index}"
        # What strikes may find it at.
        self.courses: dict[Any, None] = {}
        # What closes what its life has open: the kernel does, at its end.
        self.opened: list[Callable[[], None]] = []
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        self._lives = 0
        self.closing = Event(cast.strands)
        # The shard whose timer fires; it has not read on since then, nor have others.
        self.ticked, self._has_ticked = "", False
        # Of shards whose handler called with another thing than before, how often.
        self.strayed: Counter[str] = Counter()
        # It is not started: an operator has stopped all.
        self.held = False

    # Its lives.

    def start(self) -> None:
        """Begin a life, unless it lives."""
        cast = self.cast
        if self.process.alive or cast.over or self.held:
            return
        self._lives += 1
        self.process = cast.life(f"{self.name}.{self._lives}", self.name)
        self.courses, self.opened = {}, []
        self.strayed.clear()
        self.closing = Event(cast.strands)
        cast.strands.begin(self.process, self._main)

    def crash(self, seconds: float) -> None:
        """Die, and begin again so much later."""
        if not self.process.alive:
            return
        self.count(Fault.CRASH)
        self.kill()
        self.cast.loop.after(seconds, self.start)

    def kill(self) -> None:
        """Be killed."""
        if not self.process.alive:
            return
        self.cast.trace(self.process.name, f"dies at {[each.point for each in self.courses]}")
        self._end(self.process)

    def _end(self, process: Process) -> None:
        """End a life, and with it what it has open, before anything else happens."""
        process.kill()
        if self.cast.strands.parked:
            self._release(process, self.opened)
        else:
            # Not in the midst of what runs.
            self.cast.loop.after(0.0, self._release, process, self.opened)

    def _release(self, process: Process, opened: list[Callable[[], None]]) -> None:
        self.cast.strands.unwind(process)
        for close in opened:
            close()

    def drain(self, seconds: float) -> None:
        """Be asked to end; begin again so much later."""
        if self.process.alive:
            self.count(Fault.DRAIN)
            self.closing.set()
            self.cast.loop.after(seconds, self.start)

    def count(self, fault: Fault) -> None:
        """Count a fault at all that the process is about."""
        for each in self.courses or {_At(Point.IDLE): None}:
            self.cast.coverage.hit(fault, each.point)

    @contextmanager
    def at(self, point: Point) -> Iterator[None]:
        """Be about something."""
        self.cast.trace(self.process.name, point.value)
        about, courses = _At(point), self.courses
        courses[about] = None
        try:
            yield
        finally:
            courses.pop(about, None)

    def reading(self, tag: str | None) -> Point:
        """Return what it is about when it reads a shard's stream.

        In the turn that follows a timer's, the shards before that one read on: their reads are
        the last steps before it reads on itself, without a timer that is due.
        """
        has_ticked, self._has_ticked = self._has_ticked, False
        return Point.TICKED if has_ticked and tag != self.ticked else Point.FOLLOWING

    # One life.

    def _main(self) -> None:
        cast, process = self.cast, self.process
        again_s = _AGAIN_S
        try:
            self._consume()
        except (LogUnavailable, StoreAway) as error:
            cast.trace(process.name, f"ends: {error}")
        except LogError as error:
            cast.trace(process.name, f"ends: {error!r}")
            cast.refused(error)
            again_s *= 2
        except Exception as error:
            if cast.loop.tracing:
                raise
            cast.oracle.broken("raised", f"{process.name}: {error!r}")
        self._end(process)
        cast.loop.after(again_s * (0.5 + cast.random.random()), self.start)

    def _consume(self) -> None:
        cast = self.cast
        engine: Any = SimulatedEngine(cast, self)
        closing: Any = threading.Event()
        place = Place(engine, "", 2.0, closing, "simulated")
        consumer = _Simulated(self, place._replace(incarnation=place.run(read_incarnation())))
        functions = Functions(cast, self)
        for stream in STREAMS:
            consumer.on(stream, str)(functions.handle)
        if cast.setup.timer:
            consumer.every(_TICK)(functions.tick)
        consumer.run()

    def act(self, step: Any, do: Callable[[Any], Any]) -> Any:
        """Carry a step out, as ``do``; what is called is simulated."""
        match step:
            case Open():
                return self.cast.service.open(self, step)
            case SendCall():
                return self.cast.service.send(self, step)
            case Fire(tag):
                self.ticked, self._has_ticked = tag, True
            case Bury(message):
                self.strayed.pop(message.tag, None)
            # Of a state in the log: the first of these at each take-over, the other at each commit.
            case TakeStore(tag) | CommitStore(tag) | Resend(tag) | Passed(tag):
                self.strayed.pop(tag, None)
        return do(step)


class _Simulated(Consumer):
    """The product's, whose threads are strands, over a simulated store."""

    def __init__(self, actor: ConsumerProcess, place: Place) -> None:
        self._actor = actor
        cast, setup = actor.cast, actor.cast.setup
        log: Any = SimpleNamespace(_place=place, _engine=place.engine, _placing=Placing(place))
        super().__init__(
            log,
            CONSUMER,
            list(STREAMS),
            "log" if setup.store == "log" else "sqlite:///simulated.db",
            attempts=setup.attempts,
            dead_letters=LETTERS if setup.buries else None,
            batch=setup.batch,
        )
        self._open_store = lambda: cast.store_of(actor, place)
        self._closing = actor.closing  # type: ignore[assignment]
        self._clock, self._has_ended = actor.process.clock, cast.has_ended
        now_us = lambda: int(actor.process.wall_clock() * 1e6)  # noqa: E731 - of this life
        self._settings = self._settings._replace(now_us=now_us, pass_s=setup.pass_s)

    def _new_membership(self) -> Membership:
        found, process = super()._new_membership(), self._actor.process
        strands = self._actor.cast.strands
        dice = random.Random(process.name)  # noqa: S311 - repeatable, not secret
        found.who = f"{dice.getrandbits(64):016x}"
        found._closing = Event(strands)  # type: ignore[assignment]
        found.dice = dice.random
        self._actor.cast.members[found.who] = process

        def start() -> None:
            renewing: Any = strands.begin(process, found._renew)
            found._thread = renewing

        found.start = start  # type: ignore[method-assign]
        return found

    def _new_settling(self, aside: Carry | None) -> Settling:
        cast = self._actor.cast
        return _Aside(cast.strands, self._actor.process, aside if cast.setup.aside else None)

    @contextmanager
    def _member(self, clock: Callable[[], float] | None = None) -> Iterator[ShardWork]:
        with super()._member(clock) as work:
            do = work.carrier.do
            work.carrier.act = lambda step: self._actor.act(step, do)
            yield work
