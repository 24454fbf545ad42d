"""Leases of one caller are bounded, over each store, and counted with the store (DESIGN §9)."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import rifl
from lease_server import TooManyClients
from tests.stores.redis.servers import until

_NUMBERS = itertools.count()
_HERE, _THERE = "10.0.0.7", "10.0.0.8"
_SHARED = ("redis", "postgresql", "mariadb")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"shares{next(_NUMBERS)}"
    if request.param == "redis":
        made: str = request.getfixturevalue("shared_redis").url(namespace=name)
    elif request.param == "postgresql":
        made = request.getfixturevalue("shared_postgres").url(schema=name)
    elif request.param == "mariadb":
        made = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_")
    else:
        made = f"sqlite:///{tmp_path / 's.db'}"
    return made


class Servers:
    """Servers over one store, of which one caller may have two leases."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = ExitStack()

    def start(self) -> Any:
        bounds = rifl.Bounds(max_clients_per_caller=2)
        return self._open.enter_context(rifl.Deduplicator(self._url, bounds=bounds))._authority

    def stop(self) -> None:
        self._open.close()


@pytest.fixture
def servers(url: str) -> Iterator[Servers]:
    made = Servers(url)
    yield made
    made.stop()


def refused(authority: Any, source: str = _HERE) -> bool:
    """Whether a caller gets no lease more."""
    try:
        authority.grant(source=source)
    except TooManyClients:
        return True
    return False


@pytest.mark.parametrize("url", _SHARED, indirect=True)
def test_servers_over_one_store_count_together(servers: Servers) -> None:
    """Whichever grants, and whichever drops; a session is no lease of its opener's (§5, §9)."""
    one, two = servers.start(), servers.start()
    first, second = one.grant(source=_HERE), two.grant(source=_HERE)
    for each in (one, two):
        with pytest.raises(TooManyClients, match=f"{_HERE} holds as many .*max_clients_per_caller"):
            each.grant(source=_HERE)
    assert not refused(two, _THERE)
    one.open_session("nightly", source=_HERE)
    assert two.grant(b"peer").client_id
    # Released, and dropped: by a sweep, as what expires is.
    for each, authority in ((first, two), (second, one)):
        authority.release(each.client_id, each.token)
        authority.release(each.client_id, each.token)
    until(lambda: not (one.expire() or refused(one)), "one has room again")
    until(lambda: not (two.expire() or refused(two)), "two has room again")
    assert refused(one)
    assert refused(two)
    servers.stop()
    # Counts are the store's, and not a server's.
    assert refused(servers.start())


@pytest.mark.parametrize("url", _SHARED, indirect=True)
def test_a_grant_that_is_repeated_counts_once(servers: Servers) -> None:
    """Its reply may have been lost, and it is sent again (§6)."""
    authority = servers.start()
    leases, bounds = authority._storage, authority._bounds
    for _ in range(3):
        assert leases.grant(7 << 30, 60.0, bounds, b"one").value == "free"
    assert leases.grant(8 << 30, 60.0, bounds, b"one").value == "free"
    assert leases.grant(9 << 30, 60.0, bounds, b"one").value == "taken"
    for _ in range(2):
        leases.drop_client(7 << 30)
    assert leases.grant(9 << 30, 60.0, bounds, b"one").value == "free"
    assert leases.grant(10 << 30, 60.0, bounds, b"one").value == "taken"


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_grant_that_is_repeated_before_its_commit_counts_once(
    servers: Servers, shared_postgres: Any
) -> None:
    """The connection broke, and what was sent on it is carried out yet (§6)."""
    authority = servers.start()
    leases, bounds = authority._storage, authority._bounds
    schema = leases._backend.schema
    with (
        ThreadPoolExecutor(1) as pool,
        shared_postgres.connect() as first,
        shared_postgres.connect(autocommit=True) as look,
    ):
        first.execute(
            f"SELECT {schema}.grant_1({7 << 30}, 60.0, 1000, 10000, %s, 2)".encode(), (b"one",)
        )
        second = pool.submit(leases.grant, 7 << 30, 60.0, bounds, b"one")
        waiting = b"SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: look.execute(waiting).rowcount > 0, "the second waits for the first")
        first.commit()
        assert second.result(30).value == "free"
    assert leases.grant(8 << 30, 60.0, bounds, b"one").value == "free"
    assert leases.grant(9 << 30, 60.0, bounds, b"one").value == "taken"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_file_knows_whose_leases_are_held(servers: Servers, url: str) -> None:
    """A restart counts on, and what is over leaves nothing behind (§5, §9)."""
    authority = servers.start()
    first, second = (authority.grant(source=_HERE) for _ in range(2))
    servers.stop()
    authority = servers.start()
    assert refused(authority)
    assert not refused(authority, _THERE)
    for each in (first, second):
        authority.release(each.client_id, each.token)
    assert not refused(authority)
    path = url.removeprefix("sqlite:///")

    def kept() -> int:
        with closing(sqlite3.connect(path)) as connection:
            (rows,) = connection.execute("SELECT count(*) FROM rifl_lease").fetchone()
            return int(rows)

    until(lambda: kept() == 2, "those of who is there are kept")
