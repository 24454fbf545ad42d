"""URLs of tests' logs: one name for each engine, and a URL of a log that is not there yet."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENGINES = ("memory", "sqlite", "redis", "etcd", "postgres")
# Those that another process can open.
SHARED = ("sqlite", "redis", "etcd", "postgres")


def _restart_redis(server: Any) -> None:
    server.stop()
    server.start()


def _restart_postgres(server: Any) -> None:
    server.crash()
    server.start()


def _restart_etcd(cluster: Any) -> None:
    for node in cluster.nodes:
        node.kill()
    cluster.heal()


# Those with a server, and how it is killed and comes back with what is on its disk.
RESTARTED: dict[str, Callable[[Any], None]] = {
    "redis": _restart_redis,
    "etcd": _restart_etcd,
    "postgres": _restart_postgres,
}


def url_of(engine: str, directory: Path, fixture: Callable[[str], Any]) -> str:
    """A URL of this engine, of a log that nobody has created.

    ``fixture``: gives a server by its name, such as ``shared_redis``, and is not asked for one
    that is not needed.
    """
    if engine == "memory":
        return f"memory:{secrets.token_hex(8)}"
    if engine == "sqlite":
        return f"sqlite:///{directory / 'log.db'}"
    url: str = fixture(f"shared_{engine}").url(log=secrets.token_hex(8))
    return url
