"""The server interceptors: which calls are deduplicated (DESIGN §4)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio

from _rifl_ground.forks import in_children
from _rifl_ground.log import get_logger
from rifl._grpc.raw import RawAnswer, raw_handler
from rifl._server import aio, aio_streams, sync, sync_streams
from rifl._server.call_engine import CallEngine
from rifl._server.declarations import untaken_options
from rifl._server.reply import Replies
from rifl._stores.forks import forked_error
from rifl._wire.header import HEADER_KEY, is_repeated
from rifl.core._serving.policy import MethodPolicy, PolicyError
from rifl.core._shared.errors import BadHeader, NotDeduplicated, RiflError

_Wrap = Callable[[str, MethodPolicy, Any], Any]
_Refuse = Callable[[str, RiflError, Any], Any]
_MAX_WRAPPED = 4096
_NOT_WRAPPED: tuple[Any, Any] = (None, None)
_log = get_logger("rifl.server")


class _Wrapping:
    """Decides per call, without a lock or I/O, and wraps a handler once."""

    def __init__(self, engine: CallEngine, wrap: _Wrap, refuse: _Refuse) -> None:
        self._engine = engine
        self._policies = engine.policies
        self._wrap = wrap
        self._refuse = refuse
        # By method, the handler and what it was wrapped as.
        self._wrapped: dict[str, tuple[Any, Any]] = {}
        # Services whose options were looked for.
        self._looked_at: set[str] = set()
        in_children(self, _Wrapping._refuse_all)

    def _refuse_all(self) -> None:
        """Refuse every call that has an identity: what would decide is the parent's."""
        refuse = self._refuse
        self._wrapped = {}
        self._wrap = lambda method, _, handler: refuse(
            method, forked_error("Deduplicator"), handler
        )

    def wrapped(self, details: Any, handler: Any) -> Any:
        """Return what answers a call, of the handler that was found for it, if any."""
        method, metadata = details.method, details.invocation_metadata
        # Most servers have one handler object a method; interceptors inside ours
        # may make a new one each time.
        known = self._wrapped.get(method, _NOT_WRAPPED)
        # Read by position: to unpack an entry of gRPC's class costs more.
        for entry in metadata or ():
            if entry[0] == HEADER_KEY:
                if known[0] is handler:
                    return known[1]
                identified = True
                break
        else:
            identified = False
        if handler is None:
            return None
        policy = self._policies.find(method)
        self._look_for_options(method)
        if policy is None:
            return handler
        if handler.request_streaming or handler.response_streaming:
            marked = self._policies.marked(method)
            if not marked:
                # It passes through. But to send it again, its caller took it for declared.
                again = identified and is_repeated(metadata)
                return self._refuse(method, _undeclared(method), handler) if again else handler
            if handler.request_streaming and handler.response_streaming:
                # Not found at start-up, where the server could not be looked into.
                return self._refuse(method, _bidirectional(method), handler)
        if not identified:
            if not self._engine.takes_keys(policy, metadata):
                if policy.required:
                    return self._refuse(method, _needs_identity(method), handler)
                return handler
            if known[0] is handler:
                return known[1]
        wrapped = self._wrap(method, policy, handler)
        if len(self._wrapped) >= _MAX_WRAPPED:
            self._wrapped.clear()
        self._wrapped[method] = (handler, wrapped)
        return wrapped

    def _look_for_options(self, method: str) -> None:
        """Say so once where a service's options are not honoured: clients were told otherwise."""
        service = method[1 : method.rfind("/")]
        if service in self._looked_at or len(self._looked_at) >= _MAX_WRAPPED:
            return
        self._looked_at.add(service)
        if untaken := untaken_options(self._policies, service):
            _log.error(
                "options_not_taken",
                methods=untaken,
                hint="Deduplicator(services=[...]), or add_to_server before the servicers",
            )


def _needs_identity(method: str) -> BadHeader:
    return BadHeader(f"{method} takes calls with an identity only: by rifl.connect, or a key")


def _undeclared(method: str) -> NotDeduplicated:
    return NotDeduplicated(f"{method} is a stream, which is deduplicated only if it is declared")


def _bidirectional(method: str) -> NotDeduplicated:
    return NotDeduplicated(f"{method} is declared, but bidirectional: it cannot be deduplicated")


class ServerHandlers(NamedTuple):
    """The handlers of a server, with the interceptors after rifl's, as one call found them."""

    continuation: Any
    details: Any


# What makes a method's handler anew for each call of it, of the server's other handlers.
Hosted = Callable[[ServerHandlers], Any]


