"""Calls with a stream at a server of the simulator: the product's rules, with events.

What the sync and the aio shell do with threads and coroutines: read, run the handler,
send its messages. What becomes of a call is decided by ``rifl.core._serving.streams``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from chaos.sim.accounts_handler import AccountsHandler
from chaos.sim.faults import Point
from chaos.sim.server_life import Context, ServerLife
from chaos.sim.service import (
    ABORTED,
    RAISED,
    REQUEST_STREAMS,
    UNRECORDED,
    Operation,
    decode,
    policy_of,
)
from chaos.sim.shell import Eventual, Handlers, Task
from chaos.sim.stream_network import StreamRpc
from rifl._grpc.codes import STATUS_CODES
from rifl._server.reply import Reply
from rifl.core._serving.admission import admit
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._serving.serving import execute
from rifl.core._serving.streams import RequestStream, ResponseStream
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader, RiflError
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord

__all__ = ["StreamCalls"]

_Steps = Generator[Any, Any, Any]
_GoOn = Callable[[HandlerResult], None]


class StreamCalls:
    """Takes the streams of one life of a server."""

    def __init__(self, life: ServerLife, handler: AccountsHandler) -> None:
        self.life = life
        self.handler = handler

    def receive(self, rpc: StreamRpc) -> None:
        """Take an attempt whose stream begins."""
        context = Context(rpc.metadata)
        if rpc.method in REQUEST_STREAMS:
            try:
                call = self.life.engine.arrive_stream(rpc.method, context)
            except RiflError as error:
                self.life.refuse(rpc, None, None, error)
                return
            Reading(self, rpc, call).go()
            return
        operation = decode(rpc.request)
        try:
            call = self.life.engine.arrive(rpc.method, rpc.request, context)
            received = self.life.engine.received(context)
        except RiflError as error:
            self.life.refuse(rpc, operation, None, error)
            return
        Telling(self, rpc, call, operation, received).go()

    def pause(self, seconds: float) -> _Steps:
        """Let time pass."""
        eventual = Eventual()
        self.life.process.after(seconds, eventual.finish)
        yield from eventual.__await__()

    def answer(
        self, rpc: StreamRpc, call: Call, answer: Answer, number: int, messages: Any
    ) -> None:
        """Send the final status of a call, and write down what its handler answered."""
        record, outcome = answer
        world = self.life.world
        ran = not record.reason and outcome in (Outcome.EXECUTED, Outcome.REPLAYED)
        if ran and number:
            values = _values(record.response, messages) if not record.code else None
            code = STATUS_CODES[record.code].name
            world.history.answer(world.loop.now, number, outcome.value, code, values, messages)
        if world.loop.tracing:
            copy = " (copy)" if rpc.copy else ""
            self.life.trace(
                f"call {number} attempt {call.attempt}{copy}: {outcome.value} "
                f"{record.response or record.details!r}",
            )
        rpc.refused = outcome is Outcome.NOT_EXECUTED
        self.life.send(rpc, Reply(call, answer).status())
        self.life.shell.reach(Point.ANSWERED)


class Reading:
    """One attempt of a call with a request stream."""

    def __init__(self, calls: StreamCalls, rpc: StreamRpc, call: Call) -> None:
        self._calls = calls
        self._rpc = rpc
        self._call = call
        self._policy = policy_of(rpc.method)
        self._stream = RequestStream(call, self._policy.buffer_bytes)
        self._unread: deque[bytes] = deque()
        self._closed = False
        self._waits: Eventual | None = None
        self._count = 0
        rpc.listener = self

    def go(self) -> None:
        """Begin to read."""
        calls, rpc = self._calls, self._rpc
        original = rpc.original
        for data in rpc.first:
            if data is None:
                self.end()
            else:
                self.message(data)
        if isinstance(original, StreamRpc):
            # A proxy sends what it has.
            self._unread.extend(original.sent)
            self._closed = True
        steps = self._steps()
        Task(calls.life.shell, steps, self._served, self._handle, calls.life.deadline(rpc)).go()

    # -- what arrives ------------------------------------------------------------------

    def message(self, data: bytes) -> None:
        """See ``Listener``."""
        self._unread.append(data)
        self._wake()

    def end(self) -> None:
        """See ``Listener``."""
        self._closed = True
        self._wake()

    def gone(self) -> None:
        """See ``Listener``: the end of the stream says so, or the marker has come."""

    def _wake(self) -> None:
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.finish()

    def _next(self) -> Generator[Any, Any, bytes | None]:
        while not (self._unread or self._closed):
            self._waits = Eventual()
            yield from self._waits.__await__()
        if self._unread:
            data = self._unread.popleft()
            if self._stream.take(data):
                self._count += 1
                return data
        else:
            self._stream.exhausted()
        world, number = self._calls.life.world, self._rpc.number
        if self._count < world.plan(number).messages:
            world.history.half(world.loop.now, number)
            if world.loop.tracing:
                self._calls.life.trace(f"call {number}: half of it is believed")
        return None

    def rest(self) -> _Steps:
        """Read to the end, keeping nothing."""
        self._stream.drop()
        while (yield from self._next()) is not None:
            pass

    # -- the call ----------------------------------------------------------------------

    def _steps(self) -> _Steps:
        store, stream = self._calls.life.engine.store, self._stream
        while (data := (yield from self._next())) is not None:
            if not stream.keep(data):
                break
        answer = yield from stream.admit(store, self._policy, _Rest(self))
        if isinstance(answer, Attempt):
            answer = yield from execute(store, answer)
        return answer

    def _served(self, answer: Answer | None, error: BaseException | None) -> None:
        calls, rpc = self._calls, self._rpc
        if answer is not None:
            calls.answer(rpc, self._call, answer, rpc.number, None)
        else:
            calls.life.refuse(rpc, None, self._call, error)

    # -- the handler -------------------------------------------------------------------

    def _handle(self, attempt: Attempt, go_on: _GoOn, task: Task) -> None:
        _Handler(self._work(attempt, task), go_on).go()

    def _work(self, attempt: Attempt, task: Task) -> Generator[Any, Any, HandlerResult]:
        calls, stream = self._calls, self._stream
        world = calls.life.world
        first: Operation | None = None
        answer: bytes | None = None
        amount = 0
        try:
            while True:
                data = stream.next()
                if data is None:
                    if stream.ended:
                        break
                    task.at(Point.HALF_READ)
                    data = yield from self._next()
                    if data is None:
                        break
                part = decode(data)
                amount += part.amount
                if first is None:
                    first = part
                    if attempt.policy.kind is Kind.IDEMPOTENT:
                        world.history.begin(world.loop.now, part.call)
                    if part.behaviour == "abort":
                        return HandlerResult(ABORTED)
                    if part.behaviour == "early":
                        answer = world.accounts.apply(part, world.loop.now)
        except BadHeader:
            if self._rpc.broken_by is not None:
                world.coverage.hit(self._rpc.broken_by, Point.BROKEN_OFF)
            if world.loop.tracing:
                calls.life.trace(f"call {self._rpc.number} breaks off under its handler")
            return stream.result(HandlerResult(RAISED, raised=True))
        if first is None:
            return HandlerResult(ABORTED)
        task.at(Point.HANDLER)
        yield from calls.pause(world.plan(first.call).work_s)
        if answer is not None:
            return HandlerResult(CompletionRecord(response=answer))
        done = Eventual()
        calls.handler.effect(attempt, first._replace(amount=amount), done.finish, task)
        result: HandlerResult = yield from done.__await__()
        return stream.result(result)


class Telling:
    """One attempt of a call with a response stream."""

    def __init__(
        self, calls: StreamCalls, rpc: StreamRpc, call: Call, operation: Operation, received: int
    ) -> None:
        self._calls = calls
        self._rpc = rpc
        self._call = call
        self._operation = operation
        self._received = received
        self._policy = policy_of(rpc.method)
        self._responses = ResponseStream(call, self._policy, received)
        self._ran = False
        rpc.listener = self
        if rpc.copy:
            self._responses.leave()

    def go(self) -> None:
        """Begin."""
        calls = self._calls
        Task(
            calls.life.shell,
            self._steps(),
            self._served,
            self._handle,
            calls.life.deadline(self._rpc),
        ).go()

    def message(self, data: bytes) -> None:
        """See ``Listener``: none is sent."""

    def end(self) -> None:
        """See ``Listener``: the request was all there is."""

    def gone(self) -> None:
        """See ``Listener``."""
        self._responses.leave()

    def _steps(self) -> _Steps:
        store = self._calls.life.engine.store
        answer = yield from admit(store, self._call, self._policy)
        if isinstance(answer, Attempt):
            self._ran = True
            answer = yield from execute(store, answer)
        return answer

    def _served(self, answer: Answer | None, error: BaseException | None) -> None:
        calls, rpc, responses = self._calls, self._rpc, self._responses
        if answer is None:
            calls.life.refuse(rpc, self._operation, self._call, error)
            return
        messages = answer.record.messages
        try:
            if self._ran:
                answer = responses.ended(answer)
                messages = () if responses.overflown else tuple(responses.kept)
            else:
                for data in ResponseStream.rest(answer.record, self._received):
                    rpc.reply(data)
        except RiflError as refusal:
            calls.life.refuse(rpc, self._operation, self._call, refusal)
            return
        # One that was too long to be kept is told to this caller alone.
        number = 0 if self._ran and responses.overflown else self._operation.call
        told = [[int(each) for each in data.split()] for data in messages]
        calls.answer(rpc, self._call, answer, number, told)

    def _handle(self, attempt: Attempt, go_on: _GoOn, task: Task) -> None:
        _Handler(self._work(attempt, task), go_on).go()

    def _work(self, attempt: Attempt, task: Task) -> Generator[Any, Any, HandlerResult]:
        calls, operation, responses = self._calls, self._operation, self._responses
        world = calls.life.world
        plan = world.plan(operation.call)
        again = attempt.policy.kind is Kind.IDEMPOTENT
        if again:
            world.history.begin(world.loop.now, operation.call)
        yield from calls.pause(plan.work_s)
        if operation.behaviour == "later":
            return responses.result(HandlerResult(UNRECORDED))
        version, total = 0, 0
        acts_at = operation.call % plan.messages
        for place in range(plan.messages):
            if place == acts_at:
                if operation.behaviour == "abort":
                    return responses.result(HandlerResult(ABORTED))
                answer = world.accounts.apply(operation, world.loop.now)
                if operation.behaviour == "raise":
                    return responses.result(HandlerResult(RAISED, raised=True))
                version, total = (int(each) for each in answer.split())
            if again:
                # What may run again has to make the same messages again.
                version, total = 0, operation.amount
            data = b"%d %d %d" % (place, version, total)
            if responses.add(data):
                self._rpc.reply(data)
            if place + 1 < plan.messages:
                task.at(Point.HALF_MADE)
                if plan.pace_s:
                    yield from calls.pause(plan.pace_s)
        task.at(Point.EFFECT)
        return responses.result(HandlerResult(CompletionRecord(response=b"")))


class _Rest(Handlers):
    """Reads a known call's payload; it is no step of that call's own."""

    __slots__ = ("_reading",)

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def wait(self) -> Any:
        """Nobody blocks here."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, Any]:
        """Read it."""
        return self._reading.rest()


class _Handler:
    """Drives a handler that waits, and tells what it returned."""

    __slots__ = ("_go_on", "_steps")

    def __init__(self, steps: Generator[Any, Any, HandlerResult], go_on: _GoOn) -> None:
        self._steps = steps
        self._go_on = go_on

    def go(self) -> None:
        """Carry on until something has to be waited for."""
        try:
            eventual: Eventual = self._steps.send(None)
        except StopIteration as stop:
            self._go_on(stop.value)
        else:
            eventual.callback = self.go


def _values(response: bytes | None, messages: Any) -> list[int] | None:
    if messages is not None:
        return list(messages[-1][1:]) if messages else None
    return [int(each) for each in response.split()] if response else None
