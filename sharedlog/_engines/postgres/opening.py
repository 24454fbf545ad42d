"""Logs in PostgreSQL by their URL (see ``PostgresAddress``)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import connect_as_ours
from _rifl_ground.servers import InvalidAddress
from sharedlog._core.errors import InvalidRequest, LogUnavailable
from sharedlog._engines.checksums import kept
from sharedlog._engines.names import log_name
from sharedlog._engines.postgres.engine import PostgresEngine
from sharedlog._engines.postgres.schema import create, find

_SCHEMA = "sharedlog"


def create_log(url: str, keys: Mapping[str, bytes]) -> PostgresEngine:
    """Create the log that the URL names, with these keys, in one step; raises ``LogExists``."""
    address, name = parts_of(url)

    def begin(connection: psycopg.Connection[Any]) -> str:
        return create(connection, address, name, keys)

    return PostgresEngine(address, begin)


def open_log(url: str) -> PostgresEngine:
    """Open the log that the URL names; raises ``NoSuchLog``.

    Options of this library: ``log``, its name; ``schema=sharedlog``, that holds the logs;
    ``durability=require`` or ``warn``; ``max_connections``; ``timeout_s``.
    """
    address, name = parts_of(url)

    def begin(connection: psycopg.Connection[Any]) -> str:
        return find(connection, address, name)

    return PostgresEngine(address, begin)


def accept_loss(url: str, keys: Mapping[str, bytes]) -> str:
    """Have a log go on that may have lost entries; why it stopped, empty if it had not.

    ``keys`` are put in the same step: a new incarnation, since what is lost was known to others.
    """
    address, name = parts_of(url)
    try:
        with connect_as_ours(address) as connection:
            find(connection, address, name)
            connection.execute("SET synchronous_commit = 'on'")
            row = connection.execute(
                f"SELECT {address.schema}.accept_loss_1(%s, %s, %s::bytea[], %s::bytea[])".encode(),
                (
                    name,
                    secrets.token_hex(16),
                    [key.encode() for key in keys],
                    [kept(key, value) for key, value in keys.items()],
                ),
            ).fetchone()
    except (psycopg.Error, OSError) as error:
        raise LogUnavailable(f"{address}: {type(error).__name__}") from error
    return str(row[0]) if row else ""


def parts_of(url: str) -> tuple[PostgresAddress, str]:
    """Return where the log of a URL is, and its name; raises ``InvalidRequest``."""
    name = log_name(url)[1]
    base, _, query = url.partition("?")
    # Unparsed: libpq has rules of its own for what they mean.
    options = [each for each in query.split("&") if each and each.partition("=")[0] != "log"]
    try:
        return PostgresAddress.parse(f"{base}?{'&'.join(options)}", schema=_SCHEMA), name
    except InvalidAddress as error:
        raise InvalidRequest(str(error)) from None
