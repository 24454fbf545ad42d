"""Groups' logs as text files, one of each store, and back: a format that is kept.

``python -m tests.compat.group_logs`` writes them. Until the first release is tagged, run it
whenever the format changes; after that, each format keeps the files of its first release.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from chaos.etcd_cluster import EtcdCluster
from curp.log._commits import GroupLog
from curp.log._creation import LOG_ID_KEY
from curp.log._opening import open_engine, open_new
from curp.log._values import LogEntry, NewLog, NewLogEntry
from sharedlog._engines.etcd.calls import TXN, put, scan
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.postgres.schema import script
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

__all__ = ["GROUP", "LOG_ID", "SCHEMA", "STORES", "check", "file_of", "load_etcd"]
__all__ += ["load_postgres", "load_redis", "load_sqlite"]

GROUP, LOG_ID, SCHEMA = "bank", 0x4BB1CCA5B3D2A0F1, "curp_compat"
_ENTRIES = [
    *(NewLogEntry(b"%d" % number, ("t",)) for number in range(1, 6)),
    NewLogEntry(bytes(range(256)), ("ü", "t")),
    NewLogEntry(b""),
]
_CHUNKS = [b"one", b"", b"two" * 10]


def fill(engine: GroupLog) -> None:
    """Write a little of everything, under number 1, which is given back."""
    number = engine.take_leadership("r1", "127.0.0.1:1", term_s=60.0)
    tail = engine.append(
        _ENTRIES[:5],
        configuration=number,
        expected_tail=0,
        append_id=bytes(range(16)),
        metadata={"k": b"v\x00"},
    )
    engine.append(
        _ENTRIES[5:], configuration=number, expected_tail=tail, append_id=bytes(range(16, 32))
    )
    engine.save_snapshot(3, _CHUNKS, configuration=number)
    engine.trim(2, configuration=number)
    engine.end_leadership(number)


def check(engine: GroupLog) -> None:
    """Fail unless all is there that ``fill`` wrote."""
    kept = [LogEntry(lsn, *entry) for lsn, entry in enumerate(_ENTRIES, 1)][2:]
    assert (engine.first(), engine.tail()) == (3, 7)
    assert engine.read(2) == kept
    assert engine.read(2, tag="ü") == [kept[3]]
    metadata = {"k": b"v\x00", LOG_ID_KEY: LOG_ID.to_bytes(8)}
    assert {**engine.all_metadata(), **metadata} == engine.all_metadata()
    snapshot = engine.load_snapshot()
    assert snapshot is not None
    assert (snapshot.lsn, list(snapshot.chunks)) == (3, _CHUNKS)
    leader = engine.leadership()
    assert leader is not None
    assert leader.expires_in_s <= 0


def _make(url: str) -> None:
    new = NewLog({LOG_ID_KEY: LOG_ID.to_bytes(8)})
    with closing(open_new(url, new)) as engine:
        fill(engine)


# SQLite.


def _sqlite() -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.db"
        _make(f"sqlite:///{path}?group={GROUP}")
        with closing(sqlite3.connect(path)) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def load_sqlite(path: Path, text: str) -> None:
    """Write the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)


# Redis.


def _redis() -> str:
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(Path(directory))
        try:
            _make(server.url(group=GROUP))
            with server.client() as client:
                return json.dumps(_keys(client), indent=1) + "\n"
        finally:
            server.stop()


def _keys(client: Any) -> dict[str, Any]:
    prefix, found = f"curp:{{{GROUP}}}:", {}
    for key in sorted(client.scan_iter(f"{prefix}*")):
        kind = client.type(key).decode()
        if kind == "hash":
            value: Any = {k.hex(): v.hex() for k, v in sorted(client.hgetall(key).items())}
        elif kind == "zset":
            value = {k.hex(): score for k, score in client.zrange(key, 0, -1, withscores=True)}
        else:
            # Fields in their order.
            reply = client.execute_command("XRANGE", key, "-", "+", NEVER_DECODE=True)
            rows = reply if isinstance(reply, list) else list(reply)
            value = {row[0].decode(): [part.hex() for part in _flat(row[1])] for row in rows}
        found[key.decode().removeprefix(prefix)] = {kind: value}
    return found


