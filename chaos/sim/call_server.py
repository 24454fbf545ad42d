"""Driver of the product's behaviors for ``grpc.aio``: calls, batches, streams at one server.

What stands here is what gRPC is to them: the context of a call, its request stream, cancellation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from chaos.sim.accounts_handler import AccountsHandler, Raised
from chaos.sim.faults import Point
from chaos.sim.network import Rpc
from chaos.sim.server_life import ServerLife
from chaos.sim.service import METHODS, REQUEST_STREAMS, RESPONSE_STREAMS, decode, policy_of
from chaos.sim.shell import SERVED, Served
from chaos.sim.stream_network import StreamRpc
from rifl._client.answers import FinalStatus, read_answer
from rifl._grpc.codes import STATUS_CODES
from rifl._server.aio import unary_behavior
from rifl._server.aio_streams import stream_unary_behavior, unary_stream_behavior
from rifl._server.outcomes_service import aio_resolve
from rifl._server.reply import Replies, SentReply
from rifl.core._serving.answer import Answer
from rifl.core._serving.streams import ResponseStream
from rifl.core._shared.call import Call
from rifl.core._shared.errors import LeaseExpired, RiflError
from rifl.core._shared.stream_end import is_end_marker
from rifl.v1 import rifl_pb2

__all__ = ["Calls"]

_REPEATABLE = "/sim.Accounts/Touch"


class Calls:
    """Takes the calls of one life of a server, and questions what became of some."""

    def __init__(self, life: ServerLife) -> None:
        self._life = life
        handler, shell = AccountsHandler(life), life.shell
        life.engine.replies = _Replies(life)
        self._behaviors: dict[str, Any] = {}
        for method in METHODS:
            policy = policy_of(method)
            if method in REQUEST_STREAMS:
                made: Any = grpc.stream_unary_rpc_method_handler(handler.read)
                behavior: Any = stream_unary_behavior
            elif method in RESPONSE_STREAMS:
                made = grpc.unary_stream_rpc_method_handler(handler.tell)
                behavior = unary_stream_behavior
            else:
                made = grpc.unary_unary_rpc_method_handler(handler.handle)
                behavior = unary_behavior
            self._behaviors[method] = behavior(shell, method, policy, made)
        self._resolve = aio_resolve(life.engine, shell)

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""
        served = Served(self._life.shell, rpc)
        behavior = self._resolve if rpc.kind == "resolve" else self._behaviors[rpc.method]
        request: Any = rpc.request
        if isinstance(rpc, StreamRpc):
            source = _Source(self._life, served, rpc)
            request = source if rpc.method in REQUEST_STREAMS else request
        served.task = self._life.events.create_task(self._serve(served, behavior, request))
        served.task.add_done_callback(lambda task: self._over(served, task))

    def _over(self, served: Served, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # No caller waits; it may not even have begun.
            self._life.world.network.reply(served.rpc, None, None)
            served.left()

    async def _serve(self, served: Served, behavior: Any, request: Any) -> None:
        SERVED.set(served)
        await served.part(self._answer(served, behavior, request))

    async def _answer(self, served: Served, behavior: Any, request: Any) -> None:
        life, rpc = self._life, served.rpc
        context = _Context(life, rpc)
        try:
            response = await behavior(request, context)
        except Exception as error:  # noqa: BLE001 - a defect, which nothing may cause
            life.world.broken(life.name, error)
            return
        status = context.status()
        answered = status.code() is grpc.StatusCode.OK
        life.world.network.reply(rpc, status, response if answered else None)
        if served.answered:
            life.shell.reach(Point.ANSWERED)
            if rpc.method == _REPEATABLE:
                life.shell.reach(Point.REPEATABLE_ANSWERED)
        elif rpc.kind == "resolve" and read_answer(status).reason == LeaseExpired.reason:
            asked = rifl_pb2.ResolveRequest.FromString(rpc.request)
            life.clients.told_as_expired(life.opened.store, asked.client_id)


class _Context:
    """The context that ``grpc.aio`` gives a call."""

    def __init__(self, life: ServerLife, rpc: Rpc) -> None:
        self._rpc = rpc
        self._clock = life.process.clock
        self._until = life.deadline(rpc)
        self._code, self._details = grpc.StatusCode.OK, ""
        self._initial: Any = ()
        self._trailing: Any = ()

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        """Return what came with the request."""
        return self._rpc.metadata

    def peer(self) -> str:
        """Return the one address that all callers have."""
        return "ipv4:10.0.0.1:1"

    def peer_identities(self) -> None:
        """Return none: no caller is authenticated here."""

    def time_remaining(self) -> float | None:
        """Return for how long its caller waits."""
        return None if self._until is None else self._until - self._clock()

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Send it with what comes next."""
        self._initial = metadata

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Send it with the status."""
        self._trailing = metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """End by it."""
        self._code = code

    def set_details(self, details: str) -> None:
        """End by it."""
        self._details = details

    async def write(self, message: bytes) -> None:
        """Send a message of a response stream."""
        await asyncio.sleep(0)
        if isinstance(self._rpc, StreamRpc):
            self._rpc.reply(message)

    def status(self) -> FinalStatus:
        """Return what the call ends by."""
        return FinalStatus(self._code, self._details, self._initial, self._trailing)


class _Source:
    """The messages of a request stream, as they arrive; and that the caller is gone."""

    def __init__(self, life: ServerLife, served: Served, rpc: StreamRpc) -> None:
        self._life = life
        self._served = served
        self._rpc = rpc
        self._unread: deque[bytes] = deque()
        self._closed = self._whole = False
        self._count = 0
        self._waits: asyncio.Future[None] | None = None
        rpc.listener = self
        for data in rpc.first:
            if data is None:
                self._closed = True
            else:
                self._unread.append(data)
        if isinstance(rpc.original, StreamRpc):
            # A proxy sends what it has.
            self._unread.extend(rpc.original.sent)
            self._closed = True

    def message(self, data: bytes) -> None:
        """See ``Listener``."""
        self._unread.append(data)
        self._wake()

    def end(self) -> None:
        """See ``Listener``."""
        self._closed = True
        self._wake()

    def gone(self) -> None:
        """See ``Listener``."""
        self._served.task.cancel()

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> bytes:
        while not (self._unread or self._closed):
            if self._served.begun:
                self._served.at(Point.HALF_READ)
            self._waits = asyncio.get_running_loop().create_future()
            await self._waits
        if not self._unread:
            plan = self._life.world.plan(self._rpc.number)
            self._served.cut = not self._whole and self._count < plan.messages
            raise StopAsyncIteration
        data = self._unread.popleft()
        self._whole = self._whole or is_end_marker(data, self._count)
        self._count += 1
        return data

    def _wake(self) -> None:
        waits, self._waits = self._waits, None
        if waits is not None and not waits.done():
            waits.set_result(None)


class _Replies(Replies):
    """The product's replies, which are written down as they leave."""

    # What it says of each call must be seen.
    observed = True

    def __init__(self, life: ServerLife) -> None:
        super().__init__(None)
        self._life = life

    def status(
        self,
        method: str,
        call: Call | None,
        told: Answer | RiflError,
        began: float,
        raised: Sequence[BaseException] = (),
    ) -> SentReply:
        """See ``Replies``."""
        served, life = SERVED.get(), self._life
        rpc = served.rpc
        self._check(raised)
        operation = decode(rpc.request) if rpc.request and rpc.kind != "batch" else None
        if isinstance(told, RiflError):
            life.refused(rpc, operation, call, told)
        elif call is not None:
            served.answered = True
            rpc.refused = told.outcome is Outcome.NOT_EXECUTED
            if isinstance(rpc, StreamRpc):
                self._streamed(served, rpc, call, told)
            elif operation is not None:
                life.note(rpc, operation, call, told)
        return super().status(method, call, told, began)

    def envelope(
        self,
        method: str,
        calls: Sequence[Call],
        answers: Sequence[Answer | Exception],
        began: float,
        raised: Sequence[tuple[Call, BaseException]],
    ) -> bytes:
        """See ``Replies``."""
        served, life = SERVED.get(), self._life
        self._check([error for _, error in raised])
        batched: Sequence[Any] = calls
        for call, answer in zip(batched, answers, strict=True):
            operation = decode(call.request)
            if isinstance(answer, Answer):
                life.note(served.rpc, operation, call, answer)
                refused = answer.outcome is Outcome.NOT_EXECUTED
                served.rpc.refused = served.rpc.refused or refused
            elif life.tracing:
                life.trace(f"call {operation.call} in a batch: {answer!r}")
        served.answered = True
        return super().envelope(method, calls, answers, began, ())

    def batch_status(
        self, method: str, calls: Sequence[Call], error: RiflError, began: float
    ) -> SentReply:
        """See ``Replies``."""
        served = SERVED.get()
        served.answered = False
        if calls:
            self._life.refused(served.rpc, None, calls[0], error)
        return super().batch_status(method, calls, error, began)

    def _check(self, raised: Sequence[BaseException]) -> None:
        for error in raised:
            if not isinstance(error, Raised | grpc.RpcError):
                self._life.world.broken(self._life.name, error)

    def _streamed(self, served: Served, rpc: StreamRpc, call: Call, answer: Answer) -> None:
        """Write down what the handler of a stream answered."""
        life, world, (record, outcome) = self._life, self._life.world, answer
        number, told = rpc.number, None
        if rpc.method in RESPONSE_STREAMS:
            messages: Sequence[bytes] = record.messages
            if served.begun:
                stream = ResponseStream(call, policy_of(rpc.method))
                for each in served.made:
                    stream.add(each)
                messages = stream.kept
                # One that was too long to be kept is told to this caller alone.
                number = 0 if stream.overflown else number
            told = [[int(each) for each in data.split()] for data in messages]
        elif served.cut and not served.begun:
            world.history.half(world.loop.now, number)
        ran = not record.reason and outcome in (Outcome.EXECUTED, Outcome.REPLAYED)
        if ran and number:
            values = _values(record.response, told) if not record.code else None
            code = STATUS_CODES[record.code].name
            world.history.answer(world.loop.now, number, outcome.value, code, values, told)
        if life.tracing:
            copy = " (copy)" if rpc.copy else ""
            life.trace(
                f"call {number} attempt {call.attempt}{copy}: {outcome.value} "
                f"{record.response or record.details!r}",
            )


def _values(response: bytes | None, messages: Any) -> list[int] | None:
    if messages is not None:
        return list(messages[-1][1:]) if messages else None
    return [int(each) for each in response.split()] if response else None
