"""Looking into a SQLite store beside the server that owns it (DESIGN §6)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rifl
from rifl._stores import (
    StoreCorrupt,
    StoreLocked,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
    WrongDatabase,
)
from rifl._stores.opening import open_inspection
from rifl.core._shared.identity import RpcId
from tests.compat.make_store import ANSWER, make
from tests.echo import METHOD, served

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    make(url)
    with closing(open_inspection(url)) as inspection:
        yield inspection


def test_a_store_at_a_glance(store: Any) -> None:
    """Clients, sessions, intents, records and their sizes are counted."""
    summary = store.summary()
    assert summary.owner is None
    assert (summary.clients, summary.open_sessions) == (2, 1)
    assert (summary.intents, summary.records) == (1, 3)
    assert summary.record_bytes == sum(call.record_bytes or 0 for call in store.calls())
    assert summary.oldest_unix_s is not None


def test_clients_and_their_calls(store: Any) -> None:
    """A client shows what it acknowledged and what is kept, a session its name (DESIGN §5)."""
    client, session = store.clients()
    assert (client.client_id, client.first_incomplete, client.completed) == (1, 4, [(5, 5)])
    assert (client.intents, client.records) == (1, 2)
    assert client.registered_at_unix_s <= client.changed_at_unix_s
    assert session.session.name == "orders"
    assert [call.rpc_id for call in store.calls(1)] == [RpcId(1, 4), RpcId(1, 6), RpcId(1, 7)]
    assert [call.rpc_id for call in store.calls(only_intents=True)] == [RpcId(1, 4)]
    assert store.client(99) is None


def test_a_call_and_its_record(store: Any) -> None:
    """A record reads back as it was; an intent has none (DESIGN §4)."""
    key = RpcId(1025, None, b"order-17")
    assert store.record(key) == ANSWER
    assert store.call(key).method == "/bank.Bank/Deposit"
    assert store.call(RpcId(1, 4)).record_bytes is None
    assert store.record(RpcId(1, 4)) is None
    assert store.call(RpcId(1, 5)) is None


def test_a_damaged_record_is_a_typed_error(store: Any, tmp_path: Path) -> None:
    """Which call's it is is said, as of the other stores (DESIGN §6)."""
    with closing(sqlite3.connect(tmp_path / "rifl.db")) as connection, connection:
        connection.execute("UPDATE rifl_call SET record = x'ff' WHERE record IS NOT NULL")
    with pytest.raises(StoreCorrupt, match=r"the record of 1/6 is damaged"):
        store.record(RpcId(1, 6))


def test_paging_returns_every_call_once(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls come page by page, seqs before keys, none twice and none left out."""
    whole = list(store.calls())
    monkeypatch.setattr("rifl._stores.sqlite.inspection._PAGE", 1)
    assert list(store.calls()) == whole
    assert len(whole) == 4


def test_it_works_beside_a_running_server(tmp_path: Path) -> None:
    """Of a store that a server owns, a call in progress shows, and nothing is held up (§6)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    begun, go_on = threading.Event(), threading.Event()

    def slow(request: bytes, context: Any) -> bytes:
        if request == b"slow":
            begun.set()
            go_on.wait(20)
        return request

    with (
        rifl.Deduplicator(url) as dedup,
        served(dedup, slow) as target,
        rifl.connect(target) as channel,
    ):
        call = channel.unary_unary(METHOD)
        future = call.future(b"slow", timeout=20)
        assert begun.wait(20)
        with closing(open_inspection(url)) as store:
            # This process's own: looking must not let go of its lock.
            assert store.summary().owner == f"pid {os.getpid()}"
            (intent,) = store.calls(only_intents=True)
            assert intent.method == METHOD
            assert call(b"quick", timeout=10) == b"quick"
            with pytest.raises(StoreLocked, match=str(os.getpid())):
                store.release(intent.rpc_id)
            go_on.set()
            assert future.result() == b"slow"
            assert not list(store.calls(only_intents=True))


def test_another_process_that_owns_it_is_named(tmp_path: Path) -> None:
    """A release is refused while a server elsewhere owns the store, by its pid."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    make(url)
    script = (
        f"import sys, rifl\nwith rifl.Deduplicator({url!r}):\n"
        "    print('ready', flush=True)\n    sys.stdin.read()"
    )
    with (
        closing(open_inspection(url)) as store,
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert store.summary().owner == f"pid {server.pid}"
        with pytest.raises(StoreLocked, match=str(server.pid)):
            store.release(RpcId(1, 6))
        server.communicate("", timeout=20)
        assert store.summary().owner is None
        assert store.release(RpcId(1, 6))


def test_a_released_call_runs_again(tmp_path: Path) -> None:
    """By hand a record is forgotten, and the identity is new once more."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    make(url)
    with closing(open_inspection(url)) as store:
        assert store.release(RpcId(1, 4))
        assert not store.release(RpcId(1, 4))
        assert store.call(RpcId(1, 4)) is None
        assert store.client(1).intents == 0  # type: ignore[union-attr]


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xffnot a database" * 1000)


def _other(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bank (cents INTEGER)")


def _newer(path: Path) -> None:
    make(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE rifl_meta SET value=999 WHERE name='schema_version'")


def _truncated(path: Path) -> None:
    make(f"sqlite:///{path}")
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_garbage, StoreCorrupt),
        (_other, WrongDatabase),
        (_newer, StoreSchemaTooNew),
        (_truncated, StoreCorrupt),
        (lambda path: path.mkdir(), StoreUnreachable),
        (lambda path: None, StoreUnreachable),
    ],
    ids=["garbage", "another database", "newer schema", "truncated", "directory", "missing"],
)
def test_what_is_no_store_is_a_typed_error(tmp_path: Path, spoil: Any, expected: Any) -> None:
    """Bad files are refused by their class and are neither made nor changed (DESIGN §6)."""
    path = tmp_path / "rifl.db"
    spoil(path)
    before = path.read_bytes() if path.is_file() else None

    def look() -> None:
        with closing(open_inspection(f"sqlite:///{path}")) as store:
            store.summary()
            store.clients()

    with pytest.raises(expected):
        look()
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("url", ["memory:", "sqlite:", "ftp://host", ""])
def test_urls_that_cannot_be_inspected(url: str) -> None:
    """A URL of no store that can be looked into is refused as such."""
    with pytest.raises(UnsupportedStore):
        open_inspection(url)
