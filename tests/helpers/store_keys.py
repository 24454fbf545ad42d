"""The keys of a log as its store keeps them, read and changed behind its engine."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sharedlog._core.commit import Commit, Condition
from sharedlog._core.errors import CorruptLog
from sharedlog._engines.checksums import CHECKSUM_BYTES
from sharedlog._engines.engine import Engine
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import TXN, put, scan
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.keys import Keys, after_all
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import LOG

__all__ = ["StoreKeys", "check_changed", "check_swapped"]


class StoreKeys:
    """The keys of one log: a group's, or one of ``sharedlog``'s."""

    def __init__(self, url: str, server: Any) -> None:
        """``server``: where the log is; None of a file."""
        parts = re.match(r"(\w+):.*[?&](log|group)=([^&]*)", url)
        self._url, self._server = url, server
        self._store = url.partition(":")[0]
        self._group = bool(parts and parts[2] == "group")
        self._name = parts[3] if parts else ""

    def read(self) -> dict[str, bytes]:
        """Return what is kept under each key, with its checksum."""
        found = getattr(self, f"_read_{self._store}")()
        return {bytes(key).decode(): bytes(kept) for key, kept in found}

    def write(self, key: str, kept: bytes) -> None:
        """Have a key that is there keep something else."""
        getattr(self, f"_write_{self._store}")(key, kept)

    @property
    def path(self) -> Path:
        """The file of a log in SQLite."""
        return Path(self._url.partition("?")[0].removeprefix("sqlite:///"))

    def _read_sqlite(self) -> Sequence[Any]:
        table = "curp_1_key" if self._group else "sharedlog_key"
        with closing(sqlite3.connect(self.path)) as connection:
            statement = f"SELECT CAST(key AS BLOB), value FROM {table}"  # noqa: S608
            return connection.execute(statement).fetchall()

    def _write_sqlite(self, key: str, kept: bytes) -> None:
        table = "curp_1_key" if self._group else "sharedlog_key"
        with closing(sqlite3.connect(self.path)) as connection, connection:
            statement = f"UPDATE {table} SET value = ? WHERE key = ?"  # noqa: S608
            changed = connection.execute(statement, (kept, key))
            assert changed.rowcount == 1

    @property
    def _hash(self) -> str:
        return f"{'curp' if self._group else 'sharedlog'}:{{{self._name}}}:values"

    def _read_redis(self) -> Sequence[Any]:
        with self._server.client() as client:
            return list(client.hgetall(self._hash).items())

    def _write_redis(self, key: str, kept: bytes) -> None:
        with self._server.client() as client:
            assert client.hset(self._hash, key, kept) == 0

    def _sql(self, statement: str, *arguments: Any) -> Any:
        schema = "curp" if self._group else "sharedlog"
        log = f"log_id = (SELECT log_id FROM {schema}.log WHERE name = '{self._name}')"  # noqa: S608
        with self._server.connect(autocommit=True) as connection:
            return connection.execute(statement.format(f"{schema}.key", log), arguments)

    def _read_postgresql(self) -> Sequence[Any]:
        rows: Sequence[Any] = self._sql("SELECT key, value FROM {} WHERE {}").fetchall()
        return rows

    def _write_postgresql(self, key: str, kept: bytes) -> None:
        changed = self._sql("UPDATE {} SET value = %s WHERE key = %s AND {}", kept, key.encode())
        assert changed.rowcount == 1

    def _etcd(self, step: Callable[[Keys], pb.RequestOp]) -> Any:
        name = quote(self._name, safe="")
        keys = Keys(f"curp/{name}/" if self._group else f"sharedlog/log:{name}/")
        address = EtcdAddress.parse(self._server.url().partition("?")[0], {}, LOG, prefix="")
        with closing(Client(address, LOG)) as client:
            return client.call(TXN, pb.TxnRequest(success=[step(keys)]), again=True)

    def _read_etcd(self) -> Sequence[Any]:
        found = self._etcd(lambda keys: scan(keys.key(""), after_all(keys.key("")), 0))
        return [(kv.key.rpartition(b"/key/")[2], kv.value) for kv in found.responses[0].range.kvs]

    def _write_etcd(self, key: str, kept: bytes) -> None:
        self._etcd(lambda keys: put(keys.key(key), kept))


def check_changed(
    keys: StoreKeys,
    engine: Engine,
    problems: Callable[[], Sequence[str]],
    sensible: Callable[[str, bytes], bytes],
) -> None:
    """Change each key in turn: it is told, and nothing is read of it or decided by it.

    ``sensible``: returns another value that a key could have.
    """
    for key, kept in keys.read().items():
        value = kept[CHECKSUM_BYTES:]
        named = re.escape(f"key {key!r} is damaged")
        other = sensible(key, value)
        assert other != value
        keys.write(key, kept[:CHECKSUM_BYTES] + other)
        for step in (Condition(key, value), Condition(key, None), Condition(key, other)):
            with pytest.raises(CorruptLog, match=named):
                engine.commit(Commit((step,)))
        with pytest.raises(CorruptLog, match=named):
            engine.get((key,))
        with pytest.raises(CorruptLog, match=named):
            engine.scan(key)
        assert [each for each in problems() if re.search(named, each)], key
        keys.write(key, kept)
        assert engine.get((key,)) == {key: value}
    assert not problems()


def check_swapped(keys: StoreKeys, engine: Engine, problems: Callable[[], Sequence[str]]) -> None:
    """Swap what two keys keep, of each two neighbours: both are told."""
    for (one, kept), (other, held) in pairwise(sorted(keys.read().items())):
        keys.write(one, held)
        keys.write(other, kept)
        for key in (one, other):
            with pytest.raises(CorruptLog, match=re.escape(repr(key))):
                engine.get((key,))
        told = " ".join(problems())
        assert all(f"key {key!r} is damaged" in told for key in (one, other)), told
        keys.write(one, kept)
        keys.write(other, held)
    assert not problems()
