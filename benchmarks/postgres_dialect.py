"""PostgreSQL as a dialect of the generic backend: what a second database costs, and how fast it is.

No URL opens it: PostgreSQL has a store of its own, which is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from _rifl_ground.servers import Durability
from rifl._stores.sql.dialect import Failure, SqlServer, SqlTable

__all__ = ["PostgresDialect"]

_TYPES = {"int": "bigint", "float": "double precision", "blob": "bytea"}
_AGAIN = ("40001", "40P01", "23505")
_GONE = ("57P", "08")


class PostgresDialect:
    """See ``Dialect``. ``conninfo``: libpq's; ``schema``: which holds the tables."""

    durability = Durability.WARN
    max_connections = 8
    max_record_bytes = 100 << 20
    now = "extract(epoch FROM clock_timestamp())::float8"
    share = "FOR SHARE"
    session_id = "pg_backend_pid()"
    bytes_parameter = "%s"
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, conninfo: str, schema: str, timeout_s: float = 5.0) -> None:
        self.place = f"postgresql, schema {schema}"
        self.prefix = f"{schema}."
        self.timeout_s = timeout_s
        self._conninfo, self._schema = conninfo, schema

    def bytes_argument(self, value: bytes) -> Any:
        """Return them as they are."""
        return value

    def connect(self, within_s: float | None = None) -> Any:
        """Connect."""
        connection = psycopg.connect(self._conninfo)
        connection.execute("SET default_transaction_isolation = 'read committed'")
        connection.execute(f"SET lock_timeout = {int(self.timeout_s * 750)}")
        connection.commit()
        return connection

    def failure(self, error: Exception) -> Failure:
        """Say what an SQLSTATE means."""
        state = getattr(error, "sqlstate", None)
        if state is None or state.startswith(_GONE):
            return Failure.LOST if isinstance(error, psycopg.OperationalError) else Failure.OTHER
        if state in _AGAIN:
            return Failure.AGAIN
        if state in ("42P01", "3F000"):
            return Failure.MISSING
        return Failure.LOCKED if state == "55P03" else Failure.OTHER

    def tables(self, tables: Sequence[SqlTable]) -> list[str]:
        """Return the statements that make tables and indexes."""
        made = [f"CREATE SCHEMA IF NOT EXISTS {self._schema}"]
        for table in tables:
            columns = [f"{name} {_TYPES.get(kind, 'bytea')}" for name, kind in table.columns]
            columns.append(f"PRIMARY KEY ({', '.join(table.key)})")
            made.append(f"CREATE TABLE IF NOT EXISTS @.{table.name} ({', '.join(columns)})")
            for number, names in enumerate(table.indexes):
                made.append(
                    f"CREATE INDEX IF NOT EXISTS {table.name}_{number} ON @.{table.name} "
                    f"({', '.join(names)})"
                )
        return made

    def lock_schema(self, connection: Any) -> None:
        """Wait for others that make the tables."""
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", (self.place,))

    def is_there(self, connection: Any, table: str) -> bool:
        """Whether there is such a table."""
        row = connection.execute("SELECT to_regclass(%s)", (f"{self.prefix}{table}",)).fetchone()
        return row[0] is not None

    def server(self, connection: Any, tables: Sequence[SqlTable]) -> SqlServer:
        """Return which server it is; its settings are not judged here."""
        row = connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        return SqlServer("", [], str(row[0]))

    def run(self, connection: Any) -> bytes:
        """Return when it was started."""
        row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
        return str(row[0]).encode()

    def about(self, connection: Any, table: str) -> int:
        """Return the planner's estimate."""
        row = connection.execute(
            "SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (f"{self.prefix}{table}",)
        ).fetchone()
        return int(row[0])

    def size_bytes(self, connection: Any, tables: Sequence[SqlTable]) -> int:
        """Return nothing: no one asks here."""
        return 0

    def wait_at_most(self, connection: Any, limit_s: float) -> None:
        """Nothing: what is measured here answers."""

    def end_holder(self, connection: Any, identity: tuple[int, int, bytes]) -> bool:
        """Return false: what is not committed does not show here."""
        return False
