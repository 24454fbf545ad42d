"""Machinery: one schedule run to its end, its faults struck and its history judged."""

from __future__ import annotations

import time
from functools import partial
from random import Random

from chaos.check import check
from chaos.sim.client import Client
from chaos.sim.consumer.run import simulate_consumer
from chaos.sim.deployments import Deployment, MemoryDeployment, SqliteDeployment
from chaos.sim.faults import ALL, LEADER, Coverage, Fault, PlannedFault, Point
from chaos.sim.group import GroupDeployment
from chaos.sim.log.run import simulate_log
from chaos.sim.network import Weather
from chaos.sim.plain_caller import PlainCaller
from chaos.sim.planned import PlannedCall, Schedule
from chaos.sim.player.run import simulate_player
from chaos.sim.query.run import simulate_query
from chaos.sim.replicas import ReplicasDeployment
from chaos.sim.result import Result
from chaos.sim.server import Server
from chaos.sim.session import Closing
from chaos.sim.world import World

__all__ = ["Result", "simulate"]

# Until the last copies have come, of calls long over, and what they begin has ended.
_AFTERMATH_S = 30.0
_SETTLING_S = 2.0
_WEATHER = frozenset(
    {
        Fault.LOSS,
        Fault.DELAY,
        Fault.DUPLICATE,
        Fault.PARTITION,
        Fault.PARTITION_TO,
        Fault.PARTITION_FROM,
    }
)
# Points that a call has behind it, so that no task tells of them.
_OF_NO_TASK = (
    Point.ANSWERED,
    Point.FIRST,
    Point.EXPIRED,
    Point.REPEATABLE_RAN,
    Point.REPEATABLE_ANSWERED,
    Point.ANSWERED_FIRST,
    Point.LOGGED,
    Point.RECOVERING,
    Point.NUMBERED,
    Point.RELISTED,
    Point.HANDING_OVER,
    Point.SAVED,
    Point.TRIMMED,
    Point.RENEWING,
    Point.RENEWED,
)
_DEPLOYMENTS: dict[str, type[Deployment]] = {
    "memory": MemoryDeployment,
    "sqlite": SqliteDeployment,
    "replicas": ReplicasDeployment,
    "spark": SqliteDeployment,
    "curp": GroupDeployment,
}


