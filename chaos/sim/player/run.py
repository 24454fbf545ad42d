"""Machinery: one schedule of a player, its processes, what strikes them, what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from random import Random

from chaos.sim.faults import ALL, Fault, PlannedFault, Point
from chaos.sim.log.course import Actor, count
from chaos.sim.log.keeper import Trimmer
from chaos.sim.log.sweeper import Sweeper
from chaos.sim.log.writer import Writer
from chaos.sim.planned import Schedule
from chaos.sim.player.cast import METHODS, PlayerCast
from chaos.sim.player.judge import Judge
from chaos.sim.player.operator import Operator
from chaos.sim.player.player import PlayerProcess
from chaos.sim.player.schedule import kills
from chaos.sim.player.target import Setup, SimulatedTarget, TargetProcess
from chaos.sim.result import Result
from sharedlog._core.target_steps import HandlerKind
from sharedlog._player.declared import Target

__all__ = ["simulate_player"]

_AFTERMATH_S = 400.0
_SETTLING_S = 3.0
# What strikes one process, and not what all ask.
_AT_ONE = (Fault.CRASH, Fault.STOP, Fault.RESTORE, Fault.WIPE)
_PATIENCE = timedelta(seconds=1.5)
# Of a player whose target hangs, and is not cut off for it: who waits for that one is late.
_LONG_PATIENCE = timedelta(seconds=6.0)


def _setups(dice: Random) -> list[Setup]:
    """Return what the targets of a run are."""
    return [
        Setup("orders", HandlerKind.ATOMIC, ("orders", "audit"), shares=True),
        Setup("stock", HandlerKind.ATOMIC, ("orders",), processes=2),
        Setup(
            "mail",
            dice.choice((HandlerKind.PLAIN, HandlerKind.IDEMPOTENT)),
            ("audit", "orders"),
        ),
    ]


def _declared(dice: Random, setup: Setup, patience: timedelta) -> Target:
    return Target(
        name=setup.name,
        address=f"{setup.name}:1",
        streams={name: METHODS[name] for name in setup.streams},
        tries=dice.choice((None, 2, 5)),
        failed=dice.choice(("stop", "dead-letter")),
        refused=dice.choice(("stop", "dead-letter")),
        unknown=dice.choice(("stop", "dead-letter", "again")),
        same_error=0,
        patience=patience,
        batch=dice.choice((1, 3, 100)),
        linger=timedelta(seconds=dice.choice((0.0, 0.0, 0.02))),
        queue=dice.choice((4, 20, 2000)),
    )


class _Run:
    def __init__(self, schedule: Schedule, *, tracing: bool) -> None:
        self.schedule = schedule
        self.cast = cast = PlayerCast(schedule.seed, tracing=tracing)
        dice = Random(f"player targets {schedule.seed}")  # noqa: S311 - repeatable, not secret
        self.calm = schedule.setting.apart
        setups = _setups(dice)
        self.targets = [
            SimulatedTarget(cast, index, setup, calm=self.calm, kills=kills(schedule.seed))
            for index, setup in enumerate(setups)
        ]
        cast.streams = [dice.random() < 0.7 for _ in setups]
        patient = self.calm and schedule.seed % 16 == 0
        patience = _LONG_PATIENCE if patient else _PATIENCE
        self.declared = [_declared(dice, each, patience) for each in setups]
        if kills(schedule.seed):
            # No operator has to see to what is killed by.
            self.declared = [
                replace(
                    each,
                    tries=dice.choice((2, 3)),
                    failed="dead-letter",
                    refused="dead-letter",
                    unknown="again",
                )
                for each in self.declared
            ]
        self.players = [
            PlayerProcess(cast, index, self.declared, self.targets) for index in range(2)
        ]
        self.operator = Operator(cast)
        self.sweeper = Sweeper(cast)
        self.writers = [
            Writer(cast, index, schedule.setting, self.sweeper, keeps=index % 2 == 1)
            for index in range(schedule.setting.clients)
        ]
        self.trimmers = [Trimmer(cast, index) for index in range(2)]
        self.hosts = [host for each in self.targets for host in each.processes]
        self.actors: list[Actor] = [
            *self.players,
            *self.players,
            *self.hosts,
            *self.writers,
            *self.trimmers,
        ]
        hangs = self.calm and not kills(schedule.seed)
        hung = schedule.faults[0].target if hangs and schedule.faults else None
        self.judge = Judge(cast, self.targets, self.declared, self.operator, hung)

    def run(self) -> None:
        """Let everything happen, then heal, and wait until all is done and delivered."""
        loop, schedule = self.cast.loop, self.schedule
        for actor in dict.fromkeys(self.actors):
            actor.start()
        self.operator.start()
        for call in schedule.calls:
            loop.at(call.at, None, self.writers[call.client].call, call)
        for fault in schedule.faults:
            loop.at(fault.at, None, self._strike, fault)
        for target in self.targets:
            loop.at(2.0 + 8.0 * self.cast.random.random(), None, target.store.backup)
        ends = [call.at for call in schedule.calls]
        ends += [fault.at + fault.seconds for fault in schedule.faults]
        loop.run(max(ends, default=0.0) + 0.5)
        self._heal()
        self._until(lambda: all(each.idle() for each in self.writers))
        for writer in self.writers:
            if not writer.idle():
                self.cast.oracle.broken("stuck", f"{writer.name} never ends")
        loop.run(loop.now + _SETTLING_S)
        left = {int(key.split("/")[1]) for key in self.cast.server.log.keys if _is_span(key)}
        for producer in sorted(left):
            self.sweeper.retire(producer)
        self._until(lambda: not self.sweeper.courses)
        loop.run(loop.now + 0.1)
        self._until(self.judge.all_delivered)
        self.judge.tell_what_is_left()
        # Holds follow, and what is told.
        loop.run(loop.now + _SETTLING_S)
        self.cast.over = True
        self.judge.judge()

    def forget(self) -> None:
        """Release what the processes left."""
        for each in self.cast.loops:
            each.forget()

    def _heal(self) -> None:
        cast = self.cast
        cast.trace("world", "all faults end")
        cast.healed = True
        cast.aims.clear()
        cast.outages.clear()
        cast.server.heal()
        cast.weather.heal()
        for target in self.targets:
            target.hung_until = 0.0
            target.store.full_until = target.store.lossy_until = 0.0
        for actor in self.actors:
            actor.process.stopped_until = 0.0
            actor.start()

    def _until(self, done: Callable[[], bool]) -> None:
        # Of a run in which something was broken nothing more is expected.
        cast = self.cast
        cast.until(lambda: bool(cast.oracle.problems) or done(), _AFTERMATH_S, look_s=0.5)

    # What goes wrong.

    def _strike(self, planned: PlannedFault) -> None:
        cast, fault = self.cast, planned.fault
        cast.trace("world", str(planned))
        until = cast.loop.now + planned.seconds
        server, target = cast.server, self.targets[planned.target % len(self.targets)]
        path = (planned.target % 2, target.index)
        match fault:
            case _ if planned.target == ALL and planned.aim is not None:
                self._wait_for(planned, planned.aim)
            case Fault.CRASH | Fault.STOP if planned.aim is not None:
                self._aim(planned.aim, lambda _: True, partial(self._strike_one, planned))
            case Fault.PARTITION if planned.aim is not None:
                self._aim(planned.aim, lambda _: True, partial(self._cut_off, planned))
            case Fault.STORE_LOSS if planned.aim is not None:
                self._aim(planned.aim, lambda _: True, lambda _: self._lose(planned))
            case Fault.RESTORE | Fault.WIPE if planned.aim is not None:
                self._aim(
                    planned.aim,
                    lambda actor: isinstance(actor, TargetProcess) and actor.of is target,
                    lambda _: self._put_back(target, planned),
                )
            case Fault.CRASH | Fault.STOP | Fault.DRAIN:
                self._strike_one(planned, self.actors[planned.target % len(self.actors)])
            case Fault.STORE_LOSS if planned.target % 2:
                target.store.lossy_until = until
            case Fault.STORE_LOSS:
                self._lose(planned)
            case Fault.STORE_STALL:
                server.stalled_until = until
            case Fault.DUPLICATE:
                server.copied_until = cast.weather.copied_until = until
            case Fault.DELAY:
                cast.weather.slow[path] = until
            case Fault.PARTITION:
                cast.weather.stalled[path] = until
            case Fault.RESET:
                self._reset(target)
            case Fault.FULL_DISK:
                target.store.full_until = until
            case Fault.RESTORE | Fault.WIPE:
                self._put_back(target, planned)
            case Fault.HANG:
                self._hang(target, until)
            case Fault.PAUSE:
                self.operator.pause(target.setup.name, planned.seconds)
            case Fault.REPLAY:
                cast.coverage.hit(fault, Point.IDLE)
                self.operator.replay(target.setup.name)
            case Fault.WALL_JUMP:
                self._jump(planned)

    def _aim(
        self, at: Point, wanted: Callable[[Actor], bool], strike: Callable[[Actor], None]
    ) -> None:
        """Have it strike the next of these at that point."""
        self.cast.aims.setdefault(at, []).append((wanted, strike))

    def _wait_for(self, planned: PlannedFault, point: Point) -> None:
        """Strike a process at a point, or have what it asks for there meet an outage."""
        if planned.fault in _AT_ONE:
            self._aim(point, _is_of_deliveries, partial(self._strike_there, planned, point))
        else:
            begin = partial(self._begin_outage, planned, point)
            self.cast.outages.setdefault(point, []).append(begin)

    def _strike_there(self, planned: PlannedFault, point: Point, actor: Actor) -> None:
        if self.cast.healed or not isinstance(actor, PlayerProcess | TargetProcess):
            return
        target = actor.of if isinstance(actor, TargetProcess) else None
        restored = planned.fault is Fault.RESTORE
        if not actor.at(point) or (restored and target and target.store.copy is None):
            # It is past that by now, or there is no backup yet: the next one.
            self._wait_for(planned, point)
        elif target and planned.fault in (Fault.RESTORE, Fault.WIPE):
            self._put_back(target, planned)
        else:
            self._strike_one(planned, actor)

    def _begin_outage(self, planned: PlannedFault, point: Point) -> None:
        cast, until = self.cast, self.cast.loop.now + planned.seconds
        stores, log = [each.store for each in self.targets], cast.server
        paths = [(player.index, target.index) for player in self.players for target in self.targets]
        match planned.fault:
            case Fault.STORE_LOSS if point in (Point.COMMITTING, Point.INDEX):
                for store in stores:
                    store.lossy_until = until
            case Fault.STORE_LOSS:
                log.loss, log.lossy_until = 1.0, until
            case Fault.STORE_STALL:
                log.stalled_until = until
            case Fault.FULL_DISK:
                for store in stores:
                    store.full_until = until
            case Fault.DELAY:
                cast.weather.slow.update(dict.fromkeys(paths, until))
            case Fault.PARTITION:
                cast.weather.stalled.update(dict.fromkeys(paths, until))

    def _cut_off(self, planned: PlannedFault, actor: Actor) -> None:
        """Have nothing come through to a target, or from a player, for a while."""
        until = self.cast.loop.now + planned.seconds
        for player in self.players:
            for target in self.targets:
                if actor is player or actor in target.processes:
                    self.cast.weather.stalled[player.index, target.index] = until

    def _lose(self, planned: PlannedFault) -> None:
        """Have the log's engine lose requests and replies for a while."""
        server = self.cast.server
        server.loss = 0.6 * planned.share
        server.lossy_until = self.cast.loop.now + planned.seconds

    def _put_back(self, target: SimulatedTarget, planned: PlannedFault) -> None:
        if planned.fault is Fault.WIPE or target.store.copy is not None:
            target.strike(planned.fault, planned.seconds, declared=planned.share > 0.5)

    def _strike_one(self, planned: PlannedFault, actor: Actor) -> None:
        fault = planned.fault
        if fault is Fault.DRAIN:
            self.players[planned.target % 2].drain(planned.seconds)
        elif fault is Fault.CRASH:
            actor.crash(planned.seconds)
        elif actor.process.alive:
            self._count(actor, fault)
            actor.process.stop(planned.seconds)

    def _count(self, actor: Actor, fault: Fault) -> None:
        if isinstance(actor, PlayerProcess | TargetProcess):
            actor.count(fault)
        else:
            count(self.cast, actor, fault)

    def _reset(self, target: SimulatedTarget) -> None:
        for call in [each for each in self.cast.calls if each.path.target == target.index]:
            self.cast.coverage.hit(Fault.RESET, call.point)
            call.break_off()

    def _hang(self, target: SimulatedTarget, until: float) -> None:
        target.hung_until = until
        for host in target.processes:
            host.count(Fault.HANG)

    def _jump(self, planned: PlannedFault) -> None:
        """Have a machine's clock show another time, ahead more often than behind."""
        jumping: Sequence[Actor] = [*self.players, *self.hosts, *self.trimmers]
        actor = jumping[planned.target % len(jumping)]
        seconds = (planned.share - 0.25) * 100.0 * planned.seconds
        self.cast.coverage.hit(planned.fault, Point.IDLE)
        name = getattr(actor, "name", actor.process.name)
        self.cast.offsets[name] = actor.process.wall_offset_s = seconds


def _is_of_deliveries(actor: Actor) -> bool:
    return isinstance(actor, PlayerProcess | TargetProcess)


def _is_span(key: str) -> bool:
    return key.startswith("span/")


def simulate_player(schedule: Schedule, *, tracing: bool = False) -> Result:
    """Run a schedule of a player to its end, and check what its targets were called with."""
    began = time.process_time()
    run = _Run(schedule, tracing=tracing)
    cast = run.cast
    try:
        with cast.noting_errors():
            run.run()
    finally:
        run.forget()
    return cast.result(schedule, began, cast.oracle.outcomes() | run.judge.outcomes())
