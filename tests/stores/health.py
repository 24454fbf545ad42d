"""Health and refusals of a server over a shared store, as its observers and probes are told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import rifl

__all__ = ["METHOD", "Served", "Telling", "served"]

METHOD = "/s/M"
_SERVING = health_pb2.HealthCheckResponse.SERVING


class Telling(rifl.Observer):
    """Keeps what it is told of refusals."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._changed = threading.Condition()

    def serving(self, refusal: Any) -> None:
        """New calls are refused, or taken again."""
        with self._changed:
            self.told.append(refusal)
            self._changed.notify_all()

    def wait_for(self, condition: Any, what: str) -> Any:
        """Return the last that was told once it fulfils the condition."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.told and condition(self.told[-1]), 20):
                raise AssertionError(f"waited in vain: {what}; told {self.told}")
            return self.told[-1]


class Served:
    """A server with health, its observer, and a channel without ours."""

    def __init__(self, dedup: rifl.Deduplicator, telling: Telling, target: str) -> None:
        self.dedup = dedup
        self.telling = telling
        self.target = target
        self._plain = grpc.insecure_channel(target)
        self._stub = health_pb2_grpc.HealthStub(self._plain)

    def healthy(self) -> bool:
        """What a probe is told."""
        return bool(self._stub.Check(health_pb2.HealthCheckRequest()).status == _SERVING)

    def close(self) -> None:
        """Close the channel."""
        self._plain.close()


@contextlib.contextmanager
def served(url: str) -> Iterator[Served]:
    """Serve an echo over the store at this URL."""
    telling = Telling()

    def echo(request: bytes, context: Any) -> bytes:
        return request

    handlers = {"M": grpc.unary_unary_rpc_method_handler(echo)}
    with rifl.Deduplicator(url, observer=telling, drain_s=0) as dedup:
        server = grpc.server(ThreadPoolExecutor(4), interceptors=[dedup.interceptor()])
        server.add_registered_method_handlers("s", handlers)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", handlers),))
        dedup.add_to_server(server)
        dedup.add_health(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        made = Served(dedup, telling, f"127.0.0.1:{port}")
        try:
            yield made
        finally:
            made.close()
            server.stop(None).wait()
