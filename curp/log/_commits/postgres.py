"""Groups' logs in PostgreSQL, in a schema beside the one that holds those of format 1."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import psycopg

from curp.log._commits.keys import CONFIGURATION, first_keys, loss_puts
from curp.log._commits.meanings import GROUPS_LOG
from curp.log._commits.stand_in import stand_in, stands_in
from curp.log._engine import NewLog
from curp.log._errors import EngineUnavailable, LogExists, NoSuchLog
from curp.log._postgres import schema as older
from curp.log._states import MOVED_KEY
from rifl._stores.postgres.address import PostgresAddress
from rifl._stores.postgres.connections import Pools
from sharedlog._core import errors
from sharedlog._engines.formats import OlderFormat
from sharedlog._engines.postgres.engine import PostgresEngine
from sharedlog._engines.postgres.schema import create, find

FORMAT = 2
_KEY = (
    "SELECT k.value FROM {0}.log l LEFT JOIN {0}.key k ON k.log_id = l.log_id AND k.key = %b "
    "WHERE l.name = %s"
)
_MOVED = (
    "SELECT m.value FROM {0}.log l JOIN {0}.metadata m ON m.log_id = l.log_id AND m.key = %b "
    "WHERE l.name = %b"
)


def open_postgres(
    address: PostgresAddress,
    group: str,
    *,
    new: NewLog | None = None,
    read_only: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> PostgresEngine:
    """Open a group's log, or create it. Raises errors of both kinds, and ``OlderFormat``."""
    here = _here(address)

    def begin(connection: psycopg.Connection[Any]) -> str:
        if new is None:
            return _find(connection, address, group)
        with connection.transaction():
            _stand_in(connection, address, group)
            return create(connection, here, _name(group), first_keys(new), new.trimmed)

    return PostgresEngine(here, begin, owner=GROUPS_LOG, read_only=read_only, clock=clock)


def accept_loss(address: PostgresAddress, group: str, told: dict[str, str]) -> str:
    """Have a log go on; why it had stopped, empty if it had not."""
    schema, name = _here(address).schema, _name(group)
    try:
        with Pools(address).listener() as connection:
            _find(connection, address, group)
            connection.execute("SET synchronous_commit = 'on'")
            row = connection.execute(
                _KEY.format(schema).encode(), (CONFIGURATION.encode(), name)
            ).fetchone()
            puts = loss_puts({CONFIGURATION: row[0] if row else None}, told)
            row = connection.execute(
                f"SELECT {schema}.accept_loss_1(%s, %s, %b::bytea[], %b::bytea[])".encode(),
                (
                    name,
                    secrets.token_hex(16),
                    [put.key.encode() for put in puts],
                    [put.value for put in puts],
                ),
            ).fetchone()
    except (psycopg.Error, OSError) as error:
        raise EngineUnavailable(f"{address}: {type(error).__name__}") from error
    return str(row[0]) if row else ""


def _find(connection: psycopg.Connection[Any], address: PostgresAddress, group: str) -> str:
    """Return the incarnation of a log that is there. Raises ``NoSuchLog``, ``OlderFormat``."""
    try:
        return find(connection, _here(address), _name(group))
    except (errors.NoSuchLog, psycopg.errors.InsufficientPrivilege) as error:
        # A role of format 1 may have no right to look where another group's log of format 2 is.
        if _is_older(connection, address, group):
            raise OlderFormat(f"{address} has a log of {group!r} of format 1") from None
        if isinstance(error, errors.NoSuchLog):
            raise NoSuchLog.of(str(address), group) from None
        raise


def _is_older(connection: psycopg.Connection[Any], address: PostgresAddress, group: str) -> bool:
    try:
        older.find(connection, address, group)
    except NoSuchLog:
        return False
    row = connection.execute(
        _MOVED.format(address.schema).encode(), (MOVED_KEY.encode(), group.encode())
    ).fetchone()
    return not stands_in(row and row[0])


def _stand_in(connection: psycopg.Connection[Any], address: PostgresAddress, group: str) -> None:
    """Have earlier releases find something; raises ``LogExists`` for a log of format 1."""
    try:
        older.create(connection, address, group, stand_in())
    except LogExists:
        if _is_older(connection, address, group):
            raise


def _here(address: PostgresAddress) -> PostgresAddress:
    return dataclasses.replace(address, schema=f"{address.schema}_{FORMAT}")


def _name(group: str) -> str:
    # A name is text there, which holds no zero.
    return quote(group, safe="")
