"""Driver of the product's ``Consumer``, in virtual time: one process, through its lives.

What is put in the place of the product's: the log's engine, the store's way to its database, the
channels to services, and the threads (``strands``).
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.engine import SimulatedEngine
from chaos.sim.consumer.handler import Functions
from chaos.sim.consumer.names import CONSUMER, LETTERS, STREAMS
from chaos.sim.consumer.strands import Event, Strands
from chaos.sim.faults import Fault, Point
from chaos.sim.loop import Process
from sharedlog._consumer.carrying import Carrier
from sharedlog._consumer.consumer import Consumer, opened
from sharedlog._consumer.kept_calls import KeptCalls
from sharedlog._consumer.membership import Membership
from sharedlog._consumer.opening import Together
from sharedlog._consumer.services import ServiceChannels
from sharedlog._consumer.settling import Settling
from sharedlog._consumer.working import ShardWork
from sharedlog._core.consumer.asked import (
    Bury,
    CommitStore,
    Died,
    Fire,
    Passed,
    Resend,
    TakeStore,
)
from sharedlog._core.consumer.calls import Open, SendCall
from sharedlog._core.consumer.one_file import InOneDatabase, InOneFile
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
_SLICE_S, _LEAST_S = 0.2, 0.0005
_TICK = timedelta(seconds=1.5)


class _At:
    """What a strand is about."""

    def __init__(self, point: Point) -> None:
        self.point = point


class _Log:
    """What a consumer needs of a ``Log``."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._engine = place.engine
        self._placing = Placing(place)


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
        self._cast = cast
        self._index = index
        self.name = f"consumer{index}"
        # What strikes may find it at.
        self.courses: dict[Any, None] = {}
        self.process = Process(cast.loop, self.name)
        self.process.alive = False
        self._lives = 0
        self._closing = Event(cast.strands)
        # The shard whose timer fires.
        self.ticked = ""
        # Of shards whose handler called with another thing than before, how often.
        self.strayed: Counter[str] = Counter()
        # It is not started: an operator has stopped all.
        self.held = False
        self.work: ShardWork | None = None

    # Its lives.

    def start(self) -> None:
        """Begin a life, unless it lives."""
        cast = self._cast
        if self.process.alive or cast.over or self.held:
            return
        self._lives += 1
        self.process = cast.life(f"{self.name}.{self._lives}", self.name)
        self.courses = {}
        self.strayed.clear()
        self._closing = Event(cast.strands)
        self.work = None
        cast.strands.begin(self.process, self._main)

    def crash(self, seconds: float) -> None:
        """Die, and begin again so much later."""
        if not self.process.alive:
            return
        self.count(Fault.CRASH)
        self.kill()
        self._cast.loop.after(seconds, self.start)

    def kill(self) -> None:
        """Be killed."""
        if not self.process.alive:
            return
        self._cast.trace(self.process.name, f"dies at {[each.point for each in self.courses]}")
        self.process.kill()
        # Not in the midst of what runs.
        self._cast.loop.after(0.0, self._cast.strands.unwind, self.process)

    def drain(self, seconds: float) -> None:
        """Be asked to end; begin again so much later."""
        if self.process.alive:
            self.count(Fault.DRAIN)
            self._closing.set()
            self._cast.loop.after(seconds, self.start)

    def count(self, fault: Fault) -> None:
        """Count a fault at all that the process is about."""
        for each in self.courses or {_At(Point.IDLE): None}:
            self._cast.coverage.hit(fault, each.point)

    @contextmanager
    def at(self, point: Point) -> Iterator[None]:
        """Be about something."""
        self._cast.trace(self.process.name, point.value)
        about, courses = _At(point), self.courses
        courses[about] = None
        try:
            yield
        finally:
            courses.pop(about, None)

    # One life.

    def _main(self) -> None:
        cast, process = self._cast, self.process
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
        process.kill()
        cast.loop.after(0.0, cast.strands.unwind, process)
        cast.loop.after(again_s * (0.5 + cast.random.random()), self.start)

    def _consume(self) -> None:
        """As ``Consumer.run``, wired as ``Consumer`` wires it."""
        cast, setup = self._cast, self._cast.setup
        engine: Any = SimulatedEngine(cast, self)
        closing: Any = threading.Event()
        place = Place(engine, "", 2.0, closing, "simulated")
        place = place._replace(incarnation=place.run(read_incarnation()))
        log: Any = _Log(place)
        consumer = Consumer(
            log,
            CONSUMER,
            list(STREAMS),
            "log" if setup.store == "log" else "sqlite:///simulated.db",
            attempts=setup.attempts,
            dead_letters=LETTERS if setup.buries else None,
            batch=setup.batch,
        )
        functions = Functions(cast, self)
        for stream in STREAMS:
            consumer.on(stream, str)(functions.handle)
        if setup.timer:
            consumer.every(_TICK)(functions.tick)
        self._run(consumer, place, log)

    def _run(self, consumer: Consumer, place: Place, log: Any) -> None:
        cast, process, strands = self._cast, self.process, self._cast.strands
        setup = cast.setup
        store = opened(lambda: cast.store_of(self, place))
        dice = random.Random(process.name)  # noqa: S311 - repeatable, not secret
        who = f"{dice.getrandbits(64):016x}"
        membership = Membership(
            place, CONSUMER, who, consumer._streams, consumer._lease_s, lambda: False
        )
        membership._closing = Event(strands)  # type: ignore[assignment]
        settings, joined = consumer._settings, None
        if setup.joined:
            alone = setup.store == "sqlite"
            joined = Together(store.append, InOneFile if alone else InOneDatabase, alone=alone)
            settings = settings._replace(keeper=joined.keeper)
        carrier = Carrier(
            CONSUMER,
            place,
            log._placing,
            store,
            consumer._handlers,
            KeptCalls(CONSUMER, place.incarnation),
            ServiceChannels({}),
            batch_s=math.inf,
            dead_letters=consumer._dead_letters,
            together=joined,
        )
        carrier.act = lambda step: self._act(carrier, step)
        aside = place.run if setup.aside and not (joined and joined.alone) else None
        settling = _Aside(strands, process, aside)
        cast.members[membership.who] = process
        work = ShardWork(
            place,
            settings,
            membership,
            carrier,
            settling,
            clock=process.clock,
            ended=cast.has_ended,
        )
        membership.join()
        strands.begin(process, membership._renew)
        self.work = work
        try:
            while not self._closing.is_set():
                if not work.round():
                    self._wait(work, place)
        except Died:
            work.abandon()
            raise
        finally:
            work.sharing.end()
            settling.close()
            membership._closing.set()
            with closing(store), suppress(LogUnavailable):
                membership.part()

    def _wait(self, work: ShardWork, place: Place) -> None:
        """As ``Consumer._wait``."""
        # Virtual time stands still where it is less.
        timeout_s, through = max(min(work.idle_s(), _SLICE_S), _LEAST_S), work.through
        if through < 0:
            self._closing.wait(timeout_s)
        else:
            place.engine.wait(through, timeout_s)

    def _act(self, carrier: Carrier, step: Any) -> Any:
        match step:
            case Open():
                return self._cast.service.open(self, step)
            case SendCall():
                return self._cast.service.send(self, step)
            case Fire(tag):
                self.ticked = tag
            case Bury(message):
                self.strayed.pop(message.tag, None)
            # Of a state in the log: the first of these at each take-over, the other at each commit.
            case TakeStore(tag) | CommitStore(tag) | Resend(tag) | Passed(tag):
                self.strayed.pop(tag, None)
        return carrier.do(step)
