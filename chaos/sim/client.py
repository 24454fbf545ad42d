"""A client process: the product's state and exchange, with events for threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import grpc

from chaos.check.history import read_value
from chaos.sim.batch_client import ClientBatch, value_of
from chaos.sim.faults import Fault, Point
from chaos.sim.group_client import AttemptShell, GroupPath
from chaos.sim.loop import EPOCH_S, Process, Timer
from chaos.sim.network import Rpc
from chaos.sim.planned import PlannedCall, Setting
from chaos.sim.service import RESPONSE_STREAMS, Operation, encode
from chaos.sim.stream_client import ClientStream
from chaos.sim.world import World
from curp.client._attempt import begin
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.batch import BatchResult
from rifl._client.errors import CallError
from rifl._client.exchange import Exchange
from rifl._client.lease_requests import (
    LEASE_TIMEOUT_S,
    REPLIES,
    LeaseRequest,
    failed,
    next_request,
    replied,
)
from rifl._client.resolution import RESOLVE_METHOD, Resolver
from rifl._client.routing import LEASE_SERVICE, Router
from rifl._client.settings import Settings
from rifl._client.state import ClientState
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.retry import RetryPolicy
from rifl.core._calling.targets import Targets
from rifl.core._shared.outcome import Outcome
from rifl.v1 import rifl_pb2

__all__ = ["Client", "Closing", "secret_of"]

_RESOLVE_TIMEOUT_S = 6.0


def secret_of(session: str) -> bytes:
    """Return what opens a session: its clients and its driver have it."""
    return b"the secret of " + session.encode()


class _State(ClientState):
    """The client's state, on simulated clocks and dice."""

    def __init__(
        self,
        settings: Settings,
        router: Router | None,
        process: Process,
        dice: Random,
        look: Callable[[], None],
    ) -> None:
        self._process = process
        self._look = look
        self._dice = dice
        super().__init__(settings, router)
        self.now = process.clock
        self.jitter = dice.random
        self.stamp = self._stamp  # type: ignore[method-assign]

    def look_at_lease(self) -> None:
        self._look()

    def _stamp(self) -> tuple[int, int]:
        return int((EPOCH_S + self._process.clock()) * 1e6), self._dice.getrandbits(64)


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
        self.outstanding: dict[_Exchange | ClientBatch, None] = {}
        self.queue: list[PlannedCall] = []
        self.rate = 1.0 + setting.drift * (dice.random() - 0.5)
        self.start()

    def start(self) -> None:
        """Begin a life, with calls that could not be made while there was none."""
        setting = self._setting
        self.process = Process(self.world.loop, self.name, rate=self.rate)
        settings = Settings(
            retry=RetryPolicy(
                attempt_timeout_s=setting.attempt_timeout_s, max_elapsed_s=setting.max_elapsed_s
            ),
            hedge_after_s=setting.hedge_after_s,
            window=setting.window,
            unresolved_s=setting.unresolved_s,
            session_name=self._session or None,
            session_secret=secret_of(self._session) if self._session else b"",
        )
        router = None
        if setting.servers > 1:
            names = [f"server{index}:1" for index in range(setting.servers)]
            router = Router(Targets(names), self.process.clock)
        self.keeper = _Keeper(self)
        self.state = _State(settings, router, self.process, self._dice, self.keeper.look)
        self.group: GroupPath | None = None
        if setting.witnesses is not None and not self._plain:
            self.group = GroupPath(
                self.world.network,
                self.process,
                lambda: 0 if router is None else router.targets.current,
                misled=self._misled,
            )
        queue, self.queue = self.queue, []
        for planned in queue:
            self.call(planned)

    def crash(self) -> None:
        """Die with all that is under way; nobody is told anything."""
        if not self.process.alive:
            return
        hit = Point.UNANSWERED if self.outstanding else Point.IDLE
        self.world.coverage.hit(Fault.CLIENT_CRASH, hit)
        self.world.trace(self.name, f"dies with {len(self.outstanding)} calls")
        self.process.kill()
        for call in self.outstanding:
            if isinstance(call, _Exchange) and call.stream is not None:
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
        exchange = _Exchange(self, planned)
        self.outstanding[exchange] = None
        exchange.begin()

    def _started(self, planned: PlannedCall) -> None:
        world = self.world
        promise = "at-least-once" if planned.op == "touch" else "once"
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
            self.process,
            self.world.network,
            self.state,
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
                _Resolution(self, planned, result.rpc_id)

    def finished(self, exchange: _Exchange) -> None:
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
            _Resolution(self, planned, exchange.rpc_id)


