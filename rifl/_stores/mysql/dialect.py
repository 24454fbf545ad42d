"""MariaDB and MySQL as a dialect of the generic backend, over PyMySQL."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pymysql

from rifl._stores.errors import StoreUnreachable
from rifl._stores.mysql.failures import failure_of
from rifl._stores.mysql.settings import (
    LEAST_PACKET,
    VARIABLES,
    is_mariadb,
    most_record,
    refusal,
    weaknesses,
)
from rifl._stores.mysql.store_address import MySqlStoreAddress, Tls
from rifl._stores.sql.dialect import Failure, SqlServer, SqlTable

_GRACE_S = 1.0
_SCHEMA_S = 60
# By how much the time of a server's start, as it tells it in whole seconds, may differ.
_STARTED_S = 2
_TYPES = {"int": "BIGINT", "float": "DOUBLE", "blob": "LONGBLOB"}
# Whatever the server's defaults are, and what init_connect has set. A replica that is suspended
# in a transaction loses it and its locks: to MariaDB, as MySQL knows no such limit.
_OURS = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
    "completion_type = 'NO_CHAIN', unique_checks = 1, sql_safe_updates = 0, "
    "sql_select_limit = DEFAULT, innodb_lock_wait_timeout = {lock_s} "
    "/*M! , idle_transaction_timeout = {idle_s} */"
)


class MySqlDialect:
    """See ``Dialect``.

    Bytes travel as hexadecimal digits: no charset, ``sql_mode`` or escaping of a driver's counts.
    """

    now = "(UNIX_TIMESTAMP(NOW(6)) + 0e0)"
    share = "LOCK IN SHARE MODE"
    session_id = "CONNECTION_ID()"
    bytes_parameter = "UNHEX(%s)"
    errors: tuple[type[Exception], ...] = (pymysql.Error, OSError)

    def __init__(self, address: MySqlStoreAddress) -> None:
        self.address = address
        self.place = str(address)
        self.prefix = address.prefix
        self.durability = address.durability
        self.timeout_s = address.timeout_s
        self.max_connections = address.max_connections
        self.max_record_bytes = most_record(LEAST_PACKET)
        self._started: int | None = None

    def bytes_argument(self, value: bytes) -> str:
        """Return bytes as a driver is given them."""
        return value.hex()

    def connect(self, within_s: float | None = None) -> Any:
        """Connect, with all that our statements need set."""
        address, most_s = self.address, within_s or self.timeout_s
        ssl: dict[str, Any] = {
            name: value
            for name in ("ssl_ca", "ssl_cert", "ssl_key")
            if (value := getattr(address, name))
        }
        if address.tls is Tls.OFF:
            ssl = {"ssl_disabled": True}
        elif address.ssl_ca:
            ssl |= {"ssl_verify_cert": True, "ssl_verify_identity": True}
        connection = pymysql.connect(
            host=address.host,
            port=address.port,
            unix_socket=address.unix_socket or None,
            user=address.user or None,
            password=address.password,
            database=address.database,
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=max(1, round(most_s)),
            # Of the server's greeting, too.
            read_timeout=most_s + _GRACE_S,
            write_timeout=self.timeout_s + _GRACE_S,
            **ssl,
        )
        try:
            with connection.cursor() as cursor:
                lock_s, idle_s = (max(1, int(address.timeout_s / part)) for part in (2, 1))
                cursor.execute(_OURS.format(lock_s=lock_s, idle_s=idle_s))
                # We look again after we waited: each statement has a snapshot of its own.
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute("SET SESSION TRANSACTION READ WRITE")
        except BaseException:
            connection.close()
            raise
        return connection

    def failure(self, error: Exception) -> Failure:
        """Say what an error of the driver means."""
        return failure_of(error)

    # -- the schema -----------------------------------------------------------------------

    def tables(self, tables: Sequence[SqlTable]) -> list[str]:
        """Return the statements that make tables which are not there."""
        made = []
        for table in tables:
            columns = [
                f"{name} {_TYPES.get(kind) or kind.replace('bytes', 'VARBINARY')}"
                f"{' NOT NULL' * (name in table.key)}"
                for name, kind in table.columns
            ]
            columns.append(f"PRIMARY KEY ({', '.join(table.key)})")
            columns += [f"INDEX ({', '.join(names)})" for names in table.indexes]
            made.append(
                f"CREATE TABLE IF NOT EXISTS @.{table.name} ({', '.join(columns)}) "
                "ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
            )
        return made

    def lock_schema(self, connection: Any) -> None:
        """Wait for others that make the tables."""
        # Each answer has to come in the time of a statement.
        wait_s = max(1, int(self.timeout_s / 2))
        for _ in range(0, _SCHEMA_S, wait_s):
            if _one(connection, "SELECT GET_LOCK(%s, %s)", self._lock(), wait_s) == 1:
                return
        raise StoreUnreachable(
            f"{self.place}: another process has been making the tables for {_SCHEMA_S} s. Look at "
            "what it waits for, and start again"
        )

    def _lock(self) -> str:
        # A lock's name is the whole server's, and short.
        return f"rifl {sha256(f'{self.address.database}/{self.prefix}'.encode()).hexdigest()[:40]}"

    def is_there(self, connection: Any, table: str) -> bool:
        """Whether there is such a rifl table."""
        return table in self._engines(connection, [table])

    def _engines(self, connection: Any, names: Sequence[str]) -> dict[str, str]:
        wanted = [f"{self.prefix}{name}" for name in names]
        if not wanted:
            return {}
        rows = _rows(
            connection,
            "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = "
            f"DATABASE() AND table_name IN ({', '.join(['%s'] * len(wanted))})",
            *wanted,
        )
        return {str(name).removeprefix(self.prefix): str(engine) for name, engine in rows}

    # -- the server -----------------------------------------------------------------------

    def server(self, connection: Any, tables: Sequence[SqlTable]) -> SqlServer:
        """Look at the server, and at these tables of rifl's.

        Servers that replicate each other have ids of their own.
        """
        names = ", ".join(f"'{name}'" for name in VARIABLES)
        rows = _rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
        found = {name.lower(): str(value) for name, value in rows}
        self.max_record_bytes = most_record(int(found["max_allowed_packet"]))
        refused = refusal(found)
        # Of which a driver is told 32 bits.
        if _one(connection, "SELECT CONNECTION_ID()") & 0xFFFFFFFF != connection.thread_id():
            refused = "a proxy is in between, which may split reads from writes: connect directly"
        engines = self._engines(connection, [table.name for table in tables])
        which = "server_id" if is_mariadb(found) else "server_uuid"
        return SqlServer(refused, weaknesses(found, engines), f"server {found[which]}")

    def run(self, connection: Any) -> bytes:
        """Return what changes when the server is started anew."""
        (_, uptime), *_ = _rows(connection, "SHOW GLOBAL STATUS LIKE 'Uptime'")
        started = int(_one(connection, "SELECT UNIX_TIMESTAMP()")) - int(uptime)
        if self._started is None or abs(started - self._started) > _STARTED_S:
            self._started = started
        return b"%d" % self._started

    def about(self, connection: Any, table: str) -> int:
        """Return about how many rows a rifl table has."""
        found = _one(
            connection,
            "SELECT SUM(table_rows) FROM information_schema.tables WHERE "
            "table_schema = DATABASE() AND table_name = %s",
            f"{self.prefix}{table}",
        )
        return int(found or 0)

    def size_bytes(self, connection: Any, tables: Sequence[SqlTable]) -> int:
        """Return about how much the tables take."""
        wanted = [f"{self.prefix}{table.name}" for table in tables]
        found = _one(
            connection,
            "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE "
            f"table_schema = DATABASE() AND table_name IN ({', '.join(['%s'] * len(wanted))})",
            *wanted,
        )
        return int(found or 0)

    def wait_at_most(self, connection: Any, limit_s: float) -> None:
        """Wait for replies for so long, and as the connection does at its server's limits."""
        # As PyMySQL reads it before each reply.
        connection._read_timeout = limit_s + _GRACE_S

    def end_holder(self, connection: Any, identity: tuple[int, int, bytes]) -> bool:
        """End the session whose open transaction has recorded a call: that shows uncommitted."""
        client_id, seq, key = identity
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
            cursor.execute(
                f"SELECT holder FROM {self.prefix}calls WHERE client_id = %s AND seq = %s AND "
                "call_key = UNHEX(%s) AND record IS NOT NULL",
                (client_id, seq, key.hex()),
            )
            row = cursor.fetchone()
            if row is None or not row[0]:
                return False
            cursor.execute(f"KILL {int(row[0])}")
        return True


def _rows(connection: Any, statement: str, *arguments: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments or None)
        return cursor.fetchall()


def _one(connection: Any, statement: str, *arguments: Any) -> Any:
    return _rows(connection, statement, *arguments)[0][0]
