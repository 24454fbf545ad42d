"""The entrance of our services on a ``grpc.server``: where calls wait for their message.

gRPC gives a unary call a thread before its message is there, and waits in that thread without a
bound. Here a handler takes the message from a stream of requests, which is the same on the wire.
At most ``WAITING`` calls of a server wait. Each service has as many threads beside those that
answer, so a message that does not come delays none that does.
"""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import grpc

from rifl._grpc.ended_calls import EndedCalls
from rifl._grpc.waiting import WaitingCall, WaitingCalls

# Of one server at once; each holds a thread.
WAITING = 256
# How long a call may wait at least: its message may be there, and its thread wait for a turn.
_GRACE_S = 0.05
# How long a message may take, and how many times as long one that may be above 1 MiB.
MESSAGE_S = 10.0
LARGE = 6
# As gRPC says it of a unary method.
NO_MESSAGE = "the method requires exactly one request message"
# How often a thread looks for calls that wait too long; it ends after so many looks in vain.
LOOK_S, _LOOKS = 1.0, 10

# Set where a handler is looked for: in the call's context, in which interceptors run, too.
_looking = contextvars.ContextVar("rifl_looking_for_handler", default=False)
_Handler: Any = type(grpc.unary_unary_rpc_method_handler(lambda request, _: request))


class _Enters(_Handler):  # type: ignore[misc]  # gRPC's class has no public name
    """A handler that takes one message: unary to interceptors, streaming to gRPC itself.

    Interceptors that wrap unary handlers, or look at ``request_streaming``, find a unary one,
    and what they make of it is served as they made it. gRPC reads ``request_streaming`` last,
    outside of the call's context.
    """

    __slots__ = ()

    @property
    def request_streaming(self) -> bool:
        """Whether gRPC hands the requests over as a stream."""
        unary, streaming = (
            (self.unary_stream, self.stream_stream)
            if self.response_streaming
            else (self.unary_unary, self.stream_unary)
        )
        # One that an interceptor put in the unary one's place, by ``_replace``, is not passed by.
        return not _looking.get() and getattr(streaming, "unary", None) is unary


class ServiceThreads:
    """The threads of one service: so many of them answer at once, in the others calls wait."""

    def __init__(self, name: str, answering: int, executor: Executor | None = None):
        """``executor``: answers instead of these threads; one of them waits for each answer."""
        self.pool = ThreadPoolExecutor(WAITING + answering, name)
        self._executor = executor
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(answering):
            self._places.put(None)

    def answer(self, behavior: Callable[..., Any], *given: Any) -> Any:
        """Call it when there is a place."""
        if self._executor is not None:
            run = contextvars.copy_context().run
            return self._executor.submit(run, behavior, *given).result()
        self._places.get()
        try:
            return behavior(*given)
        finally:
            self._places.put(None)