class _Exchange(Exchange):
    """A call's flow, whose attempts go over the simulated network."""

    def __init__(self, client: Client, planned: PlannedCall) -> None:
        self._client = client
        self.planned = planned
        self._rpcs: dict[int, Rpc | AttemptShell] = {}
        self._timer: Timer | None = None
        self.stream: ClientStream | None = None
        if planned.messages:
            self.stream = ClientStream(client.world, client.process, planned)
        state = client.state
        now = state.now()
        self.request = encode(
            Operation(planned.number, planned.account, planned.amount, planned.behaviour)
        )
        hedges = self.stream is None or self.stream.sends
        super().__init__(
            state,
            Invocation(
                planned.method,
                now,
                None if planned.deadline_s is None else now + planned.deadline_s,
                planned.key or None,
                hedge_after_s=state.settings.hedge_after_s if hedges else None,
                stamp=state.stamp(),
            ),
        )

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        client = self._client
        router = client.state.router
        target = 0 if router is None else router.choose()
        if client.world.loop.tracing:
            client.world.trace(
                client.name, f"call {self.planned.number} attempt {number} to server{target}"
            )
        if self.stream is not None:
            over = partial(self._over, number, target)
            try:
                self._rpcs[number] = self.stream.launch(target, header, timeout_s, over)
            except CallError as error:
                self.fail(error)
            return
        path = client.group
        method = self.invocation.method
        if path is not None and header is not None:
            if self.planned.unrecorded and path.knowledge.view_for(method) is not None:
                header = path.unrecorded(header)
            else:
                begun = begin(path, method, self.request, (header,), timeout_s)
                if isinstance(begun, tuple):
                    self._rpcs[number] = AttemptShell(
                        path,
                        begun[0],
                        target,
                        method,
                        self.request,
                        timeout_s,
                        partial(self._over, number, target),
                    )
                    return
        metadata = () if header is None else (header,)
        self._rpcs[number] = client.world.network.call(
            client.process,
            target,
            "call",
            self.invocation.method,
            metadata,
            self.request,
            timeout_s,
            partial(self._over, number, target),
        )

    def _over(self, number: int, target: int, status: Any, reply: bytes | None) -> None:
        router = self.state.router
        if router is not None:
            router.ended(target, status)
        client = self._client
        if client.world.loop.tracing:
            client.world.trace(
                client.name,
                f"call {self.planned.number} attempt {number}: {status.code().name} "
                f"{status.details() or ''}",
            )
        self.attempt_ended(number, status, reply)

    def cancel_attempt(self, number: int) -> None:
        rpc = self._rpcs.get(number)
        if isinstance(rpc, AttemptShell):
            rpc.cancel()
        elif rpc is not None:
            self._client.world.network.cancel(rpc)

    def set_timer(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._client.process.at(at, self.wake)

    def ended(self) -> None:
        self._client.finished(self)


class _Keeper:
    """Keeps the lease as ``LeaseKeeper``'s thread does: one request at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._busy = False
        self._timer: Timer | None = None

    def look(self) -> None:
        """Look at what is to be done."""
        if self._busy:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = next_request(self._client.state)
        if isinstance(due, LeaseRequest):
            self._ask(due)
        elif due is not None:
            self._timer = self._client.process.at(due, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.look()

    def _ask(self, request: LeaseRequest) -> None:
        client, state = self._client, self._client.state
        self._busy = True
        router = state.router
        target = 0 if router is None else router.targets.current

        def ended(status: Any, reply: bytes | None) -> None:
            self._busy = False
            if router is not None:
                router.ended(target, status, heartbeat=True)
            if status.code() is grpc.StatusCode.OK and reply is not None:
                replied(state, request, REPLIES[request.method].FromString(reply))
            else:
                failed(state, request, status)
            self.look()

        client.world.network.call(
            client.process,
            target,
            "session" if request.method == "OpenSession" else "lease",
            LEASE_SERVICE + request.method,
            (),
            request.message.SerializeToString(),
            request.timeout_s,
            ended,
        )


class _Resolution:
    """A caller asks what became of its call."""

    def __init__(self, client: Client, planned: PlannedCall, rpc_id: Any) -> None:
        self._client = client
        self._planned = planned
        try:
            self._resolver = Resolver(client.state, rpc_id, _RESOLVE_TIMEOUT_S)
        except CallError:
            # Nothing is left to be resolved.
            return
        client.process.after(client.state.jitter(), self._send)

    def _send(self) -> None:
        client = self._client
        router = client.state.router
        client.world.network.call(
            client.process,
            0 if router is None else router.targets.current,
            "resolve",
            RESOLVE_METHOD,
            (),
            self._resolver.request().SerializeToString(),
            self._resolver.remaining_s(),
            self._ended,
        )

    def _ended(self, status: Any, reply: bytes | None) -> None:
        client, world = self._client, self._client.world
        try:
            if status.code() is not grpc.StatusCode.OK or reply is None:
                client.process.after(self._resolver.retry_after_s(status), self._send)
                return
            resolution = self._resolver.read(rifl_pb2.ResolveReply.FromString(reply))
        except CallError as error:
            world.trace(client.name, f"call {self._planned.number} not resolved: {error}")
            return
        value = None
        if isinstance(resolution.reply, bytes):
            value = read_value(resolution.reply)
        world.history.resolved(
            world.loop.now, self._planned.number, resolution.outcome.value, value
        )
        world.trace(
            client.name, f"call {self._planned.number} resolved: {resolution.outcome.value} {value}"
        )


class Closing:
    """A driver closes the session of a batch, until it is told that it is closed."""

    def __init__(self, world: World, session: str) -> None:
        self._world = world
        self._session = session
        self._process = Process(world.loop, "driver")

    def send(self) -> None:
        """Ask for it."""
        self._world.trace("driver", f"closes {self._session}")
        self._world.network.call(
            self._process,
            0,
            "session",
            LEASE_SERVICE + "CloseSession",
            (),
            pb.CloseSessionRequest(
                name=self._session, secret=secret_of(self._session)
            ).SerializeToString(),
            LEASE_TIMEOUT_S,
            self._ended,
        )

    def _ended(self, status: Any, reply: bytes | None) -> None:
        transient = status.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        if transient and not self._world.over:
            self._process.after(0.5, self.send)
