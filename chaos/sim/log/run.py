"""Machinery: one schedule of a log, its processes, what strikes them, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import Random

from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.log.application import Application
from chaos.sim.log.cast import Cast
from chaos.sim.log.course import Actor, count
from chaos.sim.log.follower import Follower
from chaos.sim.log.keeper import Sweeping, Trimmer
from chaos.sim.log.oracle import committed, merged
from chaos.sim.log.relay import Relay
from chaos.sim.log.server import Backup
from chaos.sim.log.sweeper import Sweeper
from chaos.sim.log.writer import Writer
from chaos.sim.planned import Schedule
from chaos.sim.result import Result

__all__ = ["simulate_log"]

_AFTERMATH_S = 30.0
_SETTLING_S = 2.5
# In so many schedules one has applications that append in their transactions.
_APPLICATIONS = 9
# Which tags are followed, and whether by a hold.
_FOLLOWED = (
    (("orders/0",), False),
    (("orders/0", "orders/1", "orders/2"), True),
    (("orders/1", "orders/2"), False),
    (("orders/2",), True),
    (("audit/0", "audit/1"), True),
    (("audit/1",), False),
)


class _Run:
    def __init__(self, schedule: Schedule, *, tracing: bool) -> None:
        self.schedule = schedule
        self.cast = cast = Cast(schedule.seed, tracing=tracing)
        self.sweeper = Sweeper(cast)
        self.writers = [
            Writer(cast, index, schedule.setting, self.sweeper, keeps=index % 2 == 1)
            for index in range(schedule.setting.clients)
        ]
        self.followers = [
            Follower(cast, index, tags, held=held) for index, (tags, held) in enumerate(_FOLLOWED)
        ]
        self.relays = [Relay(cast, index) for index in range(2)]
        self.keepers = [
            *(Trimmer(cast, index) for index in range(2)),
            *(Sweeping(cast, index) for index in range(2)),
        ]
        self.actors: list[Actor] = [
            *self.writers,
            *self.followers,
            *self.relays,
            *self.keepers,
        ]
        self.applications = [
            Application(cast, index) for index in range(2 * (schedule.seed % _APPLICATIONS == 0))
        ]
        self.actors += self.applications
        # Whose clocks jump: with both, what is young may go.
        dice = Random(f"log clocks {schedule.seed}")  # noqa: S311 - repeatable, not secret
        everybody: list[Writer | Relay | Trimmer | Sweeping] = [*self.writers, *self.relays]
        self.jumping = dice.choice((everybody, [*self.keepers], [*everybody, *self.keepers]))

    def run(self) -> None:
        """Let everything happen, then heal, and wait until all is done and read."""
        loop, schedule = self.cast.loop, self.schedule
        for actor in self.actors:
            actor.start()
        for call in schedule.calls:
            loop.at(call.at, None, self.writers[call.client].call, call)
        for fault in schedule.faults:
            loop.at(fault.at, None, self._strike, fault)
        ends = [call.at for call in schedule.calls]
        ends += [fault.at + fault.seconds for fault in schedule.faults]
        loop.run(max(ends, default=0.0) + 0.5)
        self._heal()
        publishing: list[Writer | Relay | Application] = [
            *self.writers,
            *self.relays,
            *self.applications,
        ]
        self._until(lambda: all(each.idle() for each in publishing))
        for writer in publishing:
            if not writer.idle():
                self.cast.oracle.broken("stuck", f"{writer.name} never ends")
        loop.run(loop.now + _SETTLING_S)
        left = {int(key.split("/")[1]) for key in self.cast.server.log.keys if _is_span(key)}
        for producer in sorted(left):
            self.sweeper.retire(producer)
        self._until(lambda: not self.sweeper.courses)
        loop.run(loop.now + 0.1)
        self._until(self._all_read)
        self.cast.over = True
        self._judge()

    def _heal(self) -> None:
        cast = self.cast
        cast.trace("world", "all faults end")
        cast.healed = True
        cast.aims.clear()
        cast.server.heal()
        for actor in self.actors:
            actor.process.stopped_until = 0.0
            actor.start()

    def _until(self, done: Callable[[], bool]) -> None:
        self.cast.until(done, _AFTERMATH_S)

    def _all_read(self) -> bool:
        tail = self.cast.server.log.tail
        return all(each.forked or each.through >= tail for each in self.followers)

    def _judge(self) -> None:
        server, oracle = self.cast.server, self.cast.oracle
        seen = server.seen
        found = oracle.judge(seen.rows, seen.raised, seen.retired)
        oracle.problems.extend(seen.problems)
        for follower in self.followers:
            follower.judge(merged(found, follower.tags), ended=True)
        for application in self.applications:
            application.judge(found, seen.raised)
        for key in server.log.keys:
            if _is_span(key):
                oracle.broken("an invariant", f"{key} is open, and its producer retired")

    # -- faults ----------------------------------------------------------------------------

    def _strike(self, planned: PlannedFault) -> None:
        cast, fault = self.cast, planned.fault
        server, until = cast.server, cast.loop.now + planned.seconds
        if cast.loop.tracing:
            cast.trace("world", f"fault: {planned}")
        if planned.aim is not None:
            aimed = (partial(_is_for, fault), partial(self._strike_one, planned))
            cast.aims.setdefault(planned.aim, []).append(aimed)
        elif fault is Fault.STORE_LOSS:
            server.loss, server.lossy_until = planned.share, until
        elif fault is Fault.STORE_STALL:
            server.stalled_until = until
        elif fault is Fault.DUPLICATE:
            server.copied_until = until
        elif fault is Fault.RESTORE:
            cast.coverage.hit(fault, Point.IDLE)
            cast.loop.after(
                planned.seconds,
                partial(self._restore, server.backup(), declared=planned.share > 0.5),
            )
        else:
            self._strike_one(planned, self.actors[planned.target % len(self.actors)])

    def _strike_one(self, planned: PlannedFault, actor: Actor) -> None:
        cast, fault = self.cast, planned.fault
        if fault is Fault.CRASH:
            actor.crash(planned.seconds)
        elif fault is Fault.WALL_JUMP:
            self._jump(planned)
        elif fault is Fault.STOP and actor.process.alive:
            count(cast, actor, fault)
            actor.process.stop(planned.seconds)
        elif isinstance(actor, Writer) and fault is Fault.RETIRE:
            # Of a writer with a store the successor alone may.
            victim = actor.helper or (None if actor.keeps else actor.producer)
            if victim is not None:
                count(cast, actor, fault)
                self.sweeper.retire(victim.id)
        elif isinstance(actor, Writer) and fault is Fault.TAKE_OVER:
            count(cast, actor, fault)
            if planned.share > 0.5:
                # The writer hears nothing of it.
                cast.server.loss, cast.server.lossy_until = 1.0, cast.loop.now + 0.002
                cast.loop.after(0.002, self.sweeper.take_over, actor.fence)
            else:
                self.sweeper.take_over(actor.fence)

    def _jump(self, planned: PlannedFault) -> None:
        """Have a machine's clock show another time, ahead more often than behind."""
        actor = self.jumping[planned.target % len(self.jumping)]
        seconds = (planned.share - 0.25) * 100.0 * planned.seconds
        self.cast.coverage.hit(planned.fault, Point.IDLE)
        self.cast.offsets[actor.name] = actor.process.wall_offset_s = seconds

    def _restore(self, backup: Backup, *, declared: bool) -> None:
        """Stop all but one, go on with the backup, and begin again."""
        cast = self.cast
        cast.trace("world", f"restored, {'declared' if declared else 'and undeclared'}")
        old = committed(cast.server.seen.rows)
        cast.oracle.problems.extend(cast.server.seen.problems)
        for follower in self.followers:
            follower.judge(merged(old, follower.tags), ended=False)
            follower.restored(backup.log.tail)
        # One who was suspended then goes on as if nothing had been.
        zombie = cast.random.choice((*self.writers, None))
        for actor in self.actors:
            if actor is zombie:
                actor.process.stop(0.1 + cast.random.random())
                continue
            actor.process.kill()
            # Followers may find a log that was written on.
            later = 2.0 * cast.random.random() if isinstance(actor, Follower) else 0.0
            cast.loop.after(0.1 + later, actor.start)
        self.sweeper.begin_again()
        cast.server.restore(backup, declared=declared)
        cast.oracle.restore(cast.server.seen.rows)


def _is_for(fault: Fault, actor: Actor) -> bool:
    """Whether an aimed fault is for this actor."""
    return fault is not Fault.TAKE_OVER or (isinstance(actor, Writer) and actor.under_fence())


def _is_span(key: str) -> bool:
    return key.startswith("span/")


def simulate_log(schedule: Schedule, *, tracing: bool = False) -> Result:
    """Run a schedule of a log to its end, and check what is in it and what was read."""
    began = time.process_time()
    run = _Run(schedule, tracing=tracing)
    cast = run.cast
    with cast.noting_errors():
        run.run()
    return cast.result(schedule, began, cast.oracle.outcomes())
