"""Logs of each engine whose older copies come back, as out of a backup (DESIGN §7)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos.etcd_cluster import EtcdCluster
from curp.log import open_engine
from sharedlog._engines.etcd.calls import TXN, delete, put, scan
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

__all__ = ["Restore", "keep_etcd", "keep_postgres", "keep_redis", "keep_sqlite"]

# Puts the log as it was into the place of the log as it is. Nobody has it open.
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
    with server.connect() as connection:
        found = connection.execute(
            "SELECT log_id FROM curp_2.log WHERE name = %s", (group,)
        ).fetchone()
        assert found is not None
        tables = connection.execute(
            "SELECT table_name FROM information_schema.columns "
            "WHERE table_schema = 'curp_2' AND column_name = 'log_id'"
        ).fetchall()
        older = {}
        for (table,) in tables:
            rows = f"SELECT * FROM curp_2.{table} WHERE log_id = {found[0]}"
            with connection.cursor().copy(f"COPY ({rows}) TO STDOUT") as copy:
                older[table] = b"".join(bytes(data) for data in copy)

    def restore() -> None:
        with server.connect() as connection:
            for table, rows in older.items():
                connection.execute(f"DELETE FROM curp_2.{table} WHERE log_id = {found[0]}")
                with connection.cursor().copy(f"COPY curp_2.{table} FROM STDIN") as copy:
                    copy.write(rows)

    return restore


def keep_etcd(cluster: EtcdCluster, group: str) -> Restore:
    """Copy the log's keys; that of a lease went with the leader."""
    url, first, end = cluster.url(group=group), f"curp/{group}/".encode(), f"curp/{group}0".encode()

    @contextlib.contextmanager
    def changing() -> Iterator[Callable[..., Any]]:
        with contextlib.closing(open_engine(url, read_only=True)) as engine:
            client = engine._engine._log.client  # type: ignore[attr-defined]  # a CommitLog's
            yield lambda *steps: client.call(TXN, pb.TxnRequest(success=steps), again=True)

    with changing() as change:
        older = list(change(scan(first, end, 0)).responses[0].range.kvs)
    assert older
    assert not any(each.lease for each in older)

    def restore() -> None:
        with changing() as change:
            change(delete(first, end))
            change(*(put(each.key, each.value) for each in older))

    return restore