class SyncInterceptor(grpc.ServerInterceptor):
    """For ``grpc.server(interceptors=[...])``; any thread.

    Put interceptors that authorise before it in the list, since those after it
    are skipped on a replay; those that change payloads go after it.
    """

    def __init__(self, engine: CallEngine) -> None:
        self._wrapping = _Wrapping(
            engine, _sync_wrap(sync.SyncShell(engine)), _sync_refuse(engine.replies)
        )
        # Methods that are given what finds other methods' handlers.
        self.hosted: dict[str, Hosted] = {}

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap the handler of a call that has an identity."""
        if self.hosted and (made := self.hosted.get(handler_call_details.method)) is not None:
            return made(ServerHandlers(continuation, handler_call_details))
        return self._wrapping.wrapped(handler_call_details, continuation(handler_call_details))


class AioInterceptor(grpc.aio.ServerInterceptor):
    """For ``grpc.aio.server(interceptors=[...])``; the order as for the sync one.

    Handlers that are plain functions run, as ever, in the server's thread pool.
    """

    def __init__(self, engine: CallEngine) -> None:
        self.shell = aio.AioShell(engine)
        wrap_function = _sync_wrap(sync.SyncShell(engine), aio=True)

        def wrap(method: str, policy: MethodPolicy, handler: Any) -> Any:
            if not is_coroutine(_behavior(handler)):
                return wrap_function(method, policy, handler)
            if handler.request_streaming:
                return grpc.stream_unary_rpc_method_handler(
                    aio_streams.stream_unary_behavior(self.shell, method, policy, handler)
                )
            if handler.response_streaming:
                return grpc.unary_stream_rpc_method_handler(
                    aio_streams.unary_stream_behavior(self.shell, method, policy, handler)
                )
            behavior = aio.unary_behavior(self.shell, method, policy, handler)
            return grpc.unary_unary_rpc_method_handler(behavior)

        self._wrapping = _Wrapping(engine, wrap, _aio_refuse(engine.replies))
        self.hosted: dict[str, Hosted] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Wrap the handler of a call that has an identity."""
        if self.hosted and (made := self.hosted.get(handler_call_details.method)) is not None:
            return made(ServerHandlers(continuation, handler_call_details))
        handler = await continuation(handler_call_details)
        return self._wrapping.wrapped(handler_call_details, handler)


class Interceptors:
    """The interceptors of one engine, and for which kinds of server they were asked for.

    A server that has none, but hosts our services, would tell clients that their calls
    happen once. It is made before those are added, so by then ours was asked for.
    """

    def __init__(self, engine: CallEngine) -> None:
        self._sync = SyncInterceptor(engine)
        self.aio = AioInterceptor(engine)
        self._asked: set[type] = set()

    def for_server(self) -> grpc.ServerInterceptor:
        """Return the one for ``grpc.server``."""
        self._asked.add(grpc.Server)
        return self._sync

    def for_aio_server(self) -> grpc.aio.ServerInterceptor:
        """Return the one for ``grpc.aio.server``."""
        self._asked.add(grpc.aio.Server)
        return self.aio

    def host(self, server: object, methods: Mapping[str, Hosted]) -> None:
        """Have these methods of a server answered by handlers that are made for each call."""
        kind = self.aio if isinstance(server, grpc.aio.Server) else self._sync
        kind.hosted.update(methods)

    def require(self, server: object, owner: str) -> None:
        """Raise ``PolicyError`` where the server cannot have been given ours."""
        for kind, method in ((grpc.Server, "interceptor"), (grpc.aio.Server, "aio_interceptor")):
            if isinstance(server, kind) and kind not in self._asked:
                raise PolicyError(
                    "the server was made without rifl's interceptor: "
                    f"pass interceptors=[{owner}.{method}()] to it"
                )


def _sync_wrap(shell: sync.SyncShell, *, aio: bool = False) -> _Wrap:
    def wrap(method: str, policy: MethodPolicy, handler: Any) -> Any:
        behavior: Any
        wrapped: Any
        if handler.request_streaming:
            behavior = sync_streams.stream_unary_behavior(shell, method, policy, handler, aio=aio)
            wrapped = raw_handler(behavior, request_streaming=True)
        elif handler.response_streaming:
            behavior = sync_streams.unary_stream_behavior(shell, method, policy, handler, aio=aio)
            wrapped = grpc.unary_stream_rpc_method_handler(behavior)
        else:
            behavior = sync.unary_behavior(shell, method, policy, handler, aio=aio)
            wrapped = raw_handler(behavior)
        # gRPC's own hint for handlers that want a pool of their own.
        pool = getattr(_behavior(handler), "experimental_thread_pool", None)
        if pool is not None:
            behavior.experimental_thread_pool = pool
        return wrapped

    return wrap


def _sync_refuse(replies: Replies) -> _Refuse:
    def refusing(method: str, error: RiflError, handler: Any) -> Any:
        def refuse(request: Any, context: Any) -> RawAnswer:
            status = replies.status(method, None, error, replies.begin())
            return RawAnswer(sync.send(context, status))

        def refuse_stream(request: Any, context: Any) -> Iterator[bytes]:
            refuse(request, context)
            return iter(())

        if not handler.response_streaming:
            return raw_handler(refuse, request_streaming=handler.request_streaming)
        return _stream_handler(refuse_stream, handler)

    return refusing


def _aio_refuse(replies: Replies) -> _Refuse:
    def refusing(method: str, error: RiflError, handler: Any) -> Any:
        async def refuse(request: Any, context: Any) -> bytes | None:
            status = replies.status(method, None, error, replies.begin())
            message = await aio.send(context, status)
            return None if handler.response_streaming else message

        if handler.response_streaming:
            return _stream_handler(refuse, handler)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(refuse)

    return refusing


def _stream_handler(behavior: Any, handler: Any) -> Any:
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(behavior)
    return grpc.unary_stream_rpc_method_handler(behavior)


def _behavior(handler: Any) -> Any:
    if handler.request_streaming:
        return handler.stream_unary
    return handler.unary_stream if handler.response_streaming else handler.unary_unary


def is_coroutine(behavior: Any) -> bool:
    """Whether an aio server awaits what this handler returns."""
    # As grpc.aio itself tells them apart.
    return (
        inspect.iscoroutinefunction(behavior)
        or inspect.isawaitable(behavior)
        or inspect.isasyncgenfunction(behavior)
    )
