"""A look at a PostgreSQL server before a start, which only reads.

Nothing is set for a session: a pool in transaction mode would lend it to other applications.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from _rifl_ground.findings import Checkup
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.settings import SYNCHRONOUS, Tables, found_weak
from _rifl_ground.servers import Durability

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = {}"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
# What is reserved for superusers, and since PostgreSQL 16 for a role; the limits of the role and
# of the database are -1 where there is none. A role of few rights sees no other one's backend_type.
_ROOM = """
SELECT least(
        current_setting('max_connections')::int
            - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true), '0')::int - count(*),
        (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0)
            - count(*) FILTER (WHERE usename = current_user),
        (SELECT datconnlimit FROM pg_database
            WHERE datname = current_database() AND datconnlimit >= 0)
            - count(*) FILTER (WHERE datname = current_database())
    ) + 1, current_setting('max_connections')
FROM pg_stat_activity WHERE datid IS NOT NULL AND usesysid IS NOT NULL
"""
_IS_MADE = """
SELECT 1 FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace
WHERE relname = %s AND nspname = %s
"""
_MAY_MAKE = """
SELECT has_database_privilege(current_database(), 'CREATE')
    AND coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace
                  WHERE nspname = %s), true)
"""
_SCHEMA = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s"
_LACKS = """
SELECT string_agg(wanted.name || ' on ' || %s || '.' || wanted.tab, ', ' ORDER BY wanted.number)
FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS wanted (tab, name, number)
JOIN pg_class ON relname = wanted.tab
JOIN pg_namespace AS space ON space.oid = relnamespace AND nspname = %s
WHERE NOT has_table_privilege(pg_class.oid, wanted.name)
"""


@contextlib.contextmanager
def only_reading(
    checkup: Checkup, connection: psycopg.Connection[Any], address: PostgresAddress
) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Give a transaction that cannot write, and is rolled back.

    What is given makes a check within it. One that lacks a right leaves it usable, and is noted.
    """
    connection.execute(_BEGIN.format(int(address.timeout_s * 1000)).encode())

    def within(check: Callable[[], None]) -> None:
        try:
            with connection.transaction():
                check()
        except psycopg.errors.InsufficientPrivilege as error:
            checkup.error("rights", str(error), "Have an administrator grant that.")

    try:
        yield within
    finally:
        # Where the connection is lost the server does it.
        with contextlib.suppress(psycopg.Error):
            connection.execute("ROLLBACK")


def look_at_settings(
    checkup: Checkup, connection: psycopg.Connection[Any], address: PostgresAddress, tables: Tables
) -> None:
    """Judge what the server does to what it commits."""
    weak, overridden = found_weak(connection, tables)
    checkup.weaknesses(weak, address.durability)
    if not overridden:
        return
    if address.durability is Durability.WARN:
        checkup.weaknesses(overridden, address.durability)
    else:
        checkup.note("settings", f"{SYNCHRONOUS.setting}: rifl's own sessions set it to on")


def look_at_clock(checkup: Checkup, connection: psycopg.Connection[Any]) -> None:
    """Compare the clocks."""

    def ask() -> float:
        row = connection.execute(_CLOCK).fetchone()
        return float(row[0]) if row else 0.0

    checkup.clock(ask)


def look_at_room(
    checkup: Checkup, connection: psycopg.Connection[Any], address: PostgresAddress
) -> None:
    """Compare the connections that are free with those that a process opens.

    This one's own counts as free. A pool's behind a pooler are the pooler's.
    """
    row = connection.execute(_ROOM).fetchone()
    if row is not None:
        limit = f"max_connections is {row[1]}; the role and the database may have limits, too"
        checkup.connections(address.max_connections + 1, int(row[0]), limit)


def is_made(connection: psycopg.Connection[Any], address: PostgresAddress, table: str) -> bool:
    """Whether the schema has this table; for roles that may not even use the schema, too."""
    row = connection.execute(_IS_MADE, (table, address.schema)).fetchone()
    return row is not None


def look_at_making(
    checkup: Checkup, connection: psycopg.Connection[Any], address: PostgresAddress
) -> bool:
    """Whether the role may make the schema; what it lacks is noted."""
    row = connection.execute(_MAY_MAKE, (address.schema,)).fetchone()
    if row and row[0]:
        return True
    checkup.error(
        "rights",
        f"the schema {address.schema} is not made, and the role may not make it: it needs CREATE "
        "on the database, and on the schema if that is there",
        "Have an administrator grant that, or make the schema as the store's page says.",
    )
    return False


def look_at_rights(
    checkup: Checkup,
    connection: psycopg.Connection[Any],
    address: PostgresAddress,
    wanted: Mapping[str, str],
) -> bool:
    """Whether the role may use the schema and has these rights, by the tables' names."""
    schema = address.schema
    row = connection.execute(_SCHEMA, (schema,)).fetchone()
    if row is None or not row[0]:
        lacks = f"USAGE on the schema {schema}"
    else:
        pairs = [(table, right) for table, rights in wanted.items() for right in rights.split()]
        tables, rights = [table for table, _ in pairs], [right for _, right in pairs]
        found = connection.execute(_LACKS, (schema, tables, rights, schema)).fetchone()
        lacks = found[0] if found and found[0] else ""
    if lacks:
        checkup.error("rights", f"the role lacks {lacks}", "Have an administrator grant that.")
    return not lacks
