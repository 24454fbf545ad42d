"""The server interceptors: which calls are deduplicated (DESIGN §4)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from lease_server.raw import RawAnswer, raw_handler
from rifl.core.errors import BadHeader
from rifl.core.policy import MethodPolicy
from rifl.server import aio, sync
from rifl.server.answers import refusal_status
from rifl.server.engine import Engine
from rifl.wire import find_header

__all__ = ["AioInterceptor", "SyncInterceptor"]

_Wrap = Callable[[str, MethodPolicy, Any], Any]
_MAX_WRAPPED = 4096


class _Wrapping:
    """Decides per call, without a lock or I/O, and wraps a handler once."""

    def __init__(self, engine: Engine, wrap: _Wrap, refuse: _Wrap) -> None:
        self._policies = engine.policies
        self._wrap = wrap
        self._refuse = refuse
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    def __call__(self, details: Any, handler: Any) -> Any:
        if handler is None:
            return None
        method: str = details.method
        identified = find_header(details.invocation_metadata or ()) is not None
        # Most servers have one handler object a method; interceptors inside ours
        # may make a new one each time.
        known = self._wrapped.get(method)
        if identified and known is not None and known[0] is handler:
            return known[1]
        policy = self._policies.find(method)
        if policy is None:
            return handler
        unary = not handler.request_streaming and not handler.response_streaming
        if not unary:
            return handler
        if not identified:
            return self._refuse(method, policy, handler) if policy.required else handler
        wrapped = self._wrap(method, policy, handler)
        if len(self._wrapped) >= _MAX_WRAPPED:
            self._wrapped.clear()
        self._wrapped[method] = (handler, wrapped)
        return wrapped


def _needs_identity(method: str) -> BadHeader:
    return BadHeader(f"{method} takes calls with an identity only")


class SyncInterceptor(grpc.ServerInterceptor):
    """For ``grpc.server(interceptors=[...])``; any thread.

    Put interceptors that authorise before it in the list, since those after it
    are skipped on a replay; those that change payloads go after it.
    """

    def __init__(self, engine: Engine) -> None:
        self._wrapping = _Wrapping(engine, _sync_wrap(sync.SyncShell(engine)), _sync_refuse)

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wrap the handler of a call that has an identity."""
        return self._wrapping(handler_call_details, continuation(handler_call_details))


class AioInterceptor(grpc.aio.ServerInterceptor):
    """For ``grpc.aio.server(interceptors=[...])``; the order as for the sync one.

    Handlers that are plain functions run, as ever, in the server's thread pool.
    """

    def __init__(self, engine: Engine) -> None:
        self.shell = aio.AioShell(engine)
        wrap_function = _sync_wrap(sync.SyncShell(engine), aio=True)

        def wrap(method: str, policy: MethodPolicy, handler: Any) -> Any:
            if not _is_coroutine(handler.unary_unary):
                return wrap_function(method, policy, handler)
            behavior = aio.unary_behavior(self.shell, method, policy, handler)
            return grpc.unary_unary_rpc_method_handler(behavior)

        self._wrapping = _Wrapping(engine, wrap, _aio_refuse)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Wrap the handler of a call that has an identity."""
        return self._wrapping(handler_call_details, await continuation(handler_call_details))


def _sync_wrap(shell: sync.SyncShell, *, aio: bool = False) -> _Wrap:
    def wrap(method: str, policy: MethodPolicy, handler: Any) -> Any:
        behavior = sync.unary_behavior(shell, method, policy, handler, aio=aio)
        # gRPC's own hint for handlers that want a pool of their own.
        pool = getattr(handler.unary_unary, "experimental_thread_pool", None)
        if pool is not None:
            behavior.experimental_thread_pool = pool  # type: ignore[attr-defined]
        return raw_handler(behavior)

    return wrap


def _sync_refuse(method: str, policy: MethodPolicy, handler: Any) -> Any:
    def refuse(request: bytes, context: Any) -> RawAnswer:
        return RawAnswer(sync.send(context, refusal_status(_needs_identity(method), None)))

    return raw_handler(refuse)


def _aio_refuse(method: str, policy: MethodPolicy, handler: Any) -> Any:
    async def refuse(request: bytes, context: Any) -> bytes:
        return await aio.send(context, refusal_status(_needs_identity(method), None))

    return grpc.unary_unary_rpc_method_handler(refuse)


def _is_coroutine(behavior: Any) -> bool:
    # As grpc.aio itself tells them apart.
    return inspect.iscoroutinefunction(behavior) or inspect.isawaitable(behavior)
