"""A session of a consumer's PostgreSQL database: what is asked of it before it is used."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from _rifl_ground.postgres.settings import SYNCED, Tables, settings_with, weaknesses
from _rifl_ground.servers import told
from sharedlog._consumer.call_rows import CALLS
from sharedlog._consumer.tables import TABLE
from sharedlog._core.errors import NotDurable

_TIMEOUT_S = 10
_SETTINGS = settings_with(Tables("", (TABLE, CALLS)))
_LOOK = (
    f"SELECT pg_backend_pid(), pid || ' ' || backend_start, {_SETTINGS} "  # noqa: S608 - our own
    "FROM pg_stat_activity WHERE pid = pg_backend_pid()"
).encode()
_WARN = "durability=warn"


class Session(NamedTuple):
    """A connection, and what the server calls its session.

    ``name``: empty behind a pooler, which lends the session to others, too. ``pooled``: the next
    transaction may have another one, and each is told by itself to wait for the disk.
    """

    connection: psycopg.Connection[Any]
    name: str
    pooled: bool


def opened(url: str) -> Session:
    """Open a session; raises psycopg's errors, and ``NotDurable`` for a server that may forget."""
    given, warn = _without_ours(url)
    connection = psycopg.connect(
        given,
        autocommit=True,
        connect_timeout=_TIMEOUT_S,
        keepalives_idle=_TIMEOUT_S,
        tcp_user_timeout=_TIMEOUT_S * 1000,
    )
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_LOOK).fetchone()
            if row is None:
                return Session(connection, "", pooled=True)
            pid, name, settings = row
            if (weak := weaknesses(settings)) and not warn:
                raise NotDurable(
                    "the consumer's database may forget what it acknowledges: "
                    f"{told(weak)} (?{_WARN} takes it all the same)"
                )
            pooled = connection.info.backend_pid != pid
            if pooled:
                # What one transaction prepares is not there in the next one.
                connection.prepare_threshold = None
            else:
                # What is committed is on the server's disk before the log is told.
                cursor.execute(SYNCED.format("false").encode())
    except BaseException:
        connection.close()
        raise
    return Session(connection, "" if pooled else str(name), pooled)


def sync(cursor: psycopg.Cursor[Any]) -> None:
    """Have the transaction that runs wait for the disk."""
    cursor.execute(SYNCED.format("true").encode())


def _without_ours(url: str) -> tuple[str, bool]:
    """Return the URL as libpq reads it, and whether it takes weak settings."""
    base, mark, options = url.partition("?")
    kept = [each for each in options.split("&") if each != _WARN]
    given = base + (mark + "&".join(kept) if any(kept) else "")
    return given, _WARN in options.split("&")
