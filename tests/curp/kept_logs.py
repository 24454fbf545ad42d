"""Logs of each engine whose older copies come back, as out of a backup (DESIGN §7)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.etcd_cluster import EtcdCluster
from tests.curp.log.damage import etcd, postgres
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

__all__ = ["Restore", "keep_etcd", "keep_postgres", "keep_redis", "keep_sqlite"]

# Puts the log as it was into the place of the log as it is.
Restore = Callable[[], None]


def keep_sqlite(file: Path) -> Restore:
    """Copy the file, and what is noted beside it, as of a whole volume."""
    older = shutil.copy(file, file.with_name("older"))

    def restore() -> None:
        file.with_name(f"{file.name}.curp").unlink()
        shutil.copy(older, file)

    return restore


def keep_redis(server: RedisServer, group: str) -> Restore:
    """Copy the log's keys."""

    def keys(client: Any) -> list[bytes]:
        return list(client.scan_iter(f"curp:{{{group}}}:*"))

    with server.client() as client:
        older = {key: client.dump(key) for key in keys(client)}

    def restore() -> None:
        with server.client() as client:
            client.delete(*keys(client))
            for key, value in older.items():
                client.restore(key, 0, value)

    return restore


def keep_postgres(server: PostgresServer, group: str) -> Restore:
    """Copy the log's rows."""
    return postgres.Damage(server, group).keep()


def keep_etcd(cluster: EtcdCluster, group: str) -> Restore:
    """Copy the log's keys; that of a lease went with the leader."""
    return etcd.Damage(cluster, group).keep()
