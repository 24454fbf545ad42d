"""Poolers between a connection and the server: is there one, and in which mode? (DESIGN §6)

A pooler in transaction mode gives each transaction another session: what a session sets
leaks to other applications, what it listens to is not heard, and what it was asked before
its first use says nothing of the next one. An idle pool hides its mode; the process id
that came with the connection shows that there is a pooler at all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from _rifl_ground.postgres.address import Pooler, PostgresAddress
from _rifl_ground.postgres.connections import connect_briefly

_REMEDY = (
    "connect to the server itself, or to a pool in session mode with ?pooler=session: in "
    "transaction mode neither settings nor LISTEN hold"
)


def is_pooled(connection: Any, server_pid: int) -> bool:
    """Whether the session's process is not the one that the connection was told of."""
    return bool(connection.info.backend_pid != server_pid)


def check_pooler(
    connection: psycopg.Connection[Any],
    address: PostgresAddress,
    refused: Callable[[str], Exception],
) -> None:
    """Raise ``refused(why)`` for a pooler that is in transaction mode, or may be.

    If another connection to the same place is the same session's, the pool lends it by the
    transaction.
    """
    pid = _pid(connection)
    if not is_pooled(connection, pid):
        return
    # A pool that is full lends it a session late, or never.
    with closing(connect_briefly(address)) as another:
        if _pid(another) == pid or _pid(connection) != pid:
            raise refused(f"{address} is a pooler in transaction mode: {_REMEDY}")
    if address.pooler is not Pooler.SESSION:
        raise refused(
            f"{address} is a pooler, which may be in transaction mode (it says that the session's "
            f"process is {connection.info.backend_pid}, and it is {pid}): {_REMEDY}"
        )


def _pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return int(row[0]) if row else 0
