"""The schema that holds logs in a PostgreSQL database: made, versioned, and looked at."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.settings import WEAK, Tables
from sharedlog._core.errors import CorruptLog, LogExists, LogUnavailable, NoSuchLog
from sharedlog._engines.checksums import kept
from sharedlog._engines.formats import check_format
from sharedlog._engines.owner import refused

FORMAT = 1
_CREATE = """
INSERT INTO {0}.log (name, incarnation, history, copied, tail, removed)
VALUES (%s, %s, {0}.history_1(), {0}.copied_1(), %s, %s)
ON CONFLICT (name) DO NOTHING RETURNING log_id
"""
_DIRECTORY = files("sharedlog._engines.postgres") / "sql"
_PARTS = ("log_tables.sql", "history.sql", "log_functions.sql", "joining.sql")


def script(schema: str) -> str:
    """Return all statements that make the schema, for one who does that by hand."""
    made = f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
    for part in _PARTS:
        text = (_DIRECTORY / part).read_text("utf-8")
        made += text.replace("@weak@", WEAK).replace("@schema@", schema)
    return made.replace("@format@", str(FORMAT))


def tables(schema: str) -> Tables:
    """Return the tables of a schema."""
    return Tables(schema, ("meta", "log", "entry", "tag", "key"))


def create(
    connection: psycopg.Connection[Any],
    address: PostgresAddress,
    name: str,
    keys: Mapping[str, bytes],
    removed: int = 0,
) -> str:
    """Create a log, and the schema where there is none, in one step; this copy's incarnation.

    ``removed``: the LSN that it begins behind.

    Raises ``LogExists``, ``CorruptLog``, ``NewerFormat``, ``LogUnavailable`` without the rights.
    """
    schema, incarnation = address.schema, secrets.token_hex(16)
    try:
        with connection.transaction():
            # Of several who begin at once, one makes it. Released at the end.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"logs {schema}",)
            )
            if not _is_there(connection, schema):
                connection.execute(script(schema).encode())
            _check_format(connection, address)
            made = connection.execute(
                _CREATE.format(schema).encode(), (name, incarnation, removed, removed)
            ).fetchone()
            if made is None:
                raise LogExists(f"{address} has a log {name!r} already: open it")
            if keys:
                connection.execute(
                    f"SELECT {schema}.put_1(%s, %s::bytea[], %s::bytea[], '', 0, 0)".encode(),
                    (
                        made[0],
                        [key.encode() for key in keys],
                        [kept(key, value) for key, value in keys.items()],
                    ),
                )
    except psycopg.errors.InsufficientPrivilege as error:
        raise refused(
            LogUnavailable(
                f"{address}: the role may not make or use the schema: have an administrator run "
                "sharedlog create with this URL, and grant this role the use of what it makes"
            )
        ) from error
    return incarnation


class Stand(NamedTuple):
    """How a log stands on the server's present history.

    ``stopped``: why it stopped for everyone; ``breaks``: why it would; empty if it has not, or
    would not.
    """

    stopped: str
    breaks: str


def stand_of(connection: psycopg.Connection[Any], schema: str, name: str) -> Stand:
    """Return how a log that is there stands; only reads."""
    row = connection.execute(
        f"SELECT stopped, {schema}.breaks_1(history, {schema}.history_1(), copied) "  # noqa: S608 - checked
        f"FROM {schema}.log WHERE name = %s".encode(),
        (name,),
    ).fetchone()
    return Stand(*row) if row else Stand("", "")


def find(connection: psycopg.Connection[Any], address: PostgresAddress, name: str) -> str:
    """Return the incarnation of a log that is there; ``NoSuchLog``, ``CorruptLog``."""
    missing = NoSuchLog(f"{address} has no log {name!r}; create makes one")
    if not _is_there(connection, address.schema):
        raise missing
    _check_format(connection, address)
    row = connection.execute(
        f"SELECT incarnation FROM {address.schema}.log WHERE name = %s".encode(),  # noqa: S608 - checked
        (name,),
    ).fetchone()
    if row is None:
        raise missing
    return str(row[0])


def _is_there(connection: psycopg.Connection[Any], schema: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (f"{schema}.log",)).fetchone()
    return row is not None and row[0] is not None


def _check_format(connection: psycopg.Connection[Any], address: PostgresAddress) -> None:
    try:
        with connection.transaction():
            row = connection.execute(
                f"SELECT value FROM {address.schema}.meta WHERE name = 'format'".encode()  # noqa: S608 - checked
            ).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise CorruptLog(f"{address}: the schema is damaged, or not made by sharedlog") from error
    check_format(row and row[0], FORMAT, str(address))
