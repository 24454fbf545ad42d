"""Logs of format 1, opened by their URLs: for reading, for copying, and to be served from."""

from __future__ import annotations

from curp.log import _addresses as addresses
from curp.log._engine import LogEngine, NewLog
from curp.log._errors import InvalidRequest


def open_older(url: str, *, read_only: bool, new: NewLog | None = None) -> LogEngine:
    """Open a log that an earlier release made; ``new``: make one as they did, for tests."""
    scheme, group, options = addresses.parts_of(url)
    base = url.partition("?")[0]
    if scheme == "sqlite":
        from curp.log._sqlite import SqliteEngine

        path, timeout_s = addresses.file_of(url, options)
        return SqliteEngine(path, group, new=new, read_only=read_only, timeout_s=timeout_s)
    if scheme.partition("+")[0] in addresses.REDIS:
        server, replicas = addresses.redis_address(base, options)
        from curp.log._redis import RedisEngine

        return RedisEngine(server, group, new=new, read_only=read_only, replicas=replicas)
    if scheme in addresses.ETCD:
        from curp.log._etcd import EtcdEngine

        cluster = addresses.etcd_address(base, options)
        return EtcdEngine(cluster, group, new=new, read_only=read_only)
    if scheme in addresses.POSTGRES:
        database = addresses.postgres_address(url)
        from curp.log._postgres import PostgresEngine

        return PostgresEngine(database, group, new=new, read_only=read_only)
    raise addresses.unknown(scheme)


def accept_older(url: str, who: str, why: str) -> str:
    """Have a log of an earlier release go on that lost entries; see ``accept_loss``."""
    scheme, group, options = addresses.parts_of(url)
    if scheme in addresses.ETCD:
        from curp.log._etcd.accept_loss import accept as accept_in_etcd

        cluster = addresses.etcd_address(url.partition("?")[0], options)
        return accept_in_etcd(cluster, group, who, why)
    if scheme == "sqlite":
        from curp.log._sqlite.accept_loss import accept as accept_of_file

        return accept_of_file(addresses.file_of(url, options)[0], group, who, why)
    if scheme not in addresses.POSTGRES:
        raise InvalidRequest("a log in Redis does not stop for everyone: nothing to accept")
    database = addresses.postgres_address(url)
    from curp.log._postgres.accept_loss import accept

    return accept(database, group, who, why)
