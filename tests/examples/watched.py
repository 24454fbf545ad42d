"""A server that Prometheus scrapes: ``python -m tests.examples.watched STORE ADDRESS METRICS``.

Of a request that begins with "lost" the first answer is lost; one that begins with "hang" does not
end.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import grpc
from prometheus_client import start_http_server

import rifl
from rifl.metrics import PrometheusObserver
from tests.echo import METHOD, make_server


class _Losing(grpc.ServerInterceptor):
    def __init__(self) -> None:
        self._lost: set[bytes] = set()

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if details.method != METHOD:
            return handler
        inner = handler.unary_unary

        def lossy(request: bytes, context: Any) -> Any:
            answer = inner(request, context)
            if request.startswith(b"lost") and request not in self._lost:
                self._lost.add(request)
                context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")
            return answer

        return handler._replace(unary_unary=lossy)


def _handle(request: bytes, context: Any) -> bytes:
    if request.startswith(b"hang"):
        threading.Event().wait()
    return request


def main() -> None:
    """Serve until it is killed."""
    store, address, metrics = sys.argv[1:]
    # Outcomes are counted as often as ended clients are looked for.
    dedup = rifl.Deduplicator(store, term_s=10, observer=PrometheusObserver())
    server, _ = make_server(dedup, _handle, around=[_Losing()])
    host, _, port = metrics.rpartition(":")
    start_http_server(int(port), addr=host)
    server.add_insecure_port(address)
    server.start()
    print("listening", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
