"""Groups' logs in PostgreSQL."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import connect_as_ours
from curp.log._commits.keys import CONFIGURATION, first_keys, loss_puts
from curp.log._errors import LogUnavailable
from curp.log._owner import GROUPS
from curp.log._values import NewLog
from sharedlog._engines.checksums import sent, values_of
from sharedlog._engines.postgres.engine import PostgresEngine
from sharedlog._engines.postgres.schema import create, find

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup

_KEY = (
    "SELECT k.value FROM {0}.log l LEFT JOIN {0}.key k ON k.log_id = l.log_id AND k.key = %b "
    "WHERE l.name = %s"
)


def open_postgres(
    address: PostgresAddress,
    group: str,
    *,
    new: NewLog | None = None,
    read_only: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> PostgresEngine:
    """Open a group's log, or create it. Raises errors of the shared log."""

    def begin(connection: psycopg.Connection[Any]) -> str:
        if new is None:
            return find(connection, address, _name(group))
        return create(connection, address, _name(group), first_keys(new), new.trimmed)

    return PostgresEngine(address, begin, owner=GROUPS, read_only=read_only, clock=clock)


def examine_postgres(address: PostgresAddress, group: str) -> Checkup:
    """Look at a group's log by the checks of its opening; only reads."""
    from sharedlog._engines.postgres import doctor

    return doctor.examine_log(address, _name(group), GROUPS)


def accept_loss(address: PostgresAddress, group: str, told: dict[str, str]) -> str:
    """Have a log go on; why it had stopped, empty if it had not."""
    schema, name = address.schema, _name(group)
    try:
        with connect_as_ours(address) as connection:
            find(connection, address, name)
            connection.execute("SET synchronous_commit = 'on'")
            row = connection.execute(
                _KEY.format(schema).encode(), (CONFIGURATION.encode(), name)
            ).fetchone()
            puts = loss_puts(values_of({CONFIGURATION: row[0] if row else None}), told)
            row = connection.execute(
                f"SELECT {schema}.accept_loss_1(%s, %s, %b::bytea[], %b::bytea[])".encode(),
                (
                    name,
                    secrets.token_hex(16),
                    [put.key.encode() for put in puts],
                    [sent(put) for put in puts],
                ),
            ).fetchone()
    except (psycopg.Error, OSError) as error:
        raise LogUnavailable(f"{address}: {type(error).__name__}") from error
    return str(row[0]) if row else ""


def _name(group: str) -> str:
    # A name is text there, which holds no zero.
    return quote(group, safe="")
