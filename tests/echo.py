"""A real server with one raw-bytes method, for tests of what goes on around a call."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from rifl import Deduplicator

METHOD = "/test.Echo/Do"
SERVICE = "test.Echo"


def echo(request: bytes, context: Any) -> bytes:
    return request


async def aio_echo(request: bytes, context: Any) -> bytes:
    return request


def _handlers(behavior: Any) -> Any:
    method: Any = grpc.unary_unary_rpc_method_handler(behavior)
    return grpc.method_handlers_generic_handler(SERVICE, {"Do": method})


def make_server(
    dedup: Deduplicator,
    behavior: Callable[[bytes, Any], bytes] = echo,
    *,
    around: Sequence[grpc.ServerInterceptor] = (),
    threads: int = 8,
) -> tuple[grpc.Server, str]:
    """Return a server, not started, and its target; ``around`` run outside ours."""
    interceptors = [*around, dedup.interceptor()]
    server = grpc.server(ThreadPoolExecutor(threads), interceptors=interceptors)
    server.add_generic_rpc_handlers((_handlers(behavior),))
    dedup.add_to_server(server)
    return server, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"


@contextlib.contextmanager
def served(
    dedup: Deduplicator, behavior: Callable[[bytes, Any], bytes] = echo, **arguments: Any
) -> Iterator[str]:
    """Serve while the context lasts; gives the target."""
    server, target = make_server(dedup, behavior, **arguments)
    server.start()
    try:
        yield target
    finally:
        server.stop(None).wait()


def make_aio_server(
    dedup: Deduplicator, behavior: Any = aio_echo, *, around: Sequence[Any] = ()
) -> tuple[grpc.aio.Server, str]:
    """Return an aio server, not started, and its target."""
    server = grpc.aio.server(interceptors=[*around, dedup.aio_interceptor()])
    server.add_generic_rpc_handlers((_handlers(behavior),))
    dedup.add_to_server(server)
    return server, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"


@contextlib.asynccontextmanager
async def aio_served(
    dedup: Deduplicator, behavior: Any = aio_echo, **arguments: Any
) -> AsyncIterator[str]:
    """Serve on this loop while the context lasts; gives the target."""
    server, target = make_aio_server(dedup, behavior, **arguments)
    await server.start()
    try:
        yield target
    finally:
        await server.stop(None)


def lose_answers(count: int) -> Any:
    """Return an interceptor for outside ours that loses the first answers.

    The handler ran and its answer is recorded; the caller sees UNAVAILABLE.
    """

    class Losing(grpc.ServerInterceptor):
        left = count

        def intercept_service(self, continuation: Any, details: Any) -> Any:
            handler = continuation(details)
            if details.method != METHOD:
                return handler
            inner = handler.unary_unary

            def lossy(request: bytes, context: Any) -> Any:
                answer = inner(request, context)
                if self.left:
                    self.left -= 1
                    context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")
                return answer

            return handler._replace(unary_unary=lossy)

    return Losing()
