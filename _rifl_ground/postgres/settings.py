"""A PostgreSQL server's settings, and what they mean for what it commits (DESIGN §6).

``docs/reference/stores-postgresql.md`` tells why the settings that are not here do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.servers import Durability, Weakness, told

# What each has to be, and what it costs if it is not. A session cannot set these.
WANTED = {
    "fsync": ("on", "a crash of the machine may lose any commit, or damage the database"),
    "full_page_writes": ("on", "a crash of the machine may damage pages of the database"),
    "data_sync_retry": (
        "off",
        "an fsync that failed is tried again, which may succeed although commits are lost",
    ),
    "zero_damaged_pages": ("off", "a damaged page is emptied, and its commits are gone"),
    "ignore_checksum_failure": ("off", "a damaged page is used all the same"),
    "ignore_invalid_pages": ("off", "a recovery goes on without pages that it does not find"),
}
# The kind of our tables is judged as a setting is: anyone who owns them may change it.
_TABLES = "the kind of its tables"
_WANTED = {
    **WANTED,
    _TABLES: ("logged", "a crash of the server empties tables, as does a failover"),
}
# As an SQL expression: the settings that are weak, empty if none is.
WEAK = "concat_ws(', ', {})".format(
    ", ".join(
        f"CASE WHEN current_setting('{name}', true) <> '{wanted}' "
        f"THEN '{name} is ' || current_setting('{name}') END"
        for name, (wanted, _) in WANTED.items()
    )
)
# A session sets this one by itself, unless durability is warn.
SYNCHRONOUS = Weakness(
    "synchronous_commit is off, not on",
    "a crash of the server loses up to three times wal_writer_delay of commits",
)
# Has a session, or a transaction (the argument is true), wait for the disk.
SYNCED = (
    "SELECT set_config('synchronous_commit', 'on', {}) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


class Tables(NamedTuple):
    """Our tables, by their schema; without one they are found by the search path."""

    schema: str
    names: Sequence[str]


def settings_with(tables: Tables) -> str:
    """Return a column for what the settings are, and these tables; see ``weaknesses``."""
    settings = [f"current_setting('{name}', true)" for name in WANTED]
    names = ", ".join(f"'{name}'" for name in tables.names)
    where = "pg_catalog.pg_table_is_visible(oid)"
    if tables.schema:
        # Not to_regclass, which remembers a name that is not there, past the moment it is.
        where = (
            "relnamespace = "
            f"(SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = '{tables.schema}')"
        )
    settings.append(
        "(SELECT CASE WHEN bool_or(relpersistence = 'u') THEN 'unlogged' ELSE 'logged' END "
        f"FROM pg_catalog.pg_class WHERE relname IN ({names}) AND {where})"
    )
    return f"ARRAY[{', '.join(settings)}]"


def weaknesses(found: Sequence[str | None]) -> list[Weakness]:
    """Return what of a server's settings is weak; one that this release has not is not."""
    return [
        Weakness(f"{name} is {value}, not {wanted}", cost)
        for (name, (wanted, cost)), value in zip(_WANTED.items(), found, strict=True)
        if value not in (wanted, None)
    ]


def found_weak(
    connection: psycopg.Connection[Any], tables: Tables
) -> tuple[list[Weakness], list[Weakness]]:
    """Return what is weak of the settings and tables, and what our sessions override; reads."""
    unsynced = "current_setting('synchronous_commit') = 'off'"
    # A connection that is lent to handlers has cursors that refuse ours.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(f"SELECT {settings_with(tables)}, {unsynced}".encode())
        row = cursor.fetchone()
    found, off = row or ((), False)
    return weaknesses(found), [SYNCHRONOUS] * off


def check_durability(
    connection: psycopg.Connection[Any],
    address: PostgresAddress,
    tables: Tables,
    refused: Callable[[str], Exception],
) -> list[Weakness]:
    """Return what is weak at an address that says ``durability=warn``; its tables, if there.

    Raises ``refused(why)`` at another one, unless it is ``synchronous_commit`` alone: each of
    our sessions overrides that, and so does ``rifl.record`` in a handler's transaction.
    """
    weak, overridden = found_weak(connection, tables)
    if weak and address.durability is Durability.REQUIRE:
        raise refused(f"{address}: {told(weak)} (?durability=warn opens it all the same)")
    return [*weak, *overridden]
