"""A lease server over Redis or PostgreSQL, asked by servers with stores of their own (§5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rifl.stores import UnsupportedStore
from rifl.stores.inspection import open_inspection
from tests.helpers.raw import RawClient
from tests.helpers.waiting import until
from tests.server.test_lease_server import METHOD, Leases, Service
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.servers import RedisServer

Start = Callable[..., Any]


@pytest.fixture(scope="module", params=["redis", "postgresql"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Return what makes URLs of stores of their own on a real server."""
    if request.param == "redis":
        redis_server = RedisServer(tmp_path_factory.mktemp("redis"))
        yield lambda name: redis_server.url(namespace=name)
        redis_server.stop()
    else:
        postgres_server = PostgresServer()
        yield lambda name: postgres_server.url(schema=name)
        postgres_server.stop()


@pytest.fixture
def url(store: Any, request: pytest.FixtureRequest) -> str:
    """A store of the test's own."""
    made: str = store(request.node.originalname[-40:])
    return made


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Start a lease server, and two services that ask it."""
    with contextlib.ExitStack() as stack:

        def make(term_s: float = 30.0, servers: int = 1) -> tuple[Any, Service, Service]:
            leases = [Leases(tmp_path, term_s, stack, url) for _ in range(servers)]
            services = []
            for number, name in enumerate(("a", "b")):
                own = f"sqlite:///{tmp_path / name}.db"
                service = Service("sync", own, leases[number % servers].address)
                stack.callback(service.close)
                services.append(service)
            return leases[0], services[0], services[1]

        yield make


@pytest.mark.parametrize("servers", [1, 2])
def test_one_client_id_serves_at_servers_of_other_stores(start: Start, servers: int) -> None:
    """An id is met by both, whichever lease server over the store each asks (DESIGN §5)."""
    _, first, second = start(servers=servers)
    with RawClient(first.address) as client:
        for service, request in ((first, b"x"), (second, b"y")):
            assert service.call(client, request, 1).response == b"did " + request
            again = service.call(client, request, 1, attempt=2)
            assert (again.response, again.outcome) == (b"did " + request, "replayed")
        forged = second.call(client, b"z", 2, token=b"\1" * 20)
        assert forged.refusal == ("PERMISSION_DENIED", "NOT_YOURS", "not-executed")


def test_it_is_killed_and_comes_back(start: Start) -> None:
    """Met clients go on meanwhile, others do afterwards: their rows are in the store (§5)."""
    leases, first, second = start()
    with RawClient(first.address) as met, RawClient(first.address) as later:
        assert first.call(met, b"x", 1).ok
        leases.process.kill()
        assert first.call(later, b"l", 1).refusal == (
            "UNAVAILABLE",
            "STORE_UNAVAILABLE",
            "not-executed",
        )
        assert first.call(met, b"y", 2).ok
        leases.restart()
        until(lambda: first.call(later, b"l", 1).ok, "it is asked again")
        assert second.call(met, b"x", 1).ok
        assert first.effects.count(b"l") == 1


def test_a_client_that_is_over_goes_everywhere(start: Start, url: str) -> None:
    """Released, it is swept there, dropped by both, and refused for ever (DESIGN §5)."""
    _, first, second = start(term_s=0.5)
    with RawClient(first.address) as client:
        for service in (first, second):
            assert service.call(client, b"x", 1).ok
        client.release()
        until(lambda: first.clients == second.clients == 0, "both dropped it", 60)
        for service in (first, second):
            assert service.call(client, b"x", 1, attempt=2).reason == "LEASE_EXPIRED"
            assert service.effects == [b"x"]
        with closing(open_inspection(url)) as store:
            assert store.client(client.client_id) is None


def test_a_client_silent_at_one_server_is_not_dropped_there(start: Start) -> None:
    """Active at one it stays known at the other, which asks without renewing (DESIGN §5)."""
    _, first, second = start(term_s=0.8)
    with RawClient(first.address) as client:
        assert second.call(client, b"x", 1).ok
        began, seq = first.dedup._authority.now(), 0
        while first.dedup._authority.now() < began + 2.5:
            seq += 1
            assert first.call(client, b"y", seq, first=seq).ok
        assert second.call(client, b"x", 1, attempt=2).outcome == "replayed"
        assert second.effects == [b"x"]


def test_sessions_and_origins_are_its_own(start: Start, tmp_path: Path, store: Any) -> None:
    """A name is one id at both; ids of another store are not mixed with these (DESIGN §5)."""
    _, first, second = start(term_s=0.5)
    with RawClient(first.address, grant=False) as one, RawClient(second.address) as two:
        one.open_session("job")
        two.open_session("job")
        assert one.client_id == two.client_id
        assert one.call(METHOD, b"k", key=b"k").ok
        assert one.call(METHOD, b"s", 1).reason == "BAD_HEADER"
        assert two.close_session("job").ok
        until(lambda: one.call(METHOD, b"n", key=b"n").reason == "SESSION_CLOSED", "noticed", 60)
    first.close()
    with contextlib.ExitStack() as stack:
        another = Leases(tmp_path, 30.0, stack, store("another"))
        with pytest.raises(UnsupportedStore, match="another"):
            Service("sync", f"sqlite:///{tmp_path / 'a'}.db", another.address)
