"""Machinery: one schedule of a consumer, its processes, what strikes them, what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from unittest.mock import patch

from _rifl_ground.postgres import marked
from chaos.sim.consumer.cast import ConsumerCast
from chaos.sim.consumer.judge import Judge
from chaos.sim.consumer.operator import Operator
from chaos.sim.consumer.process import ConsumerProcess
from chaos.sim.consumer.schedule import setup_of
from chaos.sim.faults import ALL, Fault, PlannedFault, Point
from chaos.sim.log.course import Actor, count
from chaos.sim.log.keeper import Sweeping, Trimmer
from chaos.sim.log.sweeper import Sweeper
from chaos.sim.log.writer import Writer
from chaos.sim.loop import Process
from chaos.sim.planned import Schedule
from chaos.sim.result import Result
from sharedlog._core.consumer import in_log, snapshots

__all__ = ["simulate_consumer"]

_AFTERMATH_S = 120.0
_SETTLING_S = 2.0
# Processes that are stopped go on so often when another one has taken over from them, or does.
_WOKEN, _LEASE_S, _AFTER_S = 0.7, 0.9, (0.006, 0.006, 0.3)


class _Run:
    def __init__(self, schedule: Schedule, *, tracing: bool) -> None:
        self.schedule = schedule
        self.cast = cast = ConsumerCast(schedule.seed, setup_of(schedule), tracing=tracing)
        self.sweeper = Sweeper(cast)
        self.writers = [
            Writer(cast, index, schedule.setting, self.sweeper, keeps=index % 2 == 1)
            for index in range(schedule.setting.clients)
        ]
        # Of what a backup has not done, or a reset has done again, nothing is trimmed: it would be
        # lost, and refused.
        backed_up = cast.setup.resets or any(
            each.fault is Fault.RESTORE for each in schedule.faults
        )
        self.keepers = [
            *(Trimmer(cast, index) for index in range(0 if backed_up else 2)),
            *(Sweeping(cast, index) for index in range(2)),
        ]
        self.consumers = [ConsumerProcess(cast, index) for index in range(cast.setup.processes)]
        self.operator = Operator(cast, self.consumers)
        self.actors: list[Actor] = [*self.consumers, *self.writers, *self.keepers]
        self.judge = Judge(cast)

    def run(self) -> None:
        """Let everything happen, then heal, and wait until all is done."""
        loop, schedule = self.cast.loop, self.schedule
        for actor in self.actors:
            actor.start()
        self.operator.start()
        for call in schedule.calls:
            loop.at(call.at, None, self.writers[call.client].call, call)
        for fault in schedule.faults:
            loop.at(fault.at, None, self._strike, fault)
        ends = [call.at for call in schedule.calls]
        ends += [fault.at + fault.seconds for fault in schedule.faults]
        loop.run(max(ends, default=0.0) + 0.5)
        self._heal()
        self._until(lambda: all(each.idle() for each in self.writers))
        for writer in self.writers:
            if not writer.idle():
                self.cast.oracle.broken("stuck", f"{writer.name} never ends")
        left = {int(key.split("/")[1]) for key in self.cast.server.log.keys if self._is_left(key)}
        for producer in sorted(left):
            self.sweeper.retire(producer)
        self._until(lambda: not self.sweeper.courses)
        loop.run(loop.now + 0.1)
        self._until(self.judge.all_done)
        self.judge.tell_what_is_left()
        # Nothing comes behind it.
        loop.run(loop.now + _SETTLING_S)
        self.cast.over = True
        self.judge.judge()

    def close(self) -> None:
        """Release the threads, and close the database."""
        self.cast.over = True
        self.cast.strands.close()
        self.cast.database.close()

    def _is_left(self, key: str) -> bool:
        """Whether only its own producer can decide a span."""
        kind, _, rest = key.partition("/")
        keys = self.cast.server.log.keys
        return kind == "span" and f"producer/{rest.split('/')[0]}/home" not in keys

    def _heal(self) -> None:
        cast = self.cast
        cast.trace("world", "all faults end")
        cast.healed = True
        cast.aims.clear()
        cast.outages.clear()
        cast.server.heal()
        cast.store_wire.heal()
        cast.service.wire.heal()
        cast.full_until = 0.0
        for actor in self.actors:
            actor.process.stopped_until = 0.0
            actor.start()

    def _until(self, done: Callable[[], bool]) -> None:
        loop = self.cast.loop
        until = loop.now + _AFTERMATH_S
        while loop.now < until and not done():
            loop.run(min(loop.now + 0.25, until))

    # What goes wrong.

    def _strike(self, planned: PlannedFault) -> None:
        cast, fault = self.cast, planned.fault
        cast.trace("world", str(planned))
        until, server = cast.loop.now + planned.seconds, cast.server
        wires = (cast.store_wire, cast.service.wire)
        match fault:
            case Fault.CRASH | Fault.STOP if planned.target == ALL and planned.aim is not None:
                self._aim(planned, planned.aim)
            case _ if planned.target == ALL and planned.aim is not None:
                begin = partial(self._begin_outage, planned)
                cast.outages.setdefault(planned.aim, []).append(begin)
            case Fault.CRASH | Fault.STOP if planned.aim is not None:
                aimed = (_is_consumer, partial(self._strike_one, planned))
                cast.aims.setdefault(planned.aim, []).append(aimed)
            case Fault.CRASH | Fault.STOP:
                self._strike_one(planned, self.actors[planned.target % len(self.actors)])
            case Fault.DRAIN:
                self.consumers[planned.target % len(self.consumers)].drain(planned.seconds)
            case Fault.FULL_DISK | Fault.STORE_STALL if planned.aim is not None:
                aimed = (_is_consumer, partial(self._strike_store, planned))
                cast.aims.setdefault(planned.aim, []).append(aimed)
            case Fault.STORE_LOSS if planned.target % 3:
                wire = wires[planned.target % 3 - 1]
                wire.loss, wire.lossy_until = 0.6 * planned.share, until
            case Fault.STORE_LOSS:
                server.loss, server.lossy_until = 0.6 * planned.share, until
            case Fault.STORE_STALL if planned.target % 3:
                wires[planned.target % 3 - 1].stalled_until = until
            case Fault.STORE_STALL:
                server.stalled_until = until
            case Fault.DUPLICATE:
                server.copied_until = until
            case Fault.FULL_DISK:
                cast.full_until = until
            case Fault.WALL_JUMP:
                self._jump(planned)
            case Fault.RESTORE if cast.setup.store != "log":
                cast.database.backup()
                cast.loop.after(planned.seconds, self._restore)
            case Fault.WIPE if planned.aim is not None:
                cast.aims.setdefault(planned.aim, []).append((_is_consumer, lambda _: self._wipe()))
            case Fault.WIPE:
                self._wipe()

    def _restore(self) -> None:
        """Put the store back as it was, while no process runs."""
        cast = self.cast
        if cast.healed:
            return
        cast.trace("world", "the store is as it was")
        cast.coverage.hit(Fault.RESTORE, Point.IDLE)
        for each in self.consumers:
            each.kill()
            cast.loop.after(0.1 + cast.random.random(), each.start)
        cast.store_wire.cut()
        cast.restore()

    def _wipe(self) -> None:
        """Have the service forget what it was called, if the setup gives such messages up."""
        if self.cast.setup.buries:
            self.cast.coverage.hit(Fault.WIPE, Point.IDLE)
            self.cast.service.wipe()

    def _aim(self, planned: PlannedFault, point: Point) -> None:
        """Strike a process at a point: where one is past it by then, wait for the next one."""

        def strike(actor: Actor) -> None:
            if any(each.point is point for each in actor.courses):
                self._strike_one(planned, actor)
            elif not self.cast.healed:
                self._aim(planned, point)

        self.cast.aims.setdefault(point, []).append((_is_consumer, strike))

    def _begin_outage(self, planned: PlannedFault) -> None:
        """Have the log, the store and the service fail all at once."""
        cast, until = self.cast, self.cast.loop.now + planned.seconds
        for each in (cast.server, cast.store_wire, cast.service.wire):
            match planned.fault:
                case Fault.FULL_DISK:
                    cast.full_until = until
                case Fault.STORE_STALL:
                    each.stalled_until = until
                case Fault.STORE_LOSS:
                    each.loss, each.lossy_until = 1.0, until

    def _strike_store(self, planned: PlannedFault, _: Actor) -> None:
        """Have the store be full, or away, when a process has just reached a point."""
        cast, until = self.cast, self.cast.loop.now + planned.seconds
        if cast.healed:
            return
        if planned.fault is Fault.FULL_DISK:
            cast.full_until = until
        else:
            cast.store_wire.stalled_until = until

    def _strike_one(self, planned: PlannedFault, actor: Actor) -> None:
        if planned.fault is Fault.CRASH:
            actor.crash(planned.seconds)
        elif actor.process.alive:
            if isinstance(actor, ConsumerProcess):
                actor.count(planned.fault)
            else:
                count(self.cast, actor, planned.fault)
            actor.process.stop(planned.seconds)
            if isinstance(actor, ConsumerProcess) and planned.share < _WOKEN:
                self.cast.loop.after(_LEASE_S, self._wake, actor.process)

    def _wake(self, process: Process) -> None:
        """Have a process that was taken for dead go on at any step of its successor's (T1)."""
        cast = self.cast

        def others(actor: Actor) -> bool:
            return isinstance(actor, ConsumerProcess) and actor.process is not process

        def strike(_: Actor) -> None:
            cast.loop.after(cast.random.choice(_AFTER_S) * cast.random.random(), go_on)

        def go_on() -> None:
            if process.stopped_until > cast.loop.now:
                cast.trace(process.name, "goes on, as another takes over")
                process.go_on()

        at = Point.FENCING if cast.setup.store == "log" else Point.STORE_TAKEN
        if process.alive and process.stopped_until > cast.loop.now:
            cast.aims.setdefault(at, []).append((others, strike))

    def _jump(self, planned: PlannedFault) -> None:
        """Have a machine's clock show another time, ahead more often than behind."""
        jumping: Sequence[ConsumerProcess] = self.consumers
        actor = jumping[planned.target % len(jumping)]
        seconds = (planned.share - 0.25) * 100.0 * planned.seconds
        self.cast.coverage.hit(planned.fault, Point.IDLE)
        self.cast.offsets[actor.name] = actor.process.wall_offset_s = seconds


