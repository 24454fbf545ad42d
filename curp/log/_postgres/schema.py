"""The schema that holds logs in a PostgreSQL database: made, versioned, and looked at."""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import Any

import psycopg

from curp.log._engine import NewLog
from curp.log._errors import CorruptLog, EngineUnavailable, LogExists, NoSuchLog
from rifl._stores.postgres.address import PostgresAddress
from sharedlog._engines.postgres.history import HISTORY

FORMAT = 1
_CREATE = """
INSERT INTO {0}.log (name, incarnation, tail, trimmed, configuration, history, copied)
VALUES (%s, %s, %s, %s, %s, {0}.history_1(), {0}.copied_1())
ON CONFLICT (name) DO NOTHING RETURNING log_id
"""
_FIND = "SELECT incarnation FROM {}.log WHERE name = %s"
_FORMAT = "SELECT value FROM {}.meta WHERE name = 'format'"
_DIRECTORY = files("curp.log._postgres") / "sql"


def script(schema: str) -> str:
    """Return all statements that make the schema, for one who does that by hand."""
    made = f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
    for part in (_DIRECTORY / "tables.sql", HISTORY, _DIRECTORY / "functions.sql"):
        text = part.read_text("utf-8")
        made += text.replace("@schema@", schema).replace("@format@", str(FORMAT))
    return made


def create(
    connection: psycopg.Connection[Any], address: PostgresAddress, group: str, new: NewLog
) -> str:
    """Create a group's log, and the schema where there is none; the log's incarnation.

    Raises ``LogExists``, ``CorruptLog``, ``EngineUnavailable`` without the rights.
    """
    schema, incarnation = address.schema, secrets.token_hex(16)
    try:
        with connection.transaction():
            # One makes the schema, where several begin at once. The lock ends with the transaction.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"curp logs {schema}",)
            )
            if not _is_there(connection, schema):
                connection.execute(script(schema).encode())
            _check_format(connection, address)
            made = connection.execute(
                _CREATE.format(schema).encode(),
                (group.encode(), incarnation, new.trimmed, new.trimmed, new.configuration),
            ).fetchone()
            if made is None:
                raise LogExists.of(str(address), group)
            keys = [key.encode() for key in new.metadata]
            connection.execute(
                f"SELECT {schema}.write_metadata_1(%s, %b::bytea[], %b::bytea[])".encode(),
                (made[0], keys, list(new.metadata.values())),
            )
    except psycopg.errors.InsufficientPrivilege as error:
        raise EngineUnavailable(
            f"{address}: the role may not make or use the schema: have an administrator run what "
            "curp.log._postgres.schema.script gives, and grant the use of it"
        ) from error
    return incarnation


def find(connection: psycopg.Connection[Any], address: PostgresAddress, group: str) -> str:
    """Return the incarnation of a log that is there; raises ``NoSuchLog``, ``CorruptLog``."""
    if not _is_there(connection, address.schema):
        raise NoSuchLog.of(str(address), group)
    _check_format(connection, address)
    row = connection.execute(_FIND.format(address.schema).encode(), (group.encode(),)).fetchone()
    if row is None:
        raise NoSuchLog.of(str(address), group)
    return str(row[0])


def _is_there(connection: psycopg.Connection[Any], schema: str) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (f"{schema}.log",)).fetchone()
    return row is not None and row[0] is not None


def _check_format(connection: psycopg.Connection[Any], address: PostgresAddress) -> None:
    try:
        with connection.transaction():
            row = connection.execute(_FORMAT.format(address.schema).encode()).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise CorruptLog(f"{address}: the schema is damaged, or none of ours") from error
    if row is None or not row[0].isdecimal() or int(row[0]) < 1:
        raise CorruptLog(f"{address} is damaged: it has no format number")
    if int(row[0]) > FORMAT:
        raise CorruptLog(
            f"{address} has format {row[0]}, written by a newer release; this one knows {FORMAT}"
        )
