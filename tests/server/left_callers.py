"""A server on an event loop whose callers leave while their handlers go on, as a program.

``python -m tests.server.left_callers FORM`` prints what the handler was told of its caller after
that, and ends with 0. In a process of its own: what goes wrong here ends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio

METHOD = "/p.S/M"


def _told(context: Any) -> list[Any]:
    """Ask a context for all that it tells of a caller."""
    return [
        context.peer(),
        context.peer_identities(),
        context.peer_identity_key(),
        dict(context.auth_context()),
    ]


class _Handlers:
    """``begun``: the handler runs. ``left``: gRPC's call is no more. ``over``: it has ended."""

    def __init__(self) -> None:
        self.begun, self.left, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.told: list[Any] = []

    async def _goes_on(self, context: Any, read: Callable[[], Awaitable[Any]]) -> None:
        before = _told(context)
        self.begun.set()
        await self.left.wait()
        try:
            await read()
            self.told = [_told(context) == before, await asyncio.to_thread(_told, context)]
        finally:
            self.over.set()

    async def unary(self, request: bytes, context: Any) -> bytes:
        async def nothing() -> None:
            pass

        await self._goes_on(context, nothing)
        return request

    async def requests(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        await anext(requests)

        async def the_rest() -> None:
            try:
                async for _ in requests:
                    pass
            except grpc.RpcError as error:
                print("broken off:", error)

        await self._goes_on(context, the_rest)
        return b""

    async def responses(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield request

        async def nothing() -> None:
            pass

        await self._goes_on(context, nothing)
        yield request


async def main(form: str) -> None:
    """Have a caller leave, and the handler ask."""
    handlers = _Handlers()
    behavior = {
        "unary": grpc.unary_unary_rpc_method_handler(handlers.unary),
        "requests": grpc.stream_unary_rpc_method_handler(handlers.requests),
        "responses": grpc.unary_stream_rpc_method_handler(handlers.responses),
    }[form]
    dedup = rifl.Deduplicator("memory:", methods={METHOD: rifl.MethodPolicy(buffer_bytes=1)})
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()])
    found: Any = grpc.method_handlers_generic_handler("p.S", {"M": behavior})
    server.add_generic_rpc_handlers((found,))
    dedup.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rifl.aio.connect(f"127.0.0.1:{port}") as channel:

        async def never_whole() -> AsyncIterator[bytes]:
            for each in (b"first", b"second"):
                yield each
            await asyncio.sleep(3600)

        call: Any
        if form == "unary":
            call = channel.unary_unary(METHOD)(b"")
        elif form == "requests":
            call = channel.stream_unary(METHOD)(never_whole())
        else:
            call = channel.unary_stream(METHOD)(b"")
            await call.read()
        waiting = asyncio.ensure_future(_of(call)) if form != "responses" else None
        await handlers.begun.wait()
        call.cancel()
        if waiting is not None:
            await asyncio.wait([waiting])
        # gRPC's task of the call has ended, and what waits for that has had its turns.
        while any(task.get_name().endswith(f"[{METHOD}]") for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)
        for _ in range(10):
            await asyncio.sleep(0)
        handlers.left.set()
        await handlers.over.wait()
        print("the same:", handlers.told[0], "in a thread:", handlers.told[1][0])
    await server.stop(0)
    await dedup.aclose()


async def _of(call: Any) -> Any:
    return await call


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
