"""The engine under the log: a file, or servers of this demo's own that can be killed.

Each imports its server when it runs: the driver that the server needs is an extra.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ENGINES", "Engine", "running"]


class Engine(NamedTuple):
    """The log's URL, and what kills its server and starts it again; returns what it did."""

    url: str
    restart: Callable[[], str] | None


@contextlib.contextmanager
def _sqlite(directory: Path) -> Iterator[Engine]:
    yield Engine(f"sqlite:///{directory / 'shared.log'}", None)


@contextlib.contextmanager
def _redis(directory: Path) -> Iterator[Engine]:
    from chaos.redis_server import RedisServer

    server = RedisServer(directory)

    def restart() -> str:
        server.stop()
        server.start()
        return "Redis killed and started"

    try:
        yield Engine(f"redis://127.0.0.1:{server.port}/0?log=demo", restart)
    finally:
        server.stop()


@contextlib.contextmanager
def _postgresql(_: Path) -> Iterator[Engine]:
    from chaos.postgres_server import PostgresServer

    server = PostgresServer()

    def restart() -> str:
        server.kill()
        server.start()
        return "PostgreSQL killed and started"

    try:
        yield Engine(server.url(log="demo"), restart)
    finally:
        server.stop()


@contextlib.contextmanager
def _etcd(directory: Path) -> Iterator[Engine]:
    from chaos.etcd_cluster import EtcdCluster

    with EtcdCluster(directory / "etcd") as cluster:
        turns = iter(range(1 << 30))

        def restart() -> str:
            turn = next(turns)
            node = cluster.leader() if turn % 2 == 0 else cluster.nodes[turn % 3]
            node.kill()
            cluster.start(node)
            cluster.wait_ready(node)
            return f"etcd's {node.name} killed and started"

        yield Engine(cluster.url(log="demo"), restart)


ENGINES = {"sqlite": _sqlite, "postgresql": _postgresql, "redis": _redis, "etcd": _etcd}


def running(name: str, directory: Path) -> contextlib.AbstractContextManager[Engine]:
    """Run an engine with its files in a directory; it is gone afterwards."""
    return ENGINES[name](directory)
