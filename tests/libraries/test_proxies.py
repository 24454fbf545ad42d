"""Proxies that repeat failed calls by themselves, before servers that die in the middle of them.

A proxy's copy has the identity and the number of the attempt that it copies: no server can tell
it from that one, and none has to (DESIGN §3).
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rifl
from chaos.redis_server import RedisServer
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import DEADLINE_S
from tests.libraries.proxied_server import SERVICE
from tests.libraries.proxies import PROXIES, proxied

_DEATHS = ("before", "after", "ok", "ok", "ok")
_CALLERS = 4
_EACH = 5


class Servers:
    """Servers that are started again, at the same port, whenever they die."""

    def __init__(self, url: str, count: int, directory: Path) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._stopping = False
        self._current: dict[int, Process] = {}
        self._start: Callable[[int], Process] = lambda port: Process(
            "tests.libraries.proxied_server",
            url,
            str(port),
            str(directory),
            log=directory / f"server.{port}",
        )
        for port in self.ports:
            self._current[port] = self._start(port)
            assert self._current[port].line() == "ready"
        self._keepers = [threading.Thread(target=self._keep, args=(port,)) for port in self.ports]
        for keeper in self._keepers:
            keeper.start()

    def _keep(self, port: int) -> None:
        while not self._stopping:
            server = self._current[port]
            with contextlib.suppress(Exception):
                server.wait()
            if not server.alive and not self._stopping:
                server.close()
                self._current[port] = self._start(port)

    def close(self) -> None:
        self._stopping = True
        for server in self._current.values():
            server.close()
        for keeper in self._keepers:
            keeper.join(DEADLINE_S)
        for server in self._current.values():
            server.close()


@contextlib.contextmanager
def served(kind: str, url: str, count: int, directory: Path) -> Iterator[str]:
    servers = Servers(url, count, directory)
    try:
        with proxied(kind, servers.ports, directory) as address:
            yield address
    finally:
        servers.close()


def ends(address: str, method: str, deaths: tuple[str, ...]) -> dict[str, rifl.CallError | None]:
    """Call from several channels at once, some of the calls deadly; how each call ended.

    The deadly ones begin when each channel's client is in the store: before its first handler
    starts a SQLite store does not know it (DESIGN §5), and a death then is told unknown.
    """
    found: dict[str, rifl.CallError | None] = {}
    known = threading.Barrier(_CALLERS)

    def caller(number: int) -> None:
        with rifl.connect(address) as channel:
            stub = channel.unary_unary(f"/{SERVICE}/{method}")
            first = f"{method}-{number}-first"
            assert stub(f"{first}:ok".encode(), timeout=30) == first.encode()
            found[first] = None
            known.wait(30)
            for at in range(_EACH):
                when = deaths[at % len(deaths)] if number == 0 else "ok"
                name = f"{method}-{number}-{at}-{when}"
                try:
                    assert stub(f"{name}:{when}".encode(), timeout=30) == name.encode()
                    found[name] = None
                except rifl.CallError as error:
                    found[name] = error

    with ThreadPoolExecutor(_CALLERS) as pool:
        for future in [pool.submit(caller, number) for number in range(_CALLERS)]:
            future.result()
    return found


def lines(directory: Path, file: str) -> list[str]:
    return (directory / file).read_text().splitlines()


@pytest.mark.parametrize("kind", PROXIES)
def test_two_servers_of_one_store_behind_a_proxy_that_repeats(kind: str, tmp_path: Path) -> None:
    """A ``plain`` call has one effect or is told unknown; an ``idempotent`` one is answered, and
    runs again only where the server that ran it died (DESIGN §1)."""
    store = RedisServer(tmp_path)
    try:
        url = store.url(namespace="proxied", beat_s=0.05, dead_after_s=0.6)
        with served(kind, url, 2, tmp_path) as address:
            plain = ends(address, "Plain", _DEATHS)
            idempotent = ends(address, "Idempotent", _DEATHS)
    finally:
        store.stop()
    effects = Counter(lines(tmp_path, "effects"))
    assert effects.total() >= _CALLERS * _EACH
    for name, error in plain.items():
        assert effects[name] <= 1, "doubled"
        if error is None:
            assert effects[name] == 1, "lost"
        else:
            assert error.outcome is rifl.Outcome.UNKNOWN, (name, error)
    # Of those that killed a server nobody can say whether they had run.
    for name, error in plain.items():
        if not name.endswith(("ok", "first")):
            assert error is not None
            assert error.reason == "OUTCOME_UNKNOWN"
            assert effects[name] == (1 if name.endswith("after") else 0)
    for name, error in idempotent.items():
        assert error is None, (name, error)
        assert effects[name] >= 1, "lost"
    _copies_are_no_attempts(kind, lines(tmp_path, "arrivals"))


def _copies_are_no_attempts(kind: str, arrivals: list[str]) -> None:
    """No proxy marks its copies as gRPC marks its own retries; Envoy counts, by its own header."""
    for arrival in arrivals:
        _, _, proxys, grpcs = arrival.split()
        assert grpcs == "-"
        assert (proxys != "-") == (kind == "envoy")


@pytest.mark.parametrize("kind", PROXIES)
def test_one_server_that_starts_again_behind_a_proxy_that_repeats(
    kind: str, tmp_path: Path
) -> None:
    """An ``atomic`` call has its effect once, and is answered, whenever the server dies (§1)."""
    database = tmp_path / "store.db"
    deaths = ("before", "after", "committed", "ok", "ok")
    with served(kind, f"sqlite:///{database}", 1, tmp_path) as address:
        found = ends(address, "Atomic", deaths)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        effects: Any = Counter(name for (name,) in connection.execute("SELECT name FROM effect"))
    assert {name: str(error) for name, error in found.items() if error is not None} == {}
    assert effects == dict.fromkeys(found, 1)
