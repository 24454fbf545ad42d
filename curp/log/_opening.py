"""Log engines by URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from curp.log import _addresses as addresses
from curp.log._addresses import parts_of, shown
from curp.log._commits import GroupLog
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LogError,
    LogExists,
    LogMoved,
    NewerFormat,
    NoSuchLog,
    UnfinishedCopy,
    log_exists,
    no_such_log,
)
from curp.log._states import check_state, check_whole
from curp.log._values import NewLog
from sharedlog._engines.engine import Engine

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup


def open_engine(url: str, *, new: NewLog | None = None, read_only: bool = False) -> GroupLog:
    """Open one group's log; raises a ``LogError``, ``InvalidRequest`` for a wrong URL.

    ::

        sqlite:///file?group=NAME                  four slashes: from the root
            timeout_s=5            how long to wait for other processes' writes
        redis://[user:password@]host[:port][/db]?group=NAME
            or rediss://, unix://, redis+sentinel://, redis+cluster://: see RedisAddress
            durability=require     or warn: what to do about a server that may forget
            replicas=0             must have a write before it counts, within timeout_s / 2
            timeout_s=5            for connecting and for each reply
        etcd://[user:password@]host[:port][,host...][/prefix]?group=NAME
            or etcds:// over TLS; ca=, cert=, key= and more: see EtcdAddress
        postgresql://[user[:password]@]host[:port][,host...]/database?group=NAME
            schema=curp            that holds the logs; further options: see PostgresAddress

    Raises ``NoSuchLog`` if there is none. ``new`` creates it (see ``curp.log.create_log``),
    and raises ``LogExists`` if there is one. ``read_only``: for tools that only look; it
    checks no permission to write. A log that was moved (``LogMoved``) opens only for these,
    and an incomplete copy never opens (``UnfinishedCopy``). An ``InvalidRequest`` also says
    which extra is not installed. It blocks while it connects; the engine is safe in any
    thread, and is closed by ``close``. No message holds the URL: it may have a
    password in it.
    """
    if new is not None:
        return open_new(url, new)
    engine = _open(url, read_only=read_only)
    try:
        if read_only:
            check_whole(engine)
        else:
            check_state(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def open_new(url: str, new: NewLog) -> GroupLog:
    """Create a log, and open it whatever its metadata say of its state."""
    return _open(url, read_only=False, new=new)


def open_in_any_state(url: str) -> GroupLog:
    """Open a log for writing, also one that is not to be served from."""
    return _open(url, read_only=False)


def why_stopped(engine: GroupLog, url: str) -> LogError | None:
    """Return what a replica is told that would serve from a log, None if nothing keeps it.

    ``engine``: what a tool that only looks has opened there. That a store cannot be asked,
    or lets the tool not write, is none of the log's doing, and not returned.
    """
    try:
        check_state(engine)
        if _may_stop(url):
            open_in_any_state(url).close()
    except (CorruptLog, LogMoved, NewerFormat, UnfinishedCopy) as error:
        return error
    except LogError:
        return None
    return None


def examine(url: str) -> Checkup:
    """Look at a group's log by the checks of its opening; only reads.

    Raises ``InvalidRequest`` for a URL that names none.
    """
    scheme, group, options = addresses.parts_of(url)
    base = url.partition("?")[0]
    if scheme == "sqlite":
        from curp.log._commits.sqlite import examine_sqlite

        return examine_sqlite(addresses.file_of(url, options)[0], group)
    if scheme.partition("+")[0] in addresses.REDIS:
        server, replicas = addresses.redis_address(base, options)
        from curp.log._commits.redis import examine_redis

        return examine_redis(server, group, replicas)
    if scheme in addresses.ETCD:
        cluster = addresses.etcd_address(base, options)
        from curp.log._commits.etcd import examine_etcd

        return examine_etcd(cluster, group)
    if scheme in addresses.POSTGRES:
        database = addresses.postgres_address(url)
        from curp.log._commits.postgres import examine_postgres

        return examine_postgres(database, group)
    raise addresses.unknown(scheme)


def group_of(url: str) -> str:
    """Return the group that a log's URL names; raises ``InvalidRequest``."""
    return parts_of(url)[1]


def accept_loss(url: str, who: str, why: str) -> str:
    """Have a log go on that may have lost entries, and so stopped; why it stopped.

    Empty, and nothing is changed, if it has not stopped. Processes that knew more
    than is there stay away: they are started anew. Raises a ``LogError``.
    """
    scheme, group, options = parts_of(url)
    told = {"who": who, "why": why}
    with _told(url):
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


def _may_stop(url: str) -> bool:
    """Whether a log there may have stopped for everyone, so that it opens only for looking."""
    scheme, _, options = parts_of(url)
    if scheme == "sqlite":
        path, _ = addresses.file_of(url, options)
        # Without its note nothing can be told, and who only looks makes none.
        return path.with_name(path.name + ".curp").exists()
    return scheme in (*addresses.ETCD, *addresses.POSTGRES)


def _open(url: str, *, read_only: bool, new: NewLog | None = None) -> GroupLog:
    with _told(url):
        return GroupLog(_engine(url, read_only=read_only, new=new))


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


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Say of a log that is not there, or is, what a group's operator is to do."""
    try:
        yield
    except NoSuchLog as error:
        raise no_such_log(shown(url), group_of(url)) from error
    except LogExists as error:
        raise log_exists(shown(url), group_of(url)) from error
