"""Metrics over HTTP, for commands that run servers (``--metrics HOST:PORT``; extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

try:
    from prometheus_client import start_http_server
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError("metrics need the extra: pip install 'rifl-grpc[metrics]'") from error

_PORTS = range(1 << 16)


class Scraped(NamedTuple):
    """Where metrics are served, and what ends that."""

    address: str
    end: Callable[[], None]


def serve_metrics(listen: str) -> Callable[[], None]:
    """Serve this process's registry over HTTP at ``HOST:PORT``; returns what ends it.

    Raises ``OSError``, ``ValueError``.
    """
    return scraped_at(listen).end


def scraped_at(listen: str) -> Scraped:
    """Serve this process's registry over HTTP at ``HOST:PORT``; of port 0 at any that is free.

    Raises ``OSError``, ``ValueError``.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) not in _PORTS:
        raise ValueError(f"{listen!r} is not HOST:PORT")
    server, thread = start_http_server(int(port), addr=host.strip("[]"))

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Scraped(f"{host}:{server.server_port}", end)
