"""Our schema in a PostgreSQL database: made, versioned, and checked (DESIGN §6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import psycopg

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.owned import CHECKING_ITSELF
from _rifl_ground.postgres.settings import Tables
from rifl._stores.errors import (
    StoreCorrupt,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
    WrongDatabase,
)
from rifl._stores.inspection import NOTES_KEPT, VERDICTS_KEPT_S
from rifl._stores.postgres.history import continue_history, stop, stopped

# What this release reads and writes. A newer one is refused.
LAYOUT = 1
# The first replica that knows a higher number than the store has makes its functions, for all.
# Older replicas call them meanwhile: a function whose arguments or results change gets a new
# number in its name, and stands beside the one before.
FUNCTIONS = 1
_OLDEST_SERVER = 140000
_DIRECTORY = files("rifl._stores.postgres") / "sql"
_TABLE = re.compile(r"CREATE TABLE @schema@\.(\w+)")
_PARTS = ("claim", "unclaimed", "finish", "leases", "history", "rows")
_NOTE = """
INSERT INTO @schema@.meta VALUES ('functions', '@functions@')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
"""


def script(schema: str) -> str:
    """Return all statements that make the schema, for one who does that by hand."""
    made = f"CREATE SCHEMA IF NOT EXISTS {schema};\n{_read('tables')}"
    return made.replace("@schema@", schema) + functions(schema)


def functions(schema: str) -> str:
    """Return the statements that bring the functions of a schema up to date."""
    text = "\n".join([*map(_read, _PARTS), _NOTE])
    given = {"owned": CHECKING_ITSELF, "schema": schema, "functions": FUNCTIONS}
    given |= {"kept_s": VERDICTS_KEPT_S, "most_kept": NOTES_KEPT}
    for name, value in given.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def tables(schema: str) -> Tables:
    """Return the tables of a schema."""
    return Tables(schema, _TABLE.findall(_read("tables")))


def _read(part: str) -> str:
    return (_DIRECTORY / f"{part}.sql").read_text("utf-8")


class Prepared(NamedTuple):
    """The store's id, and the history of the server that it is written on (``history_1``)."""

    store_id: str
    history: str


def prepare(connection: psycopg.Connection[Any], address: PostgresAddress) -> Prepared:
    """Make the schema if it is not there, and see that its history goes on.

    Of several replicas that start at once, one makes it. Raises a ``StoreError``.
    """
    check_version(connection, address)
    check_writable(connection, address)
    try:
        with connection.transaction():
            # Released at the end of the transaction.
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
                (f"rifl schema {address.schema}",),
            )
            meta = noted(connection, address)
            if meta is None:
                connection.execute(script(address.schema).encode())
                meta = noted(connection, address) or {}
            met = checked(meta, address)
            if met.functions < FUNCTIONS:
                connection.execute(functions(address.schema).encode())
            broken, history = continue_history(connection, address, meta)
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnreachable(
            f"{address}: the role may not make or read the schema ({_text(error)}); have an "
            f"administrator run what rifl.postgres_schema({address.schema!r}) returns (with "
            "functions_only=True for a schema that is there), and grant the use of it"
        ) from error
    if broken:
        # For everyone, and after this process, too.
        stop(connection, address, met.store_id, broken)
        raise StoreCorrupt(stopped(address, broken))
    return Prepared(met.store_id, history)


class Met(NamedTuple):
    """A store that is there: id, layout, number of its functions, and why it stopped, if it did."""

    store_id: str
    layout: int
    functions: int
    stopped: str = ""


def read_meta(connection: psycopg.Connection[Any], address: PostgresAddress) -> Met:
    """Look at the store that is there; makes nothing.

    Also of one that has stopped. Raises ``WrongDatabase`` if there is none,
    ``StoreCorrupt``, ``StoreSchemaTooNew``.
    """
    meta = noted(connection, address)
    if meta is None:
        raise WrongDatabase(f"{address} holds no rifl store")
    why = meta.pop("stopped", "")
    if "stopped_store" in meta:
        meta["store"] = meta["stopped_store"]
    return checked(meta, address)._replace(stopped=why)


def checked(meta: Mapping[str, str], address: PostgresAddress) -> Met:
    """Judge what is noted of a store: raises ``StoreCorrupt``, also if it stopped.

    ``StoreSchemaTooNew``: a newer release wrote it.
    """
    if "stopped" in meta:
        raise StoreCorrupt(stopped(address, meta["stopped"]))
    try:
        layout = int(meta["layout"])
        if layout > LAYOUT:
            raise StoreSchemaTooNew(
                f"{address} has layout {layout}; this release knows {LAYOUT}: upgrade it"
            )
        return Met(meta["store"], layout, int(meta["functions"]))
    except (KeyError, ValueError) as error:
        raise StoreCorrupt(f"{address}: the meta table is damaged, or not rifl's") from error


def read_store_id(connection: psycopg.Connection[Any], address: PostgresAddress) -> str:
    """Return the id of the store that is there, empty if there is none."""
    return (noted(connection, address) or {}).get("store", "")


def noted(connection: psycopg.Connection[Any], address: PostgresAddress) -> dict[str, str] | None:
    """Return all that is noted of the store, None if there is none; makes nothing."""
    table = f"{address.schema}.meta"
    found = connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()
    if found is None or found[0] is None:
        return None
    try:
        with connection.transaction():
            rows = connection.execute(f"SELECT name, value FROM {table}".encode())
            return {name: value for name, value in rows}  # noqa: C416 - rows of two
    except psycopg.errors.UndefinedColumn as error:
        raise StoreCorrupt(f"{address}: {table} is not a rifl table") from error


def check_version(connection: psycopg.Connection[Any], address: PostgresAddress) -> None:
    """Raise ``UnsupportedStore`` for a server that is too old."""
    if connection.info.server_version < _OLDEST_SERVER:
        raise UnsupportedStore(f"{address}: PostgreSQL 14 or newer is needed")


def check_writable(connection: psycopg.Connection[Any], address: PostgresAddress) -> None:
    """Raise ``StoreUnreachable`` for a server that cannot be written."""
    row = connection.execute(
        "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')"
    ).fetchone()
    if row is None or row[0]:
        raise StoreUnreachable(
            f"{address} is a standby, which cannot be written (target_session_attrs=read-write "
            "finds the primary among several hosts)"
        )
    if row[1] == "on":
        raise StoreUnreachable(f"{address} is read-only: default_transaction_read_only is on")


def _text(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__
