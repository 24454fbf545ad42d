"""Stores that were restored from a backup, or copied (DESIGN §3, §5)."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl
from lease_server._storage import GRANTS_PER_RESTORE, RANDOM_BITS
from rifl._cli import ExitCode, main
from rifl._stores import StoreLost
from rifl.core._serving.policy import Kind
from tests.helpers.raw import RawClient, Reply, header
from tests.helpers.servers import generic, serve
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

METHOD = "/restored.Service/Do"
MISMATCH = ("FAILED_PRECONDITION", "STORE_MISMATCH", "unknown")
EXPIRED = ("FAILED_PRECONDITION", "LEASE_EXPIRED", "unknown")


class Running:
    """A server over a store; what ran is in ``effects``."""

    def __init__(self, url: str, **options: Any) -> None:
        self.effects: list[bytes] = []
        self._stack = contextlib.ExitStack()
        self.dedup = rifl.Deduplicator(url, keys_from="anyone", sessions_from="anyone", **options)
        self._stack.callback(self.dedup.close)
        served = serve("sync", [generic("restored.Service", {"Do": self._do})], dedup=self.dedup)
        self.address = self._stack.enter_context(served).address

    def _do(self, request: bytes, context: Any) -> bytes:
        self.effects.append(request)
        return b"did " + request

    def client(self) -> RawClient:
        return self._stack.enter_context(RawClient(self.address))

    def ask(self, owner: RawClient, request: bytes, seq: int, **more: Any) -> Reply:
        """Call as a client whose id may be of before."""
        raw = header(owner.client_id, owner.token, seq, **more)
        with RawClient(self.address, grant=False) as caller:
            return caller.call(METHOD, request, raw=raw)

    def key(self, owner: RawClient, key: bytes) -> Reply:
        raw = header(owner.client_id, owner.token, key=key)
        with RawClient(self.address, grant=False) as caller:
            return caller.call(METHOD, key, raw=raw)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


@pytest.fixture(params=["sqlite", "redis", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, servers: dict[str, Any]) -> Iterator[str]:
    """A store of the test's own, whose replicas die quickly."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    if request.param == "mariadb":
        prefix = f"{request.node.originalname.removeprefix('test_')[:30]}_"
        shared = request.getfixturevalue("shared_mariadb")
        yield shared.url(prefix=prefix, beat_s=0.05, dead_after_s=0.5)
        return
    name = request.node.originalname.removeprefix("test_")[:40]
    if request.param not in servers:
        made: Any = RedisServer(servers["folder"]) if request.param == "redis" else PostgresServer()
        servers[request.param] = made
    options = {"beat_s": 0.05, "dead_after_s": 0.5}
    if request.param == "redis":
        yield servers["redis"].url(namespace=name, **options)
    else:
        yield servers["postgresql"].url(schema=name, **options)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The servers of shared stores, started when one is asked for."""
    started: dict[str, Any] = {"folder": tmp_path_factory.mktemp("redis")}
    yield started
    for name in started.keys() - {"folder"}:
        started[name].stop()


def _restore(url: str, *more: str) -> int:
    return main(["restored", url, *more])


def _ids(path: Path, count: int) -> set[int]:
    with rifl.Deduplicator(f"sqlite:///{path}") as dedup:
        return {dedup._authority.grant().client_id for _ in range(count)}


def test_a_copy_of_a_store_grants_ids_of_its_own(tmp_path: Path) -> None:
    """The original and its copy count alike, and draw each id (DESIGN §5)."""
    original, copy = tmp_path / "original.db", tmp_path / "copy.db"
    _ids(original, 1)
    shutil.copy(original, copy)
    one, other = _ids(original, 200), _ids(copy, 200)
    assert not one & other
    assert {each >> RANDOM_BITS for each in one} == {each >> RANDOM_BITS for each in other}
    assert 0 < min(one | other) < max(one | other) < 2**63


def test_everybody_of_before_is_over(url: str) -> None:
    """Clients are refused, sessions closed, plain keys stay; later ids lie above (DESIGN §5)."""
    with Running(url) as before:
        known, session = before.client(), before.client()
        session.open_session("job")
        assert before.ask(known, b"x", 1).ok
        assert before.key(session, b"k").ok
        assert known.call(METHOD, b"p", bare=True, metadata=(("idempotency-key", "plain"),)).ok
        highest = before.client().client_id
    assert _restore(url) == ExitCode.USAGE
    for _ in range(2):
        # Done again, as after a crash half-way, it is harmless.
        assert _restore(url, "--yes") == ExitCode.DONE
    with Running(url) as after:
        for attempt in (1, 2):
            refused = after.ask(known, b"x", 1, attempt=attempt, store=known.store)
            assert refused.refusal == MISMATCH
            # Its own record may be there until it is swept.
            mine = after.ask(known, b"x", 1, attempt=attempt)
            assert mine.outcome == "replayed" or mine.refusal == EXPIRED
            assert after.ask(known, b"y", 2, attempt=attempt).refusal == EXPIRED
        mine = after.key(session, b"k")
        assert mine.outcome == "replayed" or mine.reason == "SESSION_CLOSED"
        assert after.key(session, b"n").reason == "SESSION_CLOSED"
        fresh = after.client()
        assert fresh.try_session("job").reason == "SESSION_CLOSED"
        again = fresh.call(METHOD, b"p", bare=True, metadata=(("idempotency-key", "plain"),))
        assert again.outcome == "replayed"
        assert fresh.store != known.store
        assert (fresh.client_id - highest) >> RANDOM_BITS >= GRANTS_PER_RESTORE
        assert after.ask(fresh, b"x", 1, store=fresh.store).ok
        assert after.effects == [b"x"]


def test_it_is_refused_while_a_server_uses_the_store(url: str) -> None:
    """A server would go on with what it knows: it is to be stopped first (DESIGN §5)."""
    with Running(url) as running:
        client = running.client()
        assert _restore(url, "--yes") == ExitCode.OWNED
        assert running.ask(client, b"x", 1).ok


def test_a_sqlite_store_goes_on_with_its_backup(tmp_path: Path) -> None:
    """What was answered after the backup is refused, never run again or answered (§3, §5)."""
    path, backup = tmp_path / "store.db", tmp_path / "backup.db"
    url = f"sqlite:///{path}"
    with Running(url) as before:
        early = before.client()
        assert before.ask(early, b"early", 1).ok
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(backup)) as target,
        ):
            source.backup(target)
        late = before.client()
        assert before.ask(late, b"late", 1).ok
        assert before.ask(early, b"early", 2).ok
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(backup, path)
    with pytest.raises(StoreLost, match="rifl restored"):
        Running(url)
    assert _restore(url, "--yes") == ExitCode.DONE
    with Running(url) as after:
        others = [after.client() for _ in range(20)]
        assert not {late.client_id, early.client_id} & {each.client_id for each in others}
        for other in others:
            assert after.ask(other, b"late", 1, seed=7, store=other.store).ok
        for owner in (late, early):
            assert after.ask(owner, b"late", 1, attempt=2, store=owner.store).refusal == MISMATCH
            assert after.ask(owner, b"late", 1, attempt=2).refusal == EXPIRED
        assert len(after.effects) == len(others)


def test_the_databases_that_atomic_methods_name_go_on_with_it(tmp_path: Path) -> None:
    """They belong to the store under its new id, and hold nobody of before (DESIGN §5, §6)."""
    url, named = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "named.db"
    policy = rifl.MethodPolicy(kind=Kind.ATOMIC, database=f"sqlite:///{named}")
    methods = {"/restored.Service/Do": policy}
    with rifl.Deduplicator(url, methods=methods):
        pass
    with contextlib.closing(sqlite3.connect(named)) as connection, connection:
        connection.execute("INSERT INTO rifl_client VALUES (5, 1, x'', 0)")
    assert _restore(url, "--yes") == ExitCode.DONE
    with contextlib.closing(sqlite3.connect(named)) as connection:
        assert connection.execute("SELECT * FROM rifl_client").fetchall() == []
    with rifl.Deduplicator(url, methods=methods):
        pass
