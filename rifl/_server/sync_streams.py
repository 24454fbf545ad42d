"""Streams on a ``grpc.server``: one side is a stream, the other a message (DESIGN §4)."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from typing import Any

import grpc

from rifl._grpc.raw import RawAnswer
from rifl._server.context import CURRENT, HandlerContext, Serving
from rifl._server.handler_results import (
    first_metadata,
    message_bytes,
    raised_result,
    returned_result,
)
from rifl._server.reply import SentReply
from rifl._server.sync import SyncShell, send
from rifl.core._serving.admission import admit
from rifl.core._serving.answer import Answer, HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import execute
from rifl.core._serving.streams import RequestStream, ResponseStream
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader, RiflError
from rifl.core._shared.invariant import InvariantViolated


class _Requests(Later):
    """The messages of one call: what was buffered, then what arrives."""

    def __init__(
        self,
        source: Iterator[bytes],
        stream: RequestStream,
        deserialize: Callable[[bytes], Any] | None,
    ) -> None:
        self._source = source
        self._stream = stream
        self._deserialize = deserialize
        self.inner: HandlerContext | None = None

    def buffer(self) -> None:
        """Read the stream to its end, or until no more may be kept."""
        for message in self._source:
            if not (self._stream.take(message) and self._stream.keep(message)):
                return
        self._stream.exhausted()

    def wait(self) -> None:
        """Read the stream to its end, keeping nothing."""
        self._stream.drop()
        for message in self._source:
            if not self._stream.take(message):
                return
        self._stream.exhausted()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise InvariantViolated("a thread does not await")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        message = self._stream.next()
        if message is None:
            if self._stream.ended:
                raise StopIteration
            message = self._arriving()
        return message if self._deserialize is None else self._read(message)

    # As gRPC's own iterator has it.
    next = __next__

    def _arriving(self) -> bytes:
        try:
            message = next(self._source)
        except StopIteration:
            self._broke_off()
            raise
        except BaseException:
            self._stream.break_off()
            raise
        if not self._stream.take(message):
            raise StopIteration
        return message

    def _broke_off(self) -> None:
        try:
            self._stream.exhausted()
        except BadHeader as error:
            raise _BrokenOff(str(error)) from None

    def _read(self, message: bytes) -> Any:
        try:
            return self._deserialize(message)  # type: ignore[misc]
        except Exception:
            if self.inner is not None:
                self.inner.abort(grpc.StatusCode.INTERNAL, "Exception deserializing request!")
            raise


class _BrokenOff(grpc.RpcError):
    """The caller went away in the middle of its stream."""


def stream_unary_behavior(
    shell: SyncShell, method: str, policy: MethodPolicy, handler: Any, *, aio: bool = False
) -> Callable[[Any, Any], Any]:
    """Return the raw behavior that deduplicates calls with a request stream.

    A stream that ends within the method's ``buffer_bytes`` is read first and then
    treated like a unary call's request: one that breaks off before has left no
    trace. A longer one is decided by its identity and handed over as it arrives.
    """
    engine = shell.engine
    replies = engine.replies
    store = engine.store
    serialize = handler.response_serializer
    serving = Serving(store, serialize)

    def run(
        stream: RequestStream,
        requests: _Requests,
        context: Any,
        attempt: Attempt,
        raised: list[BaseException],
    ) -> HandlerResult:
        inner = requests.inner = HandlerContext(context, attempt, serving)
        CURRENT.set(inner)
        try:
            response = handler.stream_unary(requests, inner)
        except BaseException as error:  # noqa: BLE001 - recorded, and logged
            if not inner.aborted:
                raised.append(error)
            return stream.result(raised_result(inner, error, aio=aio))
        finally:
            # As in ``sync``: it were a cycle.
            CURRENT.set(None)
        return returned_result(inner, response, serialize, aio=aio)

    def deduplicated(source: Iterator[bytes], context: Any) -> Any:
        call: Call | None = None
        raised: list[BaseException] = []
        began = replies.begin()
        try:
            call = engine.arrive_stream(method, context)
            stream = RequestStream(call, policy.buffer_bytes)
            requests = _Requests(source, stream, handler.request_deserializer)
            requests.buffer()

            def handle(attempt: Attempt) -> HandlerResult:
                return run(stream, requests, context, attempt, raised)

            told = shell.drive(stream.admit(store, policy, requests), context)
            if isinstance(told, Attempt):
                told = shell.drive(execute(store, told), context, handle)
        except RiflError as refusal:
            told = refusal
        return RawAnswer(send(context, replies.status(method, call, told, began, raised)))

    return deduplicated


class _Messages:
    """What the handler of a response stream makes, one message after the other."""

    def __init__(
        self,
        handler: Callable[[], Any],
        conclude: Callable[[HandlerResult, list[BaseException]], SentReply],
        responses: ResponseStream,
        inner: HandlerContext,
        serialize: Callable[[Any], bytes] | None,
        *,
        aio: bool,
    ) -> None:
        self._handler = handler
        self._conclude = conclude
        self._responses = responses
        self._inner = inner
        self._serialize = serialize
        self._aio = aio
        self._produced: Any = None
        # Set when it has ended.
        self.live: HandlerResult
        self.raised: list[BaseException] = []

    def next(self) -> bytes | None:
        """Return the next message that the caller lacks; None: the handler has ended."""
        responses, inner, serialize = self._responses, self._inner, self._serialize
        CURRENT.set(inner)
        try:
            if self._produced is None:
                self._produced = iter(self._handler())
            for response in self._produced:
                data = message_bytes(response if serialize is None else serialize(response))
                if responses.add(data):
                    return data
        except BaseException as error:  # noqa: BLE001 - recorded, and logged
            if not inner.aborted:
                self.raised.append(error)
            self.live = raised_result(inner, error, aio=self._aio)
        else:
            self.live = returned_result(inner, b"", None, aio=self._aio)
        finally:
            # As in ``sync``: it were a cycle.
            CURRENT.set(None)
        return None

    def end(self) -> SentReply:
        """Have what the handler did recorded; returns what is sent then."""
        return self._conclude(self._responses.result(self.live), self.raised)

    def finish(self) -> None:
        """Run on to the end: the caller is gone, the effect is recorded."""
        self.next()
        self.end()


def unary_stream_behavior(
    shell: SyncShell, method: str, policy: MethodPolicy, handler: Any, *, aio: bool = False
) -> Callable[[Any, Any], Any]:
    """Return the raw behavior that deduplicates calls with a response stream.

    Messages leave as the handler makes them, its status when the record is
    durable. When the caller goes away the handler runs on, as far as its messages
    can be recorded. A later attempt gets the recorded messages it lacks.
    """
    engine = shell.engine
    replies = engine.replies
    store = engine.store
    deserialize = handler.request_deserializer
    serialize = handler.response_serializer
    serving = Serving(store, serialize)
    abandoned = shell.abandoned

    def deduplicated(request: bytes, context: Any) -> Iterator[bytes]:
        call: Call | None = None
        began = replies.begin()
        try:
            call = engine.arrive(method, request, context, deserialize)
            received = engine.received(context)
            responses = ResponseStream(call, policy, received)
            answer = shell.drive(admit(store, call, policy), context)
            if isinstance(answer, Attempt):
                steps = execute(store, answer)
                attempt = shell.drive(steps, context)
            else:
                rest = ResponseStream.rest(answer.record, received)
        except RiflError as refusal:
            send(context, replies.status(method, call, refusal, began))
            return
        if not isinstance(answer, Attempt):
            status = replies.status(method, call, answer, began)
            if status.initial_metadata:
                context.send_initial_metadata(status.initial_metadata)
            yield from rest
            send(context, status._replace(initial_metadata=()))
            return
        inner = HandlerContext(context, attempt, serving)

        def begin() -> Any:
            message = request if deserialize is None else deserialize(request)
            behavior = handler.unary_stream
            if getattr(behavior, "experimental_non_blocking", False):
                return _called_back(behavior, message, inner)
            return behavior(message, inner)

        def conclude(result: HandlerResult, raised: list[BaseException]) -> SentReply:
            told: Answer | RiflError
            try:
                told = responses.ended(shell.drive(steps, context, value=result))
            except RiflError as refusal:
                told = refusal
            return replies.status(method, call, told, began, raised)

        made = _Messages(begin, conclude, responses, inner, serialize, aio=aio)
        abandoned.keep(made)
        opened = False
        try:
            while (data := made.next()) is not None:
                if not opened and (initial := first_metadata(inner)):
                    context.send_initial_metadata(initial)
                opened = True
                yield data
        except BaseException:
            # GeneratorExit, as a rule: the caller is gone.
            responses.leave()
            abandoned.run(made)
            raise
        abandoned.forget(made)
        status = made.end()
        send(context, status._replace(initial_metadata=()) if opened else status)

    return deduplicated


def _called_back(behavior: Any, message: Any, context: HandlerContext) -> Iterator[Any]:
    """Return the messages of a handler that is given a callback for them, as gRPC has it.

    It is called at once, and its messages may come from any thread; None is the last.
    """
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    behavior(message, context, made.put)
    return iter(made.get, None)
