"""Clients of several servers over one store: each call goes to the next of them (DESIGN §5)."""

from __future__ import annotations

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from rifl import Deduplicator
from rifl.core._calling import one_store
from tests.client.conftest import Caller
from tests.helpers.servers import generic
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS = itertools.count()
CLIENTS, CALLS = 20, 6
PLAIN = "/test.Service/Plain"


class Fleet:
    """Servers over one store, each on a port of its own, and what each has run."""

    def __init__(self, url: str, count: int) -> None:
        self.url = url
        self.ran: Counter[int] = Counter()
        self._stacks = [ExitStack() for _ in range(count)]
        self.targets: list[str] = ["127.0.0.1:0"] * count
        for at in range(count):
            self.start(at)

    def start(self, at: int, url: str = "") -> None:
        """Start a server, where it was before; over another store if its URL is given."""

        def run(request: bytes, context: Any) -> bytes:
            self.ran[at] += 1
            return request

        stack, pool = self._stacks[at], ThreadPoolExecutor(8)
        dedup = stack.enter_context(
            Deduplicator(url or self.url, methods={"/test.Service/Echo": "plain"})
        )
        server = grpc.server(pool, interceptors=[dedup.interceptor()])
        server.add_generic_rpc_handlers((generic("test.Service", {"Echo": run, "Plain": run}),))
        dedup.add_to_server(server)
        self.targets[at] = f"127.0.0.1:{server.add_insecure_port(self.targets[at])}"
        server.start()
        stack.callback(pool.shutdown)
        stack.callback(lambda: server.stop(None).wait())

    def stop(self, at: int) -> None:
        self._stacks[at].close()

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store of its own."""
    name = f"turns{next(_NUMBERS)}"
    if request.param == "redis":
        made: str = request.getfixturevalue("shared_redis").url(namespace=name)
    elif request.param == "postgresql":
        made = request.getfixturevalue("shared_postgres").url(schema=name, max_connections=6)
    else:
        made = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_", max_connections=6)
    return made


@pytest.fixture
def fleet(url: str) -> Iterator[Fleet]:
    found = Fleet(url, 3)
    yield found
    found.close()


def uses(caller: Caller, count: int) -> bool:
    return len(caller.channel._inner.router.targets.one_store.used) == count


def reach(caller: Caller, count: int) -> None:
    """Call until so many targets take the calls."""

    def made() -> bool:
        caller.call(b"", timeout=30)
        return uses(caller, count)

    until(made, f"{count} targets take calls")


def ran(fleet: Fleet, callers: list[Caller], method: str = "/test.Service/Echo") -> list[int]:
    """Have all clients make their calls; return how many ran at each server."""
    fleet.ran.clear()

    def call(caller: Caller) -> None:
        for _ in range(CALLS):
            caller.call(b"x", method, timeout=60)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, callers))
    return [fleet.ran[at] for at in range(3)]


@pytest.mark.parametrize(
    ("url", "kind"),
    [("redis", "sync"), ("redis", "aio"), ("postgresql", "sync"), ("mariadb", "aio")],
    indirect=["url"],
)
def test_twenty_clients_use_three_servers_evenly(
    fleet: Fleet, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after one was stopped, and came back."""
    monkeypatch.setattr(one_store, "_PAUSE_S", 0.1)
    monkeypatch.setattr(one_store, "_LONGEST_PAUSE_S", 0.5)
    with ExitStack() as stack:
        callers = []
        for _ in range(CLIENTS):
            callers.append(Caller(kind, fleet.targets))
            stack.callback(callers[-1].close)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(reach, count=3), callers))
            even = CLIENTS * CALLS / 3
            assert all(abs(each - even) <= even / 10 for each in ran(fleet, callers))
            assert all(abs(each - even) <= even / 10 for each in ran(fleet, callers, PLAIN))
            fleet.stop(0)
            found = ran(fleet, callers)
            assert found[0] == 0
            assert sum(found) == CLIENTS * CALLS
            fleet.start(0)
            list(pool.map(partial(reach, count=3), callers))
            assert all(abs(each - even) <= even / 10 for each in ran(fleet, callers))
        assert len({each.session.client_id for each in callers}) == CLIENTS