class Entrance:
    """Of one ``grpc.server``. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: WaitingCalls[WaitingCall] = WaitingCalls(WAITING, _GRACE_S)
        self._ended = EndedCalls()
        self._crowded = threading.Event()
        self._watched = False
        self._look_s = LOOK_S

    def handler(
        self,
        behavior: Callable[..., Any],
        threads: ServiceThreads,
        *,
        message_s: float = MESSAGE_S,
        request_deserializer: Callable[[bytes], Any] | None = None,
        response_serializer: Callable[[Any], bytes] | None = None,
        response_streaming: bool = False,
    ) -> Any:
        """Return the handler of a method with one request. It is found by ``found`` alone.

        ``message_s``: how long the message may take; then the call is cancelled.
        """
        self._look_s = min(self._look_s, message_s / 4)

        def unary(*given: Any) -> Any:
            return behavior(*given)

        def streaming(requests: Iterator[Any], context: Any, *more: Any) -> Any:
            try:
                message = self._message(requests, context, message_s)
            except StopIteration:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_MESSAGE)
            return threads.answer(behavior, message, context, *more)

        twins: Any = (unary, streaming)
        for each in twins:
            # gRPC's own way to keep a handler out of the server's pool.
            each.experimental_thread_pool = threads.pool
            each.experimental_non_blocking = getattr(behavior, "experimental_non_blocking", False)
        twins[1].unary = unary
        behaviors = (
            (None, unary, None, streaming) if response_streaming else (unary, None, streaming, None)
        )
        return _Enters(
            True, response_streaming, request_deserializer, response_serializer, *behaviors
        )

    def entered(self, handler: Any, threads: ServiceThreads, message_s: float = MESSAGE_S) -> Any:
        """Return a handler that generated code made, as one of this entrance's."""
        if not handler.request_streaming:
            return self.handler(
                handler.unary_stream if handler.response_streaming else handler.unary_unary,
                threads,
                message_s=message_s,
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
                response_streaming=handler.response_streaming,
            )

        behavior = handler.stream_stream

        def streaming(requests: Iterator[Any], context: Any) -> Any:
            message = functools.partial(self._message, requests, context, message_s)
            # Until it raises StopIteration: no message is None.
            return behavior(iter(message, None), context)

        streaming.experimental_thread_pool = threads.pool  # type: ignore[attr-defined]
        return grpc.stream_stream_rpc_method_handler(
            streaming, handler.request_deserializer, handler.response_serializer
        )

    def _message(self, requests: Iterator[Any], context: Any, message_s: float) -> Any:
        """Return the next message; raises what ``next`` does."""
        call = WaitingCall(context, time.monotonic(), message_s)
        try:
            with self._lock:
                gone = self._make_room(call.since) if self._waiting.enter(call) else ()
                if not self._watched:
                    watch = threading.Thread(target=self._watch, name="rifl-entrance", daemon=True)
                    watch.start()
                    self._watched = True
            self._ended.note(gone, call.since)
            message = next(requests)
        finally:
            with self._lock:
                stayed = self._waiting.leave(call)
        if not stayed:
            context.abort(grpc.StatusCode.CANCELLED, "the message came too late")
        return message

    def _make_room(self, now: float) -> Sequence[WaitingCall]:
        gone = self._waiting.take_crowding(now)
        _cancel(gone)
        if self._waiting.crowded:
            # The watch ends those that may not go yet: perhaps no other call can enter.
            self._crowded.set()
        else:
            self._crowded.clear()
        return gone

    def _watch(self) -> None:
        """End the calls whose message takes too long, until none has waited for a while."""
        looks = 0
        while looks < _LOOKS:
            if self._crowded.wait(self._look_s):
                time.sleep(_GRACE_S / 2)
            with self._lock:
                now = time.monotonic()
                gone = self._waiting.take_expired(now)
                _cancel(gone)
                gone += self._make_room(now)
                looks = 0 if len(self._waiting) else looks + 1
                if looks == _LOOKS:
                    self._watched = False
            self._ended.note(gone, now)


class EntranceInterceptor(grpc.ServerInterceptor):
    """An entrance for the application's methods, too: of a ``grpc.server`` that a command starts.

    It is the first of the server's interceptors. Methods with one request are answered by
    ``threads``, and not by the server's pool.
    """

    def __init__(self, threads: ServiceThreads, message_s: float = LARGE * MESSAGE_S) -> None:
        self._entrance = Entrance()
        self._threads = threads
        self._message_s = message_s
        self._made: dict[str, tuple[Any, Any]] = {}

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Return the handler that takes its message from a stream."""
        handler = continuation(handler_call_details)
        if handler is None or isinstance(handler, _Enters) or handler.request_streaming:
            return handler
        method = handler_call_details.method
        known = self._made.get(method)
        if known is None or known[0] is not handler:
            made = self._entrance.entered(handler, self._threads, self._message_s)
            known = self._made[method] = (handler, made)
        return known[1]


def _cancel(calls: list[WaitingCall]) -> None:
    for call in calls:
        call.context.cancel()


_entrances: weakref.WeakKeyDictionary[Any, Entrance] = weakref.WeakKeyDictionary()


def entrance_of(server: Any) -> Entrance:
    """Return the entrance of a ``grpc.server``, which all our services on it share."""
    found = _entrances.get(server)
    if found is None:
        found = _entrances[server] = Entrance()
    return found


def found(handler: Any) -> Any:
    """Return a handler that is looked for on a call's way through the interceptors."""
    _looking.set(True)
    return handler


class EnteredServer:
    """What generated code adds a service to in a server's place: with its entrance."""

    def __init__(self, server: Any, threads: ServiceThreads) -> None:
        self._server = server
        self._threads = threads

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Do nothing: the same handlers are registered."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """See ``grpc.Server``."""
        entrance = entrance_of(self._server)
        entered = {name: entrance.entered(each, self._threads) for name, each in handlers.items()}
        self._server.add_generic_rpc_handlers((EnteredService(service, entered),))


class EnteredService(grpc.ServiceRpcHandler):
    """A service whose handlers an ``Entrance`` made, to be added to a server."""

    def __init__(self, name: str, handlers: Mapping[str, Any]) -> None:
        """``handlers``: by method."""
        self._name = name
        # By gRPC's name, under which handlers of a server are looked for.
        self._method_handlers = {
            f"/{name}/{method}": handler for method, handler in handlers.items()
        }

    def service_name(self) -> str:
        """Return the full name."""
        return self._name

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, None for one that is not the service's."""
        handler = self._method_handlers.get(handler_call_details.method)
        return None if handler is None else found(handler)
