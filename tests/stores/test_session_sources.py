"""One address cannot use up the sessions of all unauthenticated callers, over every store."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lease_server import SessionPolicy, TooManySessions, open_authority
from rifl._stores import open_store

_NUMBERS = itertools.count()


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    name = f"sources{next(_NUMBERS)}"
    if request.param == "redis":
        return str(request.getfixturevalue("shared_redis").url(namespace=name))
    if request.param == "postgresql":
        return str(request.getfixturevalue("shared_postgres").url(schema=name))
    if request.param == "mariadb":
        return str(request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_"))
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"


def fill(authority: Any, source: str, prefix: str, *, closing: bool = False) -> int:
    """Open sessions until that is refused; how many there were room for."""
    for number in range(1000):
        name = f"{prefix}{number}"
        try:
            authority.open_session(name, source=source)
        except TooManySessions:
            return number
        if closing:
            authority.close_session(name)
    return 1000


def opened(store: Any, policy: SessionPolicy) -> Any:
    """Who opens sessions, with the store's."""
    return open_authority(store.leases, session_policy=policy)


def test_open_sessions_are_bounded_for_each_address(url: str) -> None:
    """Others open theirs; a close makes room, and a restart makes none (DESIGN §5, §9)."""
    policy = SessionPolicy(max_open_per_peer=8, max_open=100)
    store = open_store(url)
    try:
        authority = opened(store, policy)
        assert fill(authority, "10.0.0.7", "greedy") == 2
        assert authority.open_session("greedy0", source="10.0.0.7").created is False
        # Opened by another, its place counts where it was opened.
        assert authority.open_session("greedy0", source="10.0.0.8").created is False
        assert fill(authority, "10.0.0.8", "other") == 2
        authority.close_session("greedy0")
        assert fill(authority, "10.0.0.7", "again") == 1
        # With a certificate it is the peer's alone.
        assert authority.open_session("mine", b"peer").created
        authority = opened(store, policy)
        assert fill(authority, "10.0.0.7", "restarted") == 0
        assert fill(authority, "10.0.0.9", "third") == 2
    finally:
        store.close()


def test_names_of_sessions_are_bounded_for_each_address(url: str) -> None:
    """Closed ones too, until they are forgotten: then there is room again (DESIGN §5, §9)."""
    policy = SessionPolicy(max_open_per_peer=4, max_names_per_peer=12, max_names=100, max_open=100)
    store = open_store(url)
    try:
        authority = opened(store, policy)
        assert fill(authority, "10.0.0.7", "greedy", closing=True) == 3
        assert fill(authority, "10.0.0.8", "other", closing=True) == 3
        (row,) = [row for row in store.leases.load_sessions() if row.name == "greedy1"]
        assert row.source == "10.0.0.7"
        store.leases.forget_session(row.client_id)
        authority = opened(store, policy)
        assert fill(authority, "10.0.0.7", "again", closing=True) == 1
    finally:
        store.close()
