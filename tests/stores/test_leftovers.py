"""Nothing is left of a client or a namespace whose records are gone (DESIGN §4, §6)."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl._server.sweeper import ClientSweeper, sweep
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

_NUMBERS = itertools.count()
METHOD = "/p.S/M"
Left = Callable[[], list[Any]]


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """A store's URL, and what tells of all that is kept of clients there."""
    if request.param == "redis":
        redis_server = RedisServer(tmp_path)

        def keys(_: Any) -> list[Any]:
            with redis_server.client() as client:
                # All others are the store's own, whoever its clients are.
                kept = {b"replicas", b"meta", b"age", b"ids", b"secrets"}
                return [key for key in client.scan_iter() if key.rpartition(b":")[2] not in kept]

        yield redis_server.url(beat_s=0.05), keys
        redis_server.stop()
    elif request.param == "mariadb":
        server = request.getfixturevalue("shared_mariadb")
        prefix = f"{request.node.originalname[-20:]}_"

        def rows_there(_: Any) -> list[Any]:
            tables = ("clients", "calls", "key_changes", "sessions")
            wanted = [f"SELECT client_id FROM {prefix}{table}" for table in tables]  # noqa: S608 - ours
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(" UNION ALL ".join(wanted))
                return list(cursor.fetchall())

        yield server.url(prefix=prefix, beat_s=0.1), rows_there
    elif request.param == "postgresql":
        postgres_server = PostgresServer()

        def rows(_: Any) -> list[Any]:
            with postgres_server.connect() as connection:
                return connection.execute(
                    "SELECT client_id FROM rifl.clients UNION ALL SELECT client_id FROM rifl.calls "
                    "UNION ALL SELECT client_id FROM rifl.key_counts "
                    "UNION ALL SELECT client_id FROM rifl.sessions"
                ).fetchall()

        yield postgres_server.url(beat_s=0.1), rows
        postgres_server.stop()
    elif request.param == "sqlite":
        path = tmp_path / "s.db"

        def found(_: Any) -> list[Any]:
            with sqlite3.connect(path) as connection:
                rows = connection.execute(
                    "SELECT client_id FROM rifl_client UNION ALL SELECT client_id FROM rifl_call "
                    "UNION ALL SELECT client_id FROM rifl_session"
                ).fetchall()
            connection.close()
            return rows

        yield f"sqlite:///{path}", found
    else:
        yield "memory:", lambda dedup: [entry.client_id for entry in dedup._store._table.entries()]


def test_nothing_is_left_of_clients_and_namespaces(
    place: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A released client, an unused session, and keys past their retention leave no row (§4)."""
    url, left = place
    now_s, options = [0.0], {"keys_from": "anyone", "key_retention_s": 0.3, "term_s": 0.6}
    # Nothing ends before the test sweeps, however long a step before that takes.
    monkeypatch.setattr(ClientSweeper, "start", lambda _: None)
    monkeypatch.setattr(ClientSweeper, "stop", lambda _: None)

    def swept() -> Any:
        now_s[0] += 0.1
        sweep(dedup._store, dedup._authority)
        return left(dedup)

    with (
        rifl.Deduplicator(url, **options, clock=lambda: now_s[0]) as dedup,  # type: ignore[arg-type]
        serve("sync", [generic("p.S", {"M": lambda request, _: request})], dedup=dedup) as served,
        RawClient(served.address) as client,
        grpc.insecure_channel(served.address) as channel,
    ):
        for seq in (1, 2, 3):
            assert client.call(METHOD, b"", seq=seq, first=seq).ok
        channel.unary_unary(METHOD)(b"", timeout=20, metadata=(("idempotency-key", "one"),))
        dedup._authority.open_session("unused")
        assert left(dedup)
        assert client.release().ok
        until(lambda: not swept(), "clients, session and namespace are gone")
        assert dedup.statistics()[:3] == (0, 0, 0) or url != "memory:"
