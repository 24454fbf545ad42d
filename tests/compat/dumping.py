"""Shared stores as text files, and back: what a release wrote, for later ones to read."""

from __future__ import annotations

import json
from typing import Any

import psycopg

__all__ = ["dump_postgres", "dump_redis", "load_postgres", "load_redis"]

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
