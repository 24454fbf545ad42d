"""Driver of the product's client state and calls: one client process, through its lives."""

from __future__ import annotations

from random import Random
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from chaos.check.history import read_value
from chaos.sim.batch_client import ClientBatch, value_of
from chaos.sim.client_exchange import ClientExchange
from chaos.sim.client_life import ClientLife
from chaos.sim.faults import Fault, Point
from chaos.sim.group_client import GroupPath
from chaos.sim.loop import Process
from chaos.sim.planned import PlannedCall, Setting
from chaos.sim.resolution import Resolution
from chaos.sim.service import RESPONSE_STREAMS, policy_of
from chaos.sim.session import secret_of
from chaos.sim.world import World
from rifl._client.batch import BatchResult
from rifl._client.errors import CallError
from rifl._client.routing import Router
from rifl._client.settings import Settings
from rifl.core._calling.retry import RetryPolicy
from rifl.core._calling.targets import Targets

__all__ = ["Client"]


class Client:
    """One client, through all its lives; each has a channel of its own."""

    def __init__(
        self,
        world: World,
        name: str,
        dice: Random,
        setting: Setting,
        session: str = "",
        *,
        plain: bool = False,
        misled: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self._dice = dice
        self._setting = setting
        self._session = session
        self._plain = plain
        self._misled = misled
        self.outstanding: dict[ClientExchange | ClientBatch, None] = {}
        self.queue: list[PlannedCall] = []
        self.rate = 1.0 + setting.drift * (dice.random() - 0.5)
        self.start()

    def start(self) -> None:
        """Begin a life, with calls that could not be made while there was none."""
        setting = self._setting
        self.process = Process(self.world.loop, self.name, rate=self.rate)
        self._events = self.world.events(self.process)
        settings = Settings(
            retry=RetryPolicy(
                attempt_timeout_s=setting.attempt_timeout_s, max_elapsed_s=setting.max_elapsed_s
            ),
            hedge_after_s=setting.hedge_after_s,
            window=setting.window,
            unresolved_s=setting.unresolved_s,
            session_name=self._session or None,
            session_secrets=(secret_of(self._session),) if self._session else (),
        )
        router = None
        if setting.servers > 1:
            names = [f"server{index}:1" for index in range(setting.servers)]
            router = Router(Targets(names), self.process.clock)
        life = self._life = ClientLife(self.world, self.process, self._dice, settings, router)
        if setting.witnesses is not None and not self._plain:
            life.group = GroupPath(
                self._events,
                self.world.network,
                lambda: 0 if router is None else router.targets.current,
                misled=self._misled,
            )
        queue, self.queue = self.queue, []
        for planned in queue:
            self.call(planned)

    def crash(self) -> None:
        """Die with all that is in flight; no caller is told anything."""
        if not self.process.alive:
            return
        hit = Point.UNANSWERED if self.outstanding else Point.IDLE
        self.world.coverage.hit(Fault.CLIENT_CRASH, hit)
        self.world.trace(self.name, f"dies with {len(self.outstanding)} calls")
        self.process.kill()
        for call in self.outstanding:
            if isinstance(call, ClientExchange) and call.stream is not None:
                call.stream.die()
        self.outstanding.clear()

    def stop(self, seconds: float, fault: Fault = Fault.CLIENT_STOP) -> None:
        """Be suspended."""
        hit = Point.UNANSWERED if self.outstanding else Point.IDLE
        self.world.coverage.hit(fault, hit)
        self.world.trace(self.name, f"stopped for {seconds:.3f} s")
        self.process.stop(seconds)

    def call(self, planned: PlannedCall) -> None:
        """Make a call, in this life or the next."""
        if not self.process.alive:
            self.queue.append(planned)
            return
        self._started(planned)
        exchange = ClientExchange(self._life, planned, self._finished)
        self.outstanding[exchange] = None
        exchange.begin()

    def _started(self, planned: PlannedCall) -> None:
        world = self.world
        promise = "at-least-once" if planned.op == "touch" else "once"
        if policy_of(planned.method).claim == "never":
            promise = "unordered"
        world.history.start(
            world.loop.now,
            planned.number,
            planned.op,
            planned.account,
            planned.amount,
            promise,
            planned.messages if planned.method in RESPONSE_STREAMS else None,
            self.name,
        )
        if world.loop.tracing:
            stream = f", {planned.messages} messages" if planned.messages else ""
            world.trace(self.name, f"call {planned.number}: {planned.op} {planned.account}{stream}")

    def batch(self, calls: list[PlannedCall]) -> None:
        """Make calls that travel together, in this life or each on its own in the next."""
        if not self.process.alive:
            self.queue += calls
            return
        for planned in calls:
            self._started(planned)
        batch = ClientBatch(
            self._events,
            self.world.network,
            self._life.state,
            calls,
            self._batch_finished,
        )
        self.outstanding[batch] = None
        batch.go()

    def _batch_finished(self, batch: ClientBatch, results: list[BatchResult]) -> None:
        self.outstanding.pop(batch, None)
        world = self.world
        for planned, result in zip(batch.calls, results, strict=True):
            world.history.end(
                world.loop.now,
                planned.number,
                result.outcome.value,
                result.code.name,
                value_of(result),
                result.reason,
                caller=self.name,
            )
            if world.loop.tracing:
                world.trace(
                    self.name,
                    f"call {planned.number} in a batch ends: {result.outcome.value} "
                    f"{result.code.name} {result.reason} {result.response!r}",
                )
            unknown = result.outcome is Outcome.UNKNOWN
            if unknown and planned.resolves and result.rpc_id is not None:
                Resolution(self._life, planned, result.rpc_id)

    def _finished(self, exchange: ClientExchange) -> None:
        """Take the end of a call."""
        self.outstanding.pop(exchange, None)
        world, planned, flow = self.world, exchange.planned, exchange.flow
        status: Any = exchange.status
        code = status.code()
        value = read_value(exchange.reply) if code is grpc.StatusCode.OK else None
        if exchange.error is not None and not isinstance(exchange.error, CallError):
            world.broken(self.name, exchange.error)
        outcome = flow.outcome
        messages = None
        if exchange.stream is not None and not exchange.stream.sends:
            messages = exchange.stream.messages
            value = exchange.stream.value if code is grpc.StatusCode.OK else None
        world.history.end(
            world.loop.now,
            planned.number,
            outcome.value,
            code.name,
            value,
            flow.reason,
            messages,
            self.name,
        )
        if world.loop.tracing:
            world.trace(
                self.name,
                f"call {planned.number} ends: {outcome.value} {code.name} {flow.reason} {value}",
            )
        if outcome is Outcome.UNKNOWN and planned.resolves and exchange.rpc_id is not None:
            Resolution(self._life, planned, exchange.rpc_id)
