"""Logs of the newest format, made and opened by their URLs."""

from __future__ import annotations

from curp.log import _addresses as addresses
from curp.log._commits import CommitLog
from curp.log._engine import NewLog
from curp.log._errors import InvalidRequest
from sharedlog._engines.engine import Engine


def open_newest(url: str, *, read_only: bool, new: NewLog | None = None) -> CommitLog:
    """Open a log; ``new``: create it. Raises errors of both kinds, and ``OlderFormat``."""
    return CommitLog(_engine(url, read_only=read_only, new=new))


def accept_newest(url: str, who: str, why: str) -> str:
    """Have a log go on that lost entries; see ``accept_loss``. Raises as ``open_newest``."""
    scheme, group, options = addresses.parts_of(url)
    told = {"who": who, "why": why}
    if scheme in addresses.ETCD:
        from curp.log._commits import etcd

        cluster = addresses.etcd_address(url.partition("?")[0], options)
        return etcd.accept_loss(cluster, group, told)
    if scheme == "sqlite":
        from curp.log._commits import sqlite

        return sqlite.accept_loss(addresses.file_of(url, options)[0], group, told)
    if scheme not in addresses.POSTGRES:
        raise InvalidRequest("a log in Redis does not stop for everyone: nothing to accept")
    database = addresses.postgres_address(url)
    from curp.log._commits import postgres

    return postgres.accept_loss(database, group, told)


def _engine(url: str, *, read_only: bool, new: NewLog | None) -> Engine:
    scheme, group, options = addresses.parts_of(url)
    base = url.partition("?")[0]
    if scheme == "sqlite":
        from curp.log._commits.sqlite import open_sqlite

        path, timeout_s = addresses.file_of(url, options)
        return open_sqlite(path, group, new=new, read_only=read_only, timeout_s=timeout_s)
    if scheme.partition("+")[0] in addresses.REDIS:
        server, replicas = addresses.redis_address(base, options)
        from curp.log._commits.redis import open_redis

        return open_redis(server, group, new=new, read_only=read_only, replicas=replicas)
    if scheme in addresses.ETCD:
        from curp.log._commits.etcd import open_etcd

        cluster = addresses.etcd_address(base, options)
        return open_etcd(cluster, group, new=new, read_only=read_only)
    if scheme in addresses.POSTGRES:
        database = addresses.postgres_address(url)
        from curp.log._commits.postgres import open_postgres

        return open_postgres(database, group, new=new, read_only=read_only)
    raise addresses.unknown(scheme)