class _Run:
    """The parts of one deployment, and what happens to them."""

    def __init__(self, schedule: Schedule, *, tracing: bool) -> None:
        self.schedule = schedule
        setting = schedule.setting
        self.world = World(schedule.seed, schedule.calls, Coverage(), tracing=tracing)
        dice = self.world.random
        self.deployment = _DEPLOYMENTS[schedule.kind](self.world, setting, dice)
        self.servers = [
            Server(
                self.world,
                index,
                dice,
                self.deployment.open,
                rate=setting.server_rate + setting.drift * (dice.random() - 0.5),
                max_waiters=setting.max_waiters,
                window=setting.window,
            )
            for index in range(setting.servers)
        ]
        if setting.apart:
            self.world.network.proxied = setting.servers
        for server in self.servers:
            server.start()
        self._dice = dice
        self._callers: list[PlainCaller] = []
        # Their own, so that schedules without them stay what they were.
        self._callers_dice = Random(f"callers {schedule.seed}")  # noqa: S311 - repeatable, not secret
        self._by_session: dict[tuple[int, str], Client] = {}
        self.clients: list[Client] = []
        if schedule.kind != "spark":
            for index in range(setting.clients):
                self._client(index, "")

    def run(self) -> None:
        schedule, world, loop = self.schedule, self.world, self.world.loop
        batches: dict[int, list[PlannedCall]] = {}
        for planned in schedule.calls:
            if planned.batch:
                batches.setdefault(planned.batch, []).append(planned)
            else:
                loop.at(planned.at, None, self._call, planned)
        for calls in batches.values():
            loop.at(calls[0].at, None, self._batch, calls)
        for at, session in schedule.closings:
            loop.at(at, None, Closing(world, session).send)
            for server in self.servers:
                for when in (at / 2, at - 0.001, at + 0.5):
                    loop.at(when, None, server.overheard, session)
        for fault in schedule.faults:
            loop.at(fault.at, None, self._strike, fault)
        quiet = max(
            [call.at for call in schedule.calls]
            + [fault.at + fault.seconds for fault in schedule.faults]
            + [at for at, _ in schedule.closings],
            default=0.0,
        )
        loop.run(quiet + 0.5)
        world.trace("world", "all faults end")
        world.network.weather.clear()
        self.deployment.heal()
        for server in self.servers:
            server.heal()
        for client in self.clients:
            if not client.process.alive:
                client.start()
        limit = quiet + 60.0 + 4 * schedule.setting.max_elapsed_s
        if not self._done():
            loop.run(limit, self._done)
        for client in self.clients:
            for exchange in client.outstanding:
                number = exchange.planned.number
                world.problems.append(f"stuck: call {number} of {client.name} never ends")
        for caller in self._callers:
            if not caller.ended:
                world.problems.append(f"stuck: call {caller.planned.number} by its key never ends")
        self._settle()
        # A client may have just begun to ask what became of a call.
        loop.run(loop.now + _SETTLING_S)
        self._settle()
        for server in self.servers:
            if running := server.running():
                world.problems.append(f"stuck: {running} calls never end on {server.name}")
        for call in world.unrecorded:
            world.history.unrecorded(loop.now, call)
        world.over = True

    def _call(self, planned: PlannedCall) -> None:
        if planned.plain:
            servers = self.schedule.setting.servers
            self._callers.append(PlainCaller(self.world, planned, servers, self._callers_dice))
            self._callers[-1].go()
            return
        self._client(planned.client, planned.session).call(planned)

    def _batch(self, calls: list[PlannedCall]) -> None:
        self._client(calls[0].client, calls[0].session).batch(calls)

    def _client(self, index: int, session: str) -> Client:
        client = self._by_session.get((index, session))
        if client is None:
            batch = session.rpartition("/")[2]
            name = f"client{index}" if not session else f"task{index}.{batch}"
            dice = Random(self._dice.random())  # noqa: S311 - repeatable, not secret
            setting = self.schedule.setting
            plain = index < setting.plain_clients
            misled = index == setting.misled_client
            client = Client(self.world, name, dice, setting, session, plain=plain, misled=misled)
            self._by_session[index, session] = client
            self.clients.append(client)
        return client

    def _done(self) -> bool:
        return not any(client.outstanding for client in self.clients) and all(
            caller.ended for caller in self._callers
        )

    def _settle(self) -> None:
        loop = self.world.loop
        until = loop.now + _AFTERMATH_S
        while loop.now < until and self._unsettled():
            loop.run(min(loop.now + 0.5, until))

    def _unsettled(self) -> bool:
        return self.world.network.copies > 0 or any(server.running() for server in self.servers)

    def _strike(self, planned: PlannedFault) -> None:
        world, loop, fault = self.world, self.world.loop, planned.fault
        if loop.tracing:
            world.trace("world", f"fault: {planned}")
        if fault in _WEATHER:
            until = loop.now + planned.seconds
            world.network.weather = [
                each for each in world.network.weather if each.until > loop.now
            ]
            target = planned.target
            if target == LEADER:
                target = self._leader(self.servers[0]).index
            world.network.weather.append(
                Weather(fault, target, until, planned.share, some=planned.some, sends=planned.sends)
            )
        elif fault.value.startswith("client"):
            if not self.clients:
                return
            client = self.clients[-1 - planned.target % len(self.clients)]
            if fault is Fault.CLIENT_CRASH:
                if client.process.alive:
                    client.crash()
                    loop.after(planned.seconds, client.start)
            else:
                client.stop(planned.seconds, fault)
        else:
            server = self.servers[max(planned.target, 0) % len(self.servers)]
            if planned.target == LEADER:
                server = self._leader(server)
            if planned.aim is None:
                self._strike_server(planned, server)
            else:
                struck: list[Server] = []
                for each in self.servers if planned.target == ALL else [server]:
                    each.aim(planned.aim, partial(self._strike_aimed, planned, each, struck))

    def _leader(self, otherwise: Server) -> Server:
        return next((each for each in self.servers if each.leads()), otherwise)

    def _strike_aimed(self, planned: PlannedFault, server: Server, struck: list[Server]) -> None:
        if struck:
            # It was for the first server that came there.
            return
        struck.append(server)
        if planned.aim in _OF_NO_TASK and planned.aim is not None:
            self.world.coverage.hit(planned.fault, planned.aim)
        self._strike_server(planned, server)

    def _strike_server(self, planned: PlannedFault, server: Server) -> None:
        world, fault = self.world, planned.fault
        if fault is Fault.RESET:
            world.network.reset(server, fault)
        elif fault is Fault.STOP:
            server.stop(planned.seconds)
        elif fault is Fault.DRAIN:
            server.drain()
            world.loop.after(planned.seconds + 0.6, server.start)
        elif fault is Fault.ROTATE_SECRET:
            server.rotate_secret()
        elif fault is Fault.WALL_JUMP:
            server.jump(planned.share)
        elif fault is Fault.CRASH:
            server.crash()
            world.loop.after(planned.seconds, server.start)
        else:
            self.deployment.strike(planned, server)


def simulate(schedule: Schedule, *, tracing: bool = False) -> Result:
    """Run a schedule to its end and check what happened."""
    if schedule.kind == "log":
        return simulate_log(schedule, tracing=tracing)
    if schedule.kind == "consumer":
        return simulate_consumer(schedule, tracing=tracing)
    if schedule.kind == "query":
        return simulate_query(schedule, tracing=tracing)
    if schedule.kind == "player":
        return simulate_player(schedule, tracing=tracing)
    began = time.process_time()
    run = _Run(schedule, tracing=tracing)
    world = run.world
    problems = world.problems
    for part in (run.run, partial(run.deployment.finish, world)):
        try:
            part()
        except Exception as error:
            # Whatever breaks a run is a finding; so is a log that cannot be replayed.
            if tracing:
                raise
            problems.append(f"raised: {type(error).__name__}: {error}")
    problems += [str(violation) for violation in check(world.history)]
    outcomes: dict[str, int] = {}
    for event in world.history.events:
        if event["event"] == "end":
            outcomes[event["outcome"]] = outcomes.get(event["outcome"], 0) + 1
    for server in run.servers:
        server.forget()
    world.forget()
    run.deployment.close()
    return Result(
        schedule.kind,
        schedule.seed,
        problems,
        len(schedule.calls),
        len(schedule.faults),
        world.loop.events,
        world.loop.now,
        time.process_time() - began,
        world.coverage,
        outcomes,
        world.loop.lines,
        world.history,
    )
