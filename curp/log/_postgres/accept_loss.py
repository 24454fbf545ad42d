"""``accept``: an operator says that what a log in PostgreSQL lost is lost."""

from __future__ import annotations

import psycopg

from curp.log._errors import EngineUnavailable
from curp.log._postgres.schema import find
from rifl._stores.postgres.address import PostgresAddress
from rifl._stores.postgres.connections import Pools

_ACCEPT = "SELECT {}.accept_loss_1(%s, %s, %s)"


def accept(address: PostgresAddress, group: str, who: str, why: str) -> str:
    """Have the log go on; why it had stopped, empty if it had not. Raises a ``LogError``."""
    try:
        with Pools(address).listener() as connection:
            find(connection, address, group)
            connection.execute("SET synchronous_commit = 'on'")
            row = connection.execute(
                _ACCEPT.format(address.schema).encode(), (group.encode(), who, why)
            ).fetchone()
    except (psycopg.Error, OSError) as error:
        raise EngineUnavailable(f"{address}: {type(error).__name__}") from error
    return str(row[0]) if row else ""