def _flat(fields: Any) -> list[bytes]:
    return (
        [part for pair in fields.items() for part in pair] if isinstance(fields, dict) else fields
    )


def load_redis(client: Any, text: str, group: str) -> None:
    """Write the keys, of another group's name."""
    for name, typed in json.loads(text).items():
        key = f"curp:{{{group}}}:{name}"
        for kind, value in typed.items():
            if kind == "hash":
                fields = {bytes.fromhex(k): bytes.fromhex(v) for k, v in value.items()}
                client.hset(key, mapping=fields)
            elif kind == "zset":
                client.zadd(key, {bytes.fromhex(k): score for k, score in value.items()})
            else:
                for place, parts in value.items():
                    client.execute_command("XADD", key, place, *map(bytes.fromhex, parts))


# PostgreSQL.


def _postgres() -> str:
    server = PostgresServer()
    try:
        _make(server.url(group=GROUP, schema=SCHEMA))
        lines = [script(SCHEMA)]
        with server.connect() as connection:
            tables = connection.execute(
                "SELECT relname::text FROM pg_class WHERE relkind = 'r' "
                "AND relnamespace = %s::regnamespace ORDER BY 1",
                (SCHEMA,),
            ).fetchall()
            for (table,) in tables:
                lines += _rows(connection, f"{SCHEMA}.{table}")
        # It was written on another server, which an operator would have to accept.
        lines.append(f"UPDATE {SCHEMA}.log SET history = '';")  # noqa: S608 - names of ours
        return "\n".join(lines) + "\n"
    finally:
        server.stop()


def _rows(connection: psycopg.Connection[Any], table: str) -> list[str]:
    columns = [
        name
        for (name,) in connection.execute(
            "SELECT attname::text FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
            "AND attrelid = %s::regclass ORDER BY attnum",
            (table,),
        )
    ]
    quoted = ", ".join(f"quote_nullable({name}::text)" for name in columns)
    rows = connection.execute(f"SELECT {quoted} FROM {table}".encode())  # noqa: S608
    into = f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE"
    return [
        f"DELETE FROM {table};",  # noqa: S608 - names of ours
        *(f"{into}\nVALUES ({', '.join(row)});" for row in rows),
    ]


def load_postgres(connection: psycopg.Connection[Any], text: str) -> None:
    """Carry the SQL out where there is no schema of its name."""
    connection.execute(text.encode())


# etcd.


def _etcd() -> str:
    with tempfile.TemporaryDirectory() as directory, EtcdCluster(Path(directory)) as cluster:
        url = cluster.url(group=GROUP)
        _make(url)
        with closing(open_engine(url, read_only=True)) as engine:
            client = engine._engine._log.client  # type: ignore[attr-defined]  # a GroupLog's
            first = f"curp/{quote(GROUP)}/".encode()
            asked = pb.TxnRequest(success=[scan(first, first[:-1] + b"0", 0)])
            kvs = client.call(TXN, asked, again=True).responses[0].range.kvs
            found = {kv.key.removeprefix(first).hex(): kv.value.hex() for kv in kvs}
            return json.dumps(found, indent=1) + "\n"


def load_etcd(client: Any, text: str, group: str, cluster: int) -> None:
    """Write the keys, of another group's name, as if they had been made in that cluster."""
    puts = []
    for name, value in json.loads(text).items():
        key, held = bytes.fromhex(name), bytes.fromhex(value)
        if key == b"id":
            held = json.dumps({**json.loads(held), "cluster": cluster}).encode()
        puts.append(put(f"curp/{quote(group)}/".encode() + key, held))
    client.call(TXN, pb.TxnRequest(success=puts), again=True)


STORES: dict[str, Callable[[], str]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
    "etcd": _etcd,
}


def file_of(store: str) -> Path:
    """Return the file of the log in that store."""
    ending = "sql" if store in ("sqlite", "postgres") else "json"
    return Path(__file__).with_name(f"group_{store}.{ending}")


def main() -> None:
    """Write all files."""
    for store, make_text in STORES.items():
        file_of(store).write_text(make_text())
        sys.stdout.write(f"{file_of(store)}\n")


if __name__ == "__main__":
    main()
