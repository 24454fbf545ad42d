"""SQLite stores of earlier schemas go on where they stopped (DESIGN §6)."""

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
from rifl._stores.opening import open_inspection
from rifl._stores.sqlite.schema import SCHEMA_VERSION
from rifl._wire.labels import OUTCOME_KEY, read_refusal
from rifl.core._shared.identity import RpcId
from rifl.v1 import rifl_pb2
from tests.compat.make_store import ANSWER, REFUSAL
from tests.echo import served

FIXTURES = sorted(Path(__file__).parent.glob("schema_*.sql"))
METHOD = "/bank.Bank/Deposit"


@pytest.fixture(params=FIXTURES, ids=lambda file: file.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / "rifl.db"
    with closing(sqlite3.connect(made)) as connection:
        connection.executescript(request.param.read_text())
        # The fixture's calls have no real payload behind their fingerprint.
        connection.execute("UPDATE rifl_call SET fingerprint=NULL")
        connection.commit()
    return made


class _Client:
    """A client of the release that wrote the store, with the tokens it was given."""

    def __init__(self, path: Path, channel: grpc.Channel) -> None:
        with closing(sqlite3.connect(path)) as connection:
            secret = Secret(*connection.execute("SELECT * FROM rifl_secret").fetchone())
        self._secret = secret
        self._method: Any = channel.unary_unary("/test.Echo/Do")

    def call(self, client_id: int, **identity: Any) -> tuple[Any, dict[str, Any]]:
        header = rifl_pb2.CallHeader(
            client_id=client_id, token=make_token(self._secret, client_id), attempt=2, **identity
        )
        metadata = [("rifl-bin", header.SerializeToString())]
        try:
            answer, call = self._method.with_call(b"x", metadata=metadata, timeout=10)
        except grpc.RpcError as error:
            return error, dict(error.trailing_metadata())  # type: ignore[attr-defined]
        return answer, dict(call.trailing_metadata())


def test_there_is_a_fixture_for_every_schema() -> None:
    """No schema version is released without a store of it to read."""
    assert [file.stem for file in FIXTURES] == [
        f"schema_{version}" for version in range(1, SCHEMA_VERSION + 1)
    ]
    assert all(file.stat().st_size < 50_000 for file in FIXTURES)


def test_calls_of_before_are_answered_as_they_were(path: Path) -> None:
    """Retries after an upgrade get the recorded answer, error, unknown or stale (DESIGN §4)."""
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
        assert answer == b"x", "and new calls are taken"
        with rifl.connect(target) as newer:
            newer.unary_unary("/test.Echo/Do")(b"y", timeout=10)
            assert (newer.session.client_id or 0) > 1025, "no id is granted twice"


def test_the_schema_is_brought_up_to_date_once(path: Path) -> None:
    """Opening migrates; rows of before have no times, rows of now do (DESIGN §6)."""
    with closing(open_inspection(f"sqlite:///{path}")) as before:
        had_times = before.call(RpcId(1, 6)).changed_at_unix_s is not None  # type: ignore[union-attr]
        assert len(list(before.calls())) == 4, "an old store can be looked into as it is"
    for _ in range(2):
        with (
            rifl.Deduplicator(f"sqlite:///{path}") as dedup,
            served(dedup) as target,
            grpc.insecure_channel(target) as channel,
        ):
            _Client(path, channel).call(1, seq=8, first_incomplete=4)
    with closing(open_inspection(f"sqlite:///{path}")) as after:
        assert after.summary().schema_version == SCHEMA_VERSION
        old, new = after.call(RpcId(1, 6)), after.call(RpcId(1, 8))
        assert (old is not None and old.changed_at_unix_s is not None) == had_times
        assert new is not None
        assert new.changed_at_unix_s is not None
        assert after.client(1) is not None


def test_a_migrated_store_has_the_tables_of_a_new_one(path: Path, tmp_path: Path) -> None:
    """Whichever way a schema came to be, its columns are the same, in order (DESIGN §6)."""

    def columns(file: Path) -> dict[str, list[Any]]:
        with rifl.Deduplicator(f"sqlite:///{file}"):
            pass
        with closing(sqlite3.connect(file)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            return {
                table: connection.execute(f"PRAGMA table_info({table})").fetchall()
                for (table,) in tables
            }

    assert columns(path) == columns(tmp_path / "new.db")
