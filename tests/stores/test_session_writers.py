"""The writer of a session, over every store: whose calls it takes alone (DESIGN §5)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from lease_server import (
    BadHeader,
    NotYours,
    SessionClosed,
    SessionPolicy,
    SharedAuthority,
    open_authority,
)
from lease_server._sessionbook import OpenedSession
from lease_server._tokens import WRITER_BYTES, writer_of
from rifl._stores import open_store

_NUMBERS = itertools.count()
ONE, TWO, THREE = (letter * WRITER_BYTES for letter in (b"1", b"2", b"3"))


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql", "mariadb"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Make lease servers over one store; those of stores of one server one after the other."""
    name = f"writers{next(_NUMBERS)}"
    url = "memory:"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'store.db'}"
    elif request.param == "redis":
        url = request.getfixturevalue("shared_redis").url(namespace=name)
    elif request.param == "mariadb":
        url = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_")
    elif request.param == "postgresql":
        url = request.getfixturevalue("shared_postgres").url(schema=name)
    store = open_store(url)
    yield lambda: open_authority(store.leases, session_policy=SessionPolicy())
    store.close()


def test_a_session_has_one_writer_who_is_followed_by_name(serve: Callable[[], Any]) -> None:
    """It is taken from the one that is named, from none if none is, and again by its own (§5)."""
    server = serve()

    def taken(writer: bytes, follows: bytes = b"", name: str = "job") -> OpenedSession:
        found: OpenedSession = server.open_session(name, writer=writer, follows=follows)
        assert found.client_id == client_id
        assert bool(found.token) is (found.writer == writer)
        assert writer_of(found.token) in (b"", writer)
        return found

    client_id = server.open_session("job").client_id
    assert taken(ONE).writer == ONE
    # The reply was lost, or another task of the same writer comes.
    assert taken(ONE).writer == taken(ONE, TWO).writer == ONE
    for follows in (b"", THREE):
        assert taken(TWO, follows).writer == ONE
    assert taken(TWO, ONE).writer == taken(TWO, ONE).writer == TWO
    assert taken(ONE).writer == TWO
    # Another server over the store, or one that was started again, knows it.
    server = serve()
    assert taken(ONE).writer == taken(TWO).writer == TWO
    # One that is to write nothing sees no writer, and changes none.
    assert server.open_session("job").writer == b""
    assert taken(ONE).writer == TWO
    with pytest.raises(BadHeader):
        server.open_session("job", writer=b"short")
    server.close_session("job")
    with pytest.raises(SessionClosed):
        server.open_session("job", writer=TWO)


def test_of_many_that_take_a_session_at_once_one_has_it(serve: Callable[[], Any]) -> None:
    """One compare-and-set decides, first from none and then from the one who had it (§5)."""
    servers = [serve()]
    if isinstance(servers[0], SharedAuthority):
        servers.append(serve())
    count = 6
    barrier = Barrier(count)
    servers[0].open_session("job")

    def take(number: int, follows: bytes) -> bytes:
        server = servers[number % len(servers)]
        barrier.wait(60)
        found: OpenedSession = server.open_session(
            "job", writer=bytes([number + 1]) * WRITER_BYTES, follows=follows
        )
        return found.writer

    follows = b""
    with ThreadPoolExecutor(count) as pool:
        for start in (0, 10, 20):
            told = list(pool.map(take, range(start, start + count), [follows] * count, timeout=120))
            assert len(set(told)) == 1
            assert told[0][0] - 1 in range(start, start + count)
            follows = told[0]


def test_tokens_of_a_writer_are_no_others(serve: Callable[[], Any]) -> None:
    """The writer is under the MAC: none makes a token of another's out of its own (§5)."""
    server = serve()
    opened = server.open_session("job", writer=ONE)
    server.check(opened.client_id, opened.token)
    plain = server.open_session("job").token
    for forged in (
        opened.token[:-WRITER_BYTES] + TWO,
        opened.token[:-WRITER_BYTES],
        plain + ONE,
        opened.token + b"\0",
    ):
        with pytest.raises(NotYours):
            server.check(opened.client_id, forged)
