"""The two sides that are compared: bare gRPC, and rifl's channel with a wrapped server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

import rifl
import rifl.aio

__all__ = ["DEADLINE_S", "SERVICE", "Behaviours", "Side"]

DEADLINE_S = 20.0
SERVICE = "test.Behaviour"
_KINDS = {
    "Unary": grpc.unary_unary_rpc_method_handler,
    "Collect": grpc.stream_unary_rpc_method_handler,
    "Count": grpc.unary_stream_rpc_method_handler,
}


class Behaviours:
    """Handlers of one method a form; a test replaces what it is about."""

    def __init__(self, **behaviours: Any) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self._behaviours = behaviours

    def unary(self, request: bytes, context: Any) -> bytes:
        self.begun.set()
        self.gate.wait(DEADLINE_S)
        return request

    def collect(self, requests: Iterator[bytes], context: Any) -> bytes:
        return b"|".join(requests)

    def count(self, request: bytes, context: Any) -> Iterator[bytes]:
        self.begun.set()
        for at in range(int(request)):
            yield b"%d" % at

    def handler(self) -> Any:
        handlers = {
            name: kind(self._behaviours.get(name) or getattr(self, name.lower()))
            for name, kind in _KINDS.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)


class Side:
    """Bare gRPC, or ours, by one interface; ``ours`` tells which."""

    def __init__(self, name: str) -> None:
        self.ours = name == "rifl"

    @contextlib.contextmanager
    def serve(
        self, behaviours: Behaviours, *, interceptors: Any = (), declared: bool = True, **rest: Any
    ) -> Any:
        """Serve on a ``grpc.server``; yields its address. ``declared``: the streams, too."""
        with contextlib.ExitStack() as stack:
            dedup = self._deduplicator(stack, declared=declared)
            inside = [dedup.interceptor()] if dedup is not None else []
            pool = ThreadPoolExecutor(8)
            server = grpc.server(pool, interceptors=[*interceptors, *inside], **rest)
            server.add_generic_rpc_handlers((behaviours.handler(),))
            if dedup is not None:
                dedup.add_to_server(server)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            stack.callback(pool.shutdown)
            stack.callback(lambda: server.stop(None).wait())
            stack.callback(behaviours.gate.set)
            yield f"127.0.0.1:{port}"

    @contextlib.asynccontextmanager
    async def serve_aio(
        self, behaviours: Behaviours, *, declared: bool = True, **rest: Any
    ) -> AsyncIterator[str]:
        """Serve on a ``grpc.aio.server`` of this loop; yields its address."""
        with contextlib.ExitStack() as stack:
            dedup = self._deduplicator(stack, declared=declared)
            inside = [dedup.aio_interceptor()] if dedup is not None else []
            server = grpc.aio.server(ThreadPoolExecutor(8), interceptors=inside, **rest)
            server.add_generic_rpc_handlers((behaviours.handler(),))
            if dedup is not None:
                dedup.add_to_server(server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                behaviours.gate.set()
                await server.stop(None)

    def connect(self, address: str, **settings: Any) -> Any:
        """Open a sync channel."""
        if not self.ours:
            return grpc.insecure_channel(address)
        settings.setdefault("keep_deadline_exceeded", True)
        return rifl.connect(address, **settings)

    def connect_aio(self, address: str, **settings: Any) -> Any:
        """Open an aio channel."""
        if not self.ours:
            return grpc.aio.insecure_channel(address, **settings)
        settings.setdefault("keep_deadline_exceeded", True)
        return rifl.aio.connect(address, **settings)

    def _deduplicator(self, stack: contextlib.ExitStack, *, declared: bool) -> Any:
        if not self.ours:
            return None
        methods: Any = {f"/{SERVICE}/{name}": "plain" for name in _KINDS} if declared else {}
        return stack.enter_context(rifl.Deduplicator("memory:", methods=methods))