def _is_consumer(actor: Actor) -> bool:
    return isinstance(actor, ConsumerProcess)


@contextmanager
def _scaled() -> Iterator[None]:
    """Have a simulated server be sent what libpq would send, and states be small."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(marked, "execute", attrgetter("sent")))
        # So that there are snapshots, of several pieces.
        stack.enter_context(patch.object(in_log, "_SINCE_BYTES", 1500))
        stack.enter_context(patch.object(snapshots, "_PIECE_BYTES", 600))
        yield


def simulate_consumer(schedule: Schedule, *, tracing: bool = False) -> Result:
    """Run a schedule of a consumer to its end, and check what is in its tables and its log."""
    began = time.process_time()
    run = _Run(schedule, tracing=tracing)
    cast = run.cast
    problems = cast.oracle.problems
    try:
        with _scaled():
            run.run()
            run.close()
    except Exception as error:
        if tracing:
            raise
        problems.append(f"raised: {type(error).__name__}: {error}")
        run.close()
    return Result(
        schedule.kind,
        schedule.seed,
        problems,
        len(schedule.calls),
        len(schedule.faults),
        cast.loop.events,
        cast.loop.now,
        time.process_time() - began,
        cast.coverage,
        cast.oracle.outcomes() | run.judge.outcomes(),
        cast.loop.lines,
    )
