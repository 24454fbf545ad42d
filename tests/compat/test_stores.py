"""A SQLite store of this schema goes on where it stopped, and a next schema follows (DESIGN §6)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from lease_server import Secret, make_token
from rifl._grpc.status import DETAILS_KEY as STATUS_DETAILS_KEY
from rifl._stores import StoreCorrupt, StoreSchemaTooNew
from rifl._stores.opening import open_inspection
from rifl._stores.sqlite import schema
from rifl._wire.labels import OUTCOME_KEY, read_refusal
from rifl.v1 import rifl_pb2
from tests.compat.make_store import ANSWER, REFUSAL, REQUEST
from tests.echo import METHOD, served

FIXTURE = Path(__file__).with_name("sqlite.sql")
# Made up: no release has a second schema.
_NEXT = "ALTER TABLE rifl_client ADD COLUMN note TEXT NOT NULL DEFAULT 'none'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "rifl.db"
    with closing(sqlite3.connect(made)) as connection:
        connection.executescript(FIXTURE.read_text())
    return made


class _Client:
    """A client of the server that wrote the store, with the tokens it was given."""

    def __init__(self, path: Path, channel: grpc.Channel) -> None:
        with closing(sqlite3.connect(path)) as connection:
            secret = Secret(*connection.execute("SELECT * FROM rifl_secret").fetchone())
        self._secret = secret
        self._method: Any = channel.unary_unary(METHOD)

    def call(self, client_id: int, **identity: Any) -> tuple[Any, dict[str, Any]]:
        header = rifl_pb2.CallHeader(
            client_id=client_id, token=make_token(self._secret, client_id), attempt=2, **identity
        )
        metadata = [("rifl-bin", header.SerializeToString())]
        try:
            answer, call = self._method.with_call(REQUEST, metadata=metadata, timeout=10)
        except grpc.RpcError as error:
            return error, dict(error.trailing_metadata())  # type: ignore[attr-defined]
        return answer, dict(call.trailing_metadata())


def _columns(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        columns: dict[str, list[Any]] = {
            table: connection.execute(f"PRAGMA table_info({table})").fetchall()
            for (table,) in tables
        }
        others = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql <> ''"
        )
        return columns | {name: [sql] for name, sql in others}


def _version(path: Path) -> int:
    with closing(open_inspection(f"sqlite:///{path}")) as store:
        return store.summary().schema_version


def test_the_fixture_has_the_tables_of_a_new_store(path: Path, tmp_path: Path) -> None:
    """A schema that changes has its fixture remade (DESIGN §6)."""
    with rifl.Deduplicator(f"sqlite:///{tmp_path}/new.db"):
        pass
    assert _columns(path) == _columns(tmp_path / "new.db")
    assert _version(path) == schema.SCHEMA_VERSION


def test_calls_of_before_are_answered_as_they_were(path: Path) -> None:
    """Retries after a restart get the recorded answer, error, unknown or stale (DESIGN §4)."""
    with (
        rifl.Deduplicator(f"sqlite:///{path}") as dedup,
        served(dedup) as target,
        grpc.insecure_channel(target) as channel,
    ):
        client = _Client(path, channel)
        answer, trailing = client.call(1, seq=6, first_incomplete=4)
        assert (answer, trailing[OUTCOME_KEY]) == (ANSWER.response, "replayed")
        assert trailing["x-last-bin"] == b"\x00\xff"
        error, trailing = client.call(1, seq=7, first_incomplete=4)
        assert (error.code().value[0], error.details()) == (REFUSAL.code, REFUSAL.details)
        answer, trailing = client.call(1025, key=b"order-17")
        assert (answer, trailing[OUTCOME_KEY]) == (ANSWER.response, "replayed")
        reasons = []
        for seq in (4, 5):
            _, trailing = client.call(1, seq=seq, first_incomplete=1)
            refusal = read_refusal([(STATUS_DETAILS_KEY, trailing[STATUS_DETAILS_KEY])])
            assert refusal is not None
            reasons.append(refusal[0])
        assert reasons == ["OUTCOME_UNKNOWN", "STALE_RPC"]
        answer, _ = client.call(1, seq=8, first_incomplete=4)
        assert answer == REQUEST, "and new calls are taken"
        with rifl.connect(target) as newer:
            newer.unary_unary(METHOD)(b"y", timeout=10)
            assert (newer.session.client_id or 0) > 1025, "no id is granted twice"


def test_a_store_that_was_left_can_be_looked_into(path: Path) -> None:
    """An inspection reads every row, and changes none (DESIGN §6)."""
    with closing(open_inspection(f"sqlite:///{path}")) as store:
        calls = list(store.calls())
        assert [str(call.rpc_id) for call in calls[:3]] == ["1/4", "1/6", "1/7"]
        assert [call.record_bytes is None for call in calls] == [True, False, False, False]
        assert all(call.changed_at_unix_s > 0 for call in calls)
        assert store.record(calls[1].rpc_id) == ANSWER
        assert store.client(1) is not None


def test_a_next_schema_brings_a_store_to_it_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release with a new schema migrates a store as it opens it; an older one refuses it (§6)."""
    with monkeypatch.context() as next_release:
        next_release.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        next_release.setitem(schema._MIGRATIONS, schema.SCHEMA_VERSION - 1, (_NEXT,))
        # The second time there is nothing to do, and the column would be there already.
        for _ in range(2):
            with (
                rifl.Deduplicator(f"sqlite:///{path}") as dedup,
                served(dedup) as target,
                grpc.insecure_channel(target) as channel,
            ):
                answer, _trailing = _Client(path, channel).call(1, seq=6, first_incomplete=4)
                assert answer == ANSWER.response
    with pytest.raises(StoreSchemaTooNew):
        rifl.Deduplicator(f"sqlite:///{path}")
    with pytest.raises(StoreSchemaTooNew):
        open_inspection(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT DISTINCT note FROM rifl_client").fetchall() == [("none",)]


def test_a_migration_is_one_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails half-way leaves the store at its version, unchanged (DESIGN §6)."""
    before = _columns(path)
    with monkeypatch.context() as next_release:
        next_release.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
        failing = (_NEXT, "UPDATE no_such_table SET note=1")
        next_release.setitem(schema._MIGRATIONS, schema.SCHEMA_VERSION - 1, failing)
        with pytest.raises(StoreCorrupt):
            rifl.Deduplicator(f"sqlite:///{path}")
    assert _columns(path) == before
    assert _version(path) == schema.SCHEMA_VERSION
