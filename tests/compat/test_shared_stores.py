"""Shared stores that an earlier build left go on where they stopped (DESIGN §6)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from lease_server import Secret, make_token
from rifl._grpc.status import DETAILS_KEY as STATUS_DETAILS_KEY
from rifl._stores import open_lease_storage
from rifl._stores.opening import open_inspection
from rifl._wire.labels import OUTCOME_KEY, read_refusal
from rifl.core._shared.identity import RpcId
from rifl.v1 import rifl_pb2
from tests.compat.dumping import load_mariadb, load_postgres, load_redis
from tests.compat.make_store import ANSWER, CURRENT, NAMESPACE, REFUSAL, REQUEST
from tests.echo import METHOD, served
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

HERE = Path(__file__).parent
FIXTURES = [HERE / name for name in CURRENT if name.startswith(("redis", "postgres", "maria"))]
OPTIONS = {"beat_s": 0.1, "dead_after_s": 0.6}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=FIXTURES, ids=lambda file: file.stem)
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store as an earlier build left it."""
    text, number = request.param.read_text(), next(_NUMBERS)
    if request.param.suffix == ".json":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        with redis_server.client() as client:
            load_redis(client, text, f"n{number}")
        return redis_server.url(namespace=f"n{number}", **OPTIONS)
    if request.param.stem == "mariadb":
        mariadb = request.getfixturevalue("shared_mariadb")
        with mariadb.connect() as maria:
            maria.cursor().execute(f"CREATE OR REPLACE DATABASE compat{number}")
            maria.select_db(f"compat{number}")
            load_mariadb(maria, text)
        return str(mariadb.url(**OPTIONS)).replace("/rifl?", f"/compat{number}?")
    postgres_server: PostgresServer = request.getfixturevalue("postgres_server")
    with postgres_server.connect(autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE n{number}".encode())
    where = postgres_server.url().replace("/postgres", f"/n{number}")
    load_postgres(where, text)
    return where + "?" + "&".join(f"{name}={value}" for name, value in OPTIONS.items())


def test_there_is_a_fixture_of_what_this_release_writes() -> None:
    """No layout is released without a store of it to read (DESIGN §6)."""
    assert set(CURRENT) <= {file.name for file in HERE.iterdir()}
    assert len(FIXTURES) == 3
    assert all(file.stat().st_size < 100_000 for file in FIXTURES)


class _Client:
    """A client of the build that wrote the store, with the tokens it was given."""

    def __init__(self, secret: Secret, channel: grpc.Channel) -> None:
        self._secret = secret
        self._method: Any = channel.unary_unary(METHOD)

    def call(self, client_id: int, **identity: Any) -> tuple[Any, dict[str, Any]]:
        header = rifl_pb2.CallHeader(
            client_id=client_id, token=make_token(self._secret, client_id), attempt=2, **identity
        )
        return self.send(("rifl-bin", header.SerializeToString()))

    def send(self, entry: tuple[str, Any]) -> tuple[Any, dict[str, Any]]:
        try:
            answer, call = self._method.with_call(REQUEST, metadata=[entry], timeout=20)
        except grpc.RpcError as error:
            return error, dict(error.trailing_metadata())  # type: ignore[attr-defined]
        return answer, dict(call.trailing_metadata())


def _reason(trailing: dict[str, Any]) -> str:
    refusal = read_refusal([(STATUS_DETAILS_KEY, trailing[STATUS_DETAILS_KEY])])
    assert refusal is not None
    return refusal[0]


def test_calls_that_were_recorded_are_answered_as_they_were(url: str) -> None:
    """Retries after an upgrade get the recorded answer, error, unknown or stale (DESIGN §4)."""
    with closing(open_lease_storage(url)) as storage:  # type: ignore[type-var]
        secret = storage.secrets()[0]
    with (
        rifl.Deduplicator(url, keys_from="anyone") as dedup,
        served(dedup) as target,
        grpc.insecure_channel(target) as channel,
    ):
        client = _Client(secret, channel)
        replays = [
            client.call(1, seq=6, first_incomplete=4),
            client.call(1025, key=b"order-17"),
            client.send(("idempotency-key", "invoice-1")),
        ]
        for answer, trailing in replays:
            assert (answer, trailing[OUTCOME_KEY]) == (ANSWER.response, "replayed")
            assert trailing["x-last-bin"] == b"\x00\xff"
        error, _ = client.call(1, seq=7, first_incomplete=4)
        assert (error.code().value[0], error.details()) == (REFUSAL.code, REFUSAL.details)
        reasons = [_reason(client.call(1, seq=seq, first_incomplete=1)[1]) for seq in (4, 5)]
        assert reasons == ["OUTCOME_UNKNOWN", "STALE_RPC"]
        answer, _ = client.call(1, seq=8, first_incomplete=4)
        assert answer == REQUEST, "and new calls are taken"
        with rifl.connect(target) as newer:
            newer.unary_unary(METHOD)(b"y", timeout=20)
            assert (newer.session.client_id or 0) > 1025, "no id is granted twice"


def test_two_replicas_of_this_release_serve_it(url: str) -> None:
    """What one records the other replays, beside what an earlier build left (DESIGN §6)."""
    with closing(open_lease_storage(url)) as storage:  # type: ignore[type-var]
        secret = storage.secrets()[0]
    with (
        rifl.Deduplicator(url) as one,
        rifl.Deduplicator(url) as two,
        served(one) as first,
        served(two) as second,
        grpc.insecure_channel(first) as to_first,
        grpc.insecure_channel(second) as to_second,
    ):
        assert _Client(secret, to_first).call(1, seq=8, first_incomplete=6)[0] == REQUEST
        for seq, response in ((8, REQUEST), (6, ANSWER.response)):
            answer, trailing = _Client(secret, to_second).call(1, seq=seq, first_incomplete=6)
            assert (answer, trailing[OUTCOME_KEY]) == (response, "replayed")


def test_a_store_that_was_left_can_be_looked_into(url: str) -> None:
    """Nothing is brought up to date for that, and nothing is hidden (DESIGN §6)."""
    with closing(open_inspection(url)) as store:
        before = store.summary()
        assert (before.clients, before.intents, before.records) == (3, 1, 4)
        assert [str(call.rpc_id) for call in store.calls(1)] == ["1/4", "1/6", "1/7"]
        for rpc_id in (RpcId(1, 6), RpcId(NAMESPACE, None, b"invoice-1")):
            assert store.record(rpc_id) == ANSWER
        assert store.release(RpcId(1, 6))
        assert store.summary().schema_version == before.schema_version
