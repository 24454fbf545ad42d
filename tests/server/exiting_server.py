"""A server on an event loop whose coroutine handlers call ``sys.exit``.

``python -m tests.server.exiting_server grpc|rifl plain|served``: prints its address.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio

SERVICE = "test.Exits"
FORMS = {
    "Unary": grpc.unary_unary_rpc_method_handler,
    "Deserialize": grpc.unary_unary_rpc_method_handler,
    "Serialize": grpc.unary_unary_rpc_method_handler,
    "Collect": grpc.stream_unary_rpc_method_handler,
    "Count": grpc.unary_stream_rpc_method_handler,
    "Write": grpc.unary_stream_rpc_method_handler,
}
KEYED = f"/{SERVICE}/Deserialize"
exits = 0


def leave(_: object = None) -> Any:
    """Count, and end this program, as its author thinks."""
    global exits
    exits += 1
    sys.exit(3)


async def unary(request: bytes, context: Any) -> bytes:
    """Exit at once or at a later step, or tell how often something did."""
    if request == b"count":
        return b"%d" % exits
    if request == b"later":
        await asyncio.sleep(0)
    leave()
    return b""


async def echo(request: bytes, context: Any) -> bytes:
    """Answer; what reads or writes the message exits."""
    return request


async def collect(requests: AsyncIterator[bytes], context: Any) -> bytes:
    """Exit at the end of a request stream."""
    async for _ in requests:
        pass
    leave()
    return b""


async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """Exit in the middle of a response stream."""
    yield b"0"
    leave()


async def write(request: bytes, context: Any) -> None:
    """Do the same by the context."""
    await context.write(b"0")
    leave()


async def main(side: str, way: str) -> int:
    """Serve until a signal, or until the loop ends."""
    behaviours = {"Unary": unary, "Collect": collect, "Count": count, "Write": write}
    codecs = {"Deserialize": (leave, None), "Serialize": (None, leave)}
    methods: Any = {f"/{SERVICE}/{name}": "plain" for name in FORMS}
    methods[KEYED] = rifl.MethodPolicy(key_field="key")
    dedup = rifl.Deduplicator("memory:", methods=methods, keys_from="anyone")
    ours = side == "rifl"
    server = grpc.aio.server(interceptors=[dedup.aio_interceptor()] if ours else [])
    handlers: Any = {
        name: form(behaviours.get(name, echo), *codecs.get(name, ()))
        for name, form in FORMS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if ours:
        dedup.add_to_server(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    if way == "served":
        return await rifl.aio.serve_until_signal(server, dedup)
    await server.wait_for_termination()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
