"""Shared stores as text files, and back: what a release wrote, for later ones to read."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from rifl._stores.sql.schema import TABLES

__all__ = [
    *("dump_mariadb", "dump_postgres", "dump_redis"),
    *("load_mariadb", "load_postgres", "load_redis"),
]

_NAMESPACE = "rifl:"
_TABLES = (
    *("meta", "clients", "calls", "key_counts", "sessions", "replicas", "secrets"),
    *("age", "unknown", "losses", "rows"),
)


def dump_redis(client: Any) -> str:
    """Return all keys of the namespace ``rifl`` as JSON, bytes in hexadecimal."""
    found = {}
    for key in sorted(client.scan_iter(f"{_NAMESPACE}*")):
        kind = client.type(key).decode()
        if kind == "hash":
            value: Any = {k.hex(): v.hex() for k, v in sorted(client.hgetall(key).items())}
        elif kind == "zset":
            value = {k.hex(): score for k, score in client.zrange(key, 0, -1, withscores=True)}
        elif kind == "list":
            value = [entry.hex() for entry in client.lrange(key, 0, -1)]
        else:
            value = client.get(key).hex()
        found[key.decode().removeprefix(_NAMESPACE)] = {kind: value}
    return json.dumps(found, indent=1) + "\n"


def load_redis(client: Any, text: str, namespace: str) -> None:
    """Write them again, into another namespace."""
    for name, typed in json.loads(text).items():
        key = f"{namespace}:{name}"
        for kind, value in typed.items():
            if kind == "hash":
                fields = {bytes.fromhex(k): bytes.fromhex(v) for k, v in value.items()}
                client.hset(key, mapping=fields)
            elif kind == "zset":
                client.zadd(key, {bytes.fromhex(k): score for k, score in value.items()})
            elif kind == "list":
                client.rpush(key, *map(bytes.fromhex, value))
            else:
                client.set(key, bytes.fromhex(value))


def dump_postgres(url: str, made: str) -> str:
    """Return ``made``, the SQL of the schema ``rifl``, and behind it the rows of the store."""
    lines = [made]
    with psycopg.connect(url) as connection:
        for table in _TABLES:
            columns = [
                name
                for (name,) in connection.execute(
                    "SELECT attname::text FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
                    "AND attrelid = %s::regclass ORDER BY attnum",
                    (f"rifl.{table}",),
                )
            ]
            quoted = ", ".join(f"quote_nullable({name}::text)" for name in columns)
            lines.append(f"DELETE FROM rifl.{table};")  # noqa: S608 - names of ours
            rows = connection.execute(f"SELECT {quoted} FROM rifl.{table}".encode())  # noqa: S608
            into = f"INSERT INTO rifl.{table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE"
            lines += [f"{into}\nVALUES ({', '.join(row)});" for row in rows]
    return "\n".join(lines) + "\n"


def load_postgres(url: str, text: str) -> None:
    """Carry the SQL out in a database that has no schema ``rifl``."""
    with psycopg.connect(url) as connection:
        connection.execute(text.encode())
        # It was written on another server, which an operator would have to accept.
        connection.execute("DELETE FROM rifl.meta WHERE name = 'history'")


def dump_mariadb(connection: Any) -> str:
    """Return the SQL that makes the tables with the prefix ``rifl_``, and their rows."""
    lines = []
    with connection.cursor() as cursor:
        for table in TABLES:
            name = f"rifl_{table.name}"
            cursor.execute(f"SHOW CREATE TABLE {name}")
            lines.append(f"{cursor.fetchone()[1]};")
            cursor.execute(f"SELECT * FROM {name}")  # noqa: S608 - a name of ours
            for row in sorted(cursor.fetchall(), key=repr):
                values = ", ".join(map(_literal, row))
                lines.append(f"INSERT INTO {name} VALUES ({values});")  # noqa: S608 - ours
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"X'{value.hex()}'" if isinstance(value, bytes) else repr(value)


def load_mariadb(connection: Any, text: str) -> None:
    """Carry the SQL out in a database that has no such tables."""
    with connection.cursor() as cursor:
        for statement in text.split(";\n"):
            if statement:
                cursor.execute(statement)
        # It was written on another server, which an operator would have to accept.
        cursor.execute("DELETE FROM rifl_meta WHERE name = 'history'")
    connection.commit()
