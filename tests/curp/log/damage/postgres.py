"""Damage to a group's log in PostgreSQL: all that its tests know of the schema."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg

__all__ = ["Damage"]

# The function by which a log is written.
_COMMIT = "commit_1"
_LAST = "octet_length(body) - 1"
_CHANGES = {
    "bit": f"body = set_byte(body, {_LAST}, get_byte(body, {_LAST}) # 1)",
    "torn": "body = substr(body, 1, octet_length(body) - 3)",
    "empty": "body = ''",
    "tags": "tags = 'other'",
}
_PIECES = "FROM {0}.key WHERE log_id = {1} AND convert_from(key, 'UTF8') LIKE 'pieces/%'"
# How a bit is flipped, by the kind of a column.
_FLIPS = {
    "bytea": "set_bit({0}, least({1}, octet_length({0}) * 8 - 1), "
    "1 - get_bit({0}, least({1}, octet_length({0}) * 8 - 1)))",
    "bigint": "{0} # (1::int8 << {1})",
    "text": "CASE WHEN {0} = '' THEN '?' ELSE overlay({0} PLACING chr(ascii({0}) # 1) FROM 1) END",
}
_COUNTED = {
    "entries": "FROM {0}.entry WHERE log_id = {1}",
    "tags": "FROM {0}.tag WHERE log_id = {1}",
    "pieces": _PIECES,
}


class Damage:
    """A group's log in a server, damaged without its engines."""

    def __init__(self, server: Any, group: str, schema: str = "curp") -> None:
        self.server = server
        self.group = group
        self.schema = schema
        self._name = quote(group, safe="")
        self._options = {"group": self._name, "schema": schema}

    def url(self, host: str = "", **options: object) -> str:
        """Return the log's URL."""
        url: str = self.server.url(host, **self._options, **options)
        return url

    def behind(self, path: Any) -> str:
        """Lead a path to the server; return the log's URL by that path alone."""
        path.lead_to(self.server.port)
        return self.url(path.target, timeout_s=1)

    # Entries and their listings under tags.

    def drop_entry(self, lsn: int) -> None:
        """Remove an entry, and nothing else."""
        self._change(f"DELETE FROM {{0}}.entry WHERE log_id = {{1}} AND lsn = {lsn}")

    def change_entry(self, lsn: int, how: str = "bit") -> None:
        """Flip a bit of an entry's body, tear its end off, empty it, or change its tags."""
        self._change(f"UPDATE {{0}}.entry SET {_CHANGES[how]} WHERE log_id = {{1}} AND lsn = {lsn}")

    def list_entry(self, lsn: int, tag: str) -> None:
        """List an entry under a tag."""
        self._change(f"INSERT INTO {{0}}.tag VALUES ({{1}}, '{tag}', {lsn})")

    def unlist_entry(self, lsn: int, tag: str) -> None:
        """Remove an entry's listing under a tag."""
        self._change(
            f"DELETE FROM {{0}}.tag WHERE log_id = {{1}} AND tag = '{tag}' AND lsn = {lsn}"
        )

    # The log's own keys, and the pieces of snapshots among them.

    def key(self, name: str) -> bytes:
        """Return what a key holds."""
        (found,) = self._ask("SELECT value FROM {0}.key WHERE log_id = {1} AND key = %s", _b(name))
        return bytes(found[0])

    def set_key(self, name: str, value: bytes | None) -> None:
        """Have a key hold something else, or be gone."""
        if value is None:
            self._change("DELETE FROM {0}.key WHERE log_id = {1} AND key = %s", _b(name))
        else:
            self._change(
                "INSERT INTO {0}.key (log_id, key, value) VALUES ({1}, %s, %s) "
                "ON CONFLICT (log_id, key) DO UPDATE SET value = excluded.value",
                *(_b(name), value),
            )

    def pieces(self) -> list[str]:
        """Return the keys of all pieces of snapshots, in their order."""
        return [bytes(key).decode() for (key,) in self._ask(f"SELECT key {_PIECES} ORDER BY key")]

    # Any bit.

    def stored(self) -> list[Any]:
        """Return all that is kept of the log, but for its metadata: their writers check those."""
        keys = self._ask(
            "SELECT encode(key, 'hex') FROM {0}.key WHERE log_id = {1} "
            "AND convert_from(key, 'UTF8') NOT LIKE 'metadata/%' ORDER BY key"
        )
        where = {"key": [f"key = decode('{key}', 'hex')" for (key,) in keys]}
        where |= {"log": ["true"], "entry": ["lsn = 5"], "tag": ["lsn = 5"]}
        columns = self._ask(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = %s AND column_name <> 'log_id' ORDER BY table_name, column_name",
            self.schema,
        )
        return [
            (table, column, row, kind)
            for table, column, kind in columns
            for row in where.get(table, ())
            if kind in _FLIPS
        ]

    def flip(self, stored: Any, bit: int) -> bool:
        """Flip one bit; whether that could be done."""
        table, column, row, kind = stored
        flipped = _FLIPS[kind].format(column, bit)
        statement = f"UPDATE {{0}}.{table} SET {column} = {flipped} WHERE log_id = {{1}} AND {row}"
        try:
            self._change(statement)
        except (psycopg.errors.UniqueViolation, psycopg.errors.ArraySubscriptError):
            # Another row has that already, or there is no bit.
            return False
        return True

    # The whole log.

    def count(self, kind: str) -> int:
        """Return how many entries, listings under tags, or pieces there are."""
        ((number,),) = self._ask(f"SELECT count(*) {_COUNTED[kind]}")
        return int(number)

    def set_format(self, number: int) -> None:
        """Have it be a log of another release."""
        self._change(f"UPDATE {{0}}.meta SET value = '{number}'")

    def set_end(self, lsn: int) -> None:
        """Have the log's row say that it ends there."""
        self._change(f"UPDATE {{0}}.log SET tail = {lsn} WHERE log_id = {{1}}")

    def set_history(self, history: str) -> None:
        """Have it be written on another server, and on another of its histories."""
        self._change(f"UPDATE {{0}}.log SET history = '{history}' WHERE log_id = {{1}}")

    def drop(self) -> None:
        """Drop the schema."""
        self._run(f"DROP SCHEMA {self.schema} CASCADE")

    def drop_table(self, name: str) -> None:
        """Drop one table of the schema."""
        self._run(f"DROP TABLE {self.schema}.{name} CASCADE")

    def keep(self) -> Callable[[], None]:
        """Copy the log's rows; return what puts the copy into their place."""
        ((number,),) = self._ask("SELECT {1}")
        older: dict[str, bytes] = {}
        with self.server.connect() as connection:
            tables = connection.execute(
                "SELECT table_name FROM information_schema.columns "
                "WHERE table_schema = %s AND column_name = 'log_id'",
                (self.schema,),
            ).fetchall()
            for (table,) in tables:
                rows = f"SELECT * FROM {self.schema}.{table} WHERE log_id = {number}"
                with connection.cursor().copy(f"COPY ({rows}) TO STDOUT") as copy:
                    older[table] = b"".join(bytes(data) for data in copy)

        def restore() -> None:
            with self.server.connect() as connection:
                for table, rows in older.items():
                    name = f"{self.schema}.{table}"
                    connection.execute(f"DELETE FROM {name} WHERE log_id = {number}")
                    with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                        copy.write(rows)

        return restore

    # Who waits, and for what.

    def hears(self, engine: Any) -> bool:
        """Whether a session of the log's engines listens for appends."""
        return bool(self._listening())

    def deafen(self) -> None:
        """End the sessions that listen for appends."""
        self._terminate(self._listening())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the row that every write locks, as a session does that hangs."""
        with self.server.connect() as holder:
            statement = f"SELECT 1 FROM {self.schema}.log WHERE name = %s FOR UPDATE"
            holder.execute(statement, (self._name,))
            yield
            with contextlib.suppress(psycopg.OperationalError):
                holder.rollback()

    def waiting(self) -> list[int]:
        """Return the server's processes that wait within a write."""
        return self._pids(f"wait_event_type = 'Lock' AND query LIKE '%{self.schema}.{_COMMIT}%'")

    def terminate_waiting(self) -> list[int]:
        """End the server's processes that wait within a write; return which."""
        pids = self.waiting()
        self._terminate(pids)
        return pids

    # The server.

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Have the server take no entry, as where its disk is full."""
        self._run(
            f"CREATE FUNCTION {self.schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION 'no space left' USING ERRCODE = '53100'; END $$; "
            f"CREATE TRIGGER full_disk BEFORE INSERT ON {self.schema}.entry "
            f"FOR EACH ROW EXECUTE FUNCTION {self.schema}.full()"
        )
        yield
        self._run(f"DROP FUNCTION {self.schema}.full() CASCADE")

    def set_clock(self, seconds: float) -> None:
        """Have the server's clock, as the logs of the schema read it, be so much ahead."""
        self._run(
            f"CREATE OR REPLACE FUNCTION {self.schema}.now_1() RETURNS float8 LANGUAGE sql "
            f"AS $$ SELECT extract(epoch FROM clock_timestamp())::float8 + {seconds} $$"
        )

    def grant(self, role: str, *, without: str = "") -> None:
        """Give a role the documented rights in the schema, but for one table or for it."""
        rights = {"schema": f"USAGE ON SCHEMA {self.schema}"}
        for (table,) in self._ask(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", self.schema
        ):
            rights[table] = f"SELECT, INSERT, UPDATE, DELETE ON {self.schema}.{table}"
        for name in rights.keys() - {without}:
            self._run(f"GRANT {rights[name]} TO {role}")

    def _listening(self) -> list[int]:
        ((channel,),) = self._ask("SELECT incarnation FROM {0}.log WHERE log_id = {1}")
        return self._pids(f"query LIKE 'LISTEN%{channel}%'")

    def _pids(self, condition: str) -> list[int]:
        found = self._ask(
            f"SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {condition}"
        )
        return [pid for (pid,) in found]

    def _terminate(self, pids: list[int]) -> None:
        for pid in pids:
            self._ask("SELECT pg_terminate_backend(%s)", pid)

    def _change(self, statement: str, *arguments: object) -> None:
        assert self._run(self._of_log(statement), *arguments).rowcount > 0

    def _ask(self, statement: str, *arguments: object) -> list[Any]:
        return self._run(self._of_log(statement), *arguments).fetchall()

    def _of_log(self, statement: str) -> str:
        number = f"(SELECT log_id FROM {self.schema}.log WHERE name = '{self._name}')"
        return statement.format(self.schema, number)

    def _run(self, statement: str, *arguments: object) -> psycopg.Cursor[Any]:
        with self.server.connect(autocommit=True) as connection:
            cursor: psycopg.Cursor[Any] = connection.execute(statement.encode(), arguments or None)
            return cursor


def _b(name: str) -> bytes:
    return name.encode()
