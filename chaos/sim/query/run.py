"""Machinery: one schedule of queries, who runs them, what strikes, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Actor, count
from chaos.sim.log.keeper import Trimmer
from chaos.sim.planned import PlannedCall, Schedule
from chaos.sim.query.attempt import TaskRun
from chaos.sim.query.checkpoint import Checkpoint
from chaos.sim.query.closer import Closer
from chaos.sim.query.driver import Driver
from chaos.sim.query.job import Job
from chaos.sim.query.judge import judge, left_of
from chaos.sim.query.onlooker import QueryOnlooker
from chaos.sim.query.publisher import Publisher
from chaos.sim.query.sweeper import PlanSweeper
from chaos.sim.result import Result
from sharedlog._core.incarnation import read_incarnation
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine

__all__ = ["simulate_query"]

_AFTERMATH_S = 30.0
_COPIES = 2
_OF_SERVERS = (Fault.STORE_LOSS, Fault.STORE_STALL, Fault.DUPLICATE)


class _Run:
    def __init__(self, schedule: Schedule, *, tracing: bool) -> None:
        self.schedule = schedule
        self.cast = cast = Cast(schedule.seed, tracing=tracing)
        self.incarnation = carry_out(MemoryEngine(cast.server.log), read_incarnation())
        cast.server.seen = QueryOnlooker()
        self.publisher = Publisher(cast)
        # One whose sink is Spark's, and its copies; one that appends by a function.
        self.streaming = [self._driver("pay", Checkpoint("id-pay", "/first"), within=False)]
        self.within = self._driver("each", Checkpoint("id-each", "/each"), within=True)
        self.jobs: list[Job] = []
        self.keepers = [
            *(Trimmer(cast, index) for index in range(2)),
            *(PlanSweeper(cast, index) for index in range(2)),
        ]

    @property
    def drivers(self) -> list[Driver]:
        """All who run queries."""
        return [*self.streaming, self.within]

    def run(self) -> None:
        """Let everything happen, then heal, and wait until all is read and written."""
        loop, schedule, cast = self.cast.loop, self.schedule, self.cast
        self._start()
        for call in schedule.calls:
            loop.at(call.at, None, self._call, call)
        for fault in schedule.faults:
            loop.at(fault.at, None, self._strike, fault)
        ends = [call.at for call in schedule.calls]
        ends += [fault.at + fault.seconds for fault in schedule.faults]
        loop.run(max(ends, default=0.0) + 0.5)
        cast.trace("world", "all faults end")
        cast.healed = True
        cast.aims.clear()
        cast.outages.clear()
        cast.server.heal()
        for actor in self._actors():
            actor.process.stopped_until = 0.0
        rows = sum(call.method == "publish" for call in schedule.calls)
        self._until(lambda: self.publisher.idle() and all(each.idle() for each in self.jobs))
        for job in self.jobs:
            if not job.idle():
                cast.oracle.broken("stuck", f"{job.name} never ends")
        for end in (self._last_copy, lambda: self._done(self.within)):
            if not end():
                cast.oracle.broken("stuck", "a query never reads everything")
        for driver in self.drivers:
            driver.end()
        # Sweepers have the rest.
        self._until(lambda: not left_of(cast))
        cast.over = True
        last = max(self.streaming, key=lambda each: each.checkpoint.noted)
        judge(cast, [last, self.within], self.jobs, rows)

    def _driver(self, name: str, checkpoint: Checkpoint, *, within: bool) -> Driver:
        return Driver(self.cast, name, self.incarnation, checkpoint, within=within)

    def _start(self) -> None:
        self.publisher.start()
        starting: list[Actor] = [*self.drivers, *self.keepers]
        for actor in starting:
            actor.start()

    def _call(self, planned: PlannedCall) -> None:
        if planned.method == "publish":
            self.publisher.publish(f"{planned.number}".encode())
            return
        name = f"{planned.method}-{planned.number}"
        rows = [f"{name} {at}".encode() for at in range(planned.messages)]
        forgotten = planned.method == "forgotten"
        named = forgotten or planned.method == "job"
        job = Job(self.cast, name, rows, named=named, forgotten=forgotten)
        self.jobs.append(job)
        job.start()

    def _last_copy(self) -> bool:
        """Have one copy go on alone, the newest that may.

        Which that is the log knows: one that died may have committed what it did not note.
        """
        while alive := [each for each in self.streaming if not each.over]:
            newest = max(alive, key=lambda each: each.checkpoint.noted)
            for each in alive:
                each.rest(rests=each is not newest)
            if self._done(newest):
                return True
            if not newest.over:
                return False
        return False

    def _done(self, driver: Driver) -> bool:
        driver.start()
        server = self.cast.server
        self._until(lambda: driver.over or driver.caught_up(server.log.tail))
        return not driver.over and driver.process.alive

    def _until(self, done: Callable[[], bool]) -> None:
        self.cast.until(done, _AFTERMATH_S)

    # -- faults ----------------------------------------------------------------------------

    def _actors(self) -> list[Actor]:
        owners: list[Driver | Job] = [*self.drivers, *self.jobs]
        found: list[Actor] = [*owners, *self.keepers]
        for owner in owners:
            if owner.batch is not None:
                found += owner.batch.running()
                found += [each for each in (owner.batch.closer(),) if each is not None]
        return found

    def _strike(self, planned: PlannedFault) -> None:
        cast, fault = self.cast, planned.fault
        if cast.loop.tracing:
            cast.trace("world", f"fault: {planned}")
        if fault in _OF_SERVERS:
            begin = partial(self._begin, planned)
            if planned.aim is None:
                begin()
            else:
                cast.outages.setdefault(planned.aim, []).append(begin)
        elif planned.aim is not None:
            aimed = (partial(_is_for, fault), partial(self._strike_one, planned))
            cast.aims.setdefault(planned.aim, []).append(aimed)
        else:
            actors = [each for each in self._actors() if _is_for(fault, each)]
            if actors:
                self._strike_one(planned, actors[planned.target % len(actors)])

    def _begin(self, planned: PlannedFault) -> None:
        """Have the log's server fail for a while."""
        server, until = self.cast.server, self.cast.loop.now + planned.seconds
        if planned.fault is Fault.STORE_LOSS:
            server.loss = 0.6 * planned.share if planned.aim is None else 1.0
            server.lossy_until = until
        elif planned.fault is Fault.STORE_STALL:
            server.stalled_until = until
        else:
            server.copied_until = until

    def _strike_one(self, planned: PlannedFault, actor: Actor) -> None:
        cast, fault = self.cast, planned.fault
        if fault is Fault.CRASH:
            actor.crash(planned.seconds)
        elif fault is Fault.WALL_JUMP:
            keeper = self.keepers[planned.target % len(self.keepers)]
            cast.coverage.hit(fault, Point.IDLE)
            seconds = (planned.share - 0.25) * 100.0 * planned.seconds
            cast.offsets[keeper.name] = keeper.process.wall_offset_s = seconds
        elif fault is Fault.STOP and actor.process.alive:
            count(cast, actor, fault)
            actor.process.stop(planned.seconds)
        elif fault is Fault.TASK_FAILED and isinstance(actor, TaskRun):
            actor.fail()
        elif fault is Fault.SPECULATION and isinstance(actor, TaskRun):
            owner = actor.owner
            batch = owner.batch if isinstance(owner, Driver | Job) else None
            if batch is not None and batch.speculate(actor):
                count(cast, actor, fault)
        elif fault is Fault.COPY:
            self._copy(actor)

    def _copy(self, actor: Actor) -> None:
        """Have an operator start a copy of a checkpoint beside the driver that uses it."""
        driver = actor.owner if isinstance(actor, TaskRun | Closer) else actor
        if not isinstance(driver, Driver) or driver.within or len(self.streaming) > _COPIES:
            return
        count(self.cast, actor, Fault.COPY)
        place = f"/copy{len(self.streaming)}"
        self.cast.trace("world", f"{driver.process.name}'s checkpoint is copied to {place}")
        copy = self._driver(driver.name, driver.checkpoint.copy(place), within=False)
        self.streaming.append(copy)
        for each in self.streaming:
            each.copied = True
        copy.start()


def _is_for(fault: Fault, actor: Actor) -> bool:
    """Whether a fault is for this actor."""
    if fault in (Fault.TASK_FAILED, Fault.SPECULATION):
        return isinstance(actor, TaskRun)
    if fault is Fault.COPY:
        owner = actor.owner if isinstance(actor, TaskRun | Closer) else actor
        return isinstance(owner, Driver) and not owner.within
    return fault is Fault.STOP or not isinstance(actor, Publisher)


def simulate_query(schedule: Schedule, *, tracing: bool = False) -> Result:
    """Run a schedule of queries to its end, and check what they wrote."""
    began = time.process_time()
    run = _Run(schedule, tracing=tracing)
    cast = run.cast
    with cast.noting_errors():
        run.run()
    return cast.result(schedule, began, {"published": len(schedule.calls)})
