"""Databases for what is measured: real, durable, started when first asked for."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any, Self

__all__ = ["Databases"]


class Databases:
    """One server of each kind for a whole run; each side has a part of it of its own.

    Both sync every write before they answer. Leaving the context ends them and removes
    their files. One thread.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rifl-bench-"))
        self._numbers = itertools.count(1)
        self._redis: Any = None
        self._postgres: Any = None
        self._mariadb: Any = None
        self._etcd: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._redis, self._postgres, self._mariadb, self._etcd):
            if server is not None:
                server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def redis(self) -> Any:
        """The Redis of this run, once a side has asked for it."""
        if self._redis is None:
            raise RuntimeError("no side has asked for Redis yet")
        return self._redis

    def urls(self, name: str) -> tuple[str, str]:
        """Return URLs of a fresh database: rifl's, and the one for a handler's own use.

        ``name``: none, memory, sqlite, redis, postgres or mariadb; or etcd, for logs alone.
        """
        number = next(self._numbers)
        if name == "redis":
            if self._redis is None:
                from chaos.redis_server import RedisServer

                self._redis = RedisServer(self._folder)
            return self._redis.url(namespace=f"bench{number}"), self._redis.url()
        if name == "postgres":
            if self._postgres is None:
                from chaos.postgres_server import PostgresServer

                self._postgres = PostgresServer()
            return self._postgres.url(schema=f"bench{number}"), self._postgres.url()
        if name == "mariadb":
            if self._mariadb is None:
                from chaos.mariadb_server import MariaDbServer

                self._mariadb = MariaDbServer()
            return self._mariadb.url(prefix=f"bench{number}_"), self._mariadb.url()
        if name == "etcd":
            if self._etcd is None:
                from chaos.etcd_cluster import EtcdCluster

                self._etcd = EtcdCluster(self._folder / "etcd")
                self._etcd.heal()
            return "", f"{self._etcd.url().removesuffix('?')}bench{number}"
        if name == "sqlite":
            url = f"sqlite:///{self._folder / f'bench{number}.db'}"
            return url, url
        return ("none" if name == "none" else f"{name}:"), ""

    def processes(self, name: str) -> list[int]:
        """Return the ids of a database's processes, once a side has asked for it."""
        if name == "etcd":
            return [node.process.pid for node in self._etcd.nodes]
        server = {"redis": self._redis, "postgres": self._postgres, "mariadb": self._mariadb}[name]
        return _with_children(server._process.pid)


def _with_children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for each in (task / "children").read_text().split():
            found += _with_children(int(each))
    return found
