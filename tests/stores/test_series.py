"""Numbered sessions over shared stores, as over those of one server (DESIGN §8)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lease_server import SessionClosed, SessionPolicy, SharedAuthority, open_authority
from rifl._stores import open_lease_storage
from tests.helpers.waiting import until

_NUMBERS = itertools.count()
_TERM_S = 0.2
_REFUSED_S = 1000.0
_POLICY = SessionPolicy(
    default_retention_s=1000.0,
    refuse_for_s=_REFUSED_S,
    max_open_per_peer=20,
    max_open=20,
    max_names_per_peer=20,
    max_names=20,
)


class Clock:
    """Wall-clock seconds that pass when told to."""

    def __init__(self) -> None:
        self.at = 1e6

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    """The wall clock of all servers."""
    return Clock()


@pytest.fixture(params=["redis", "postgresql", "mariadb"])
def make(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Callable[..., SharedAuthority]]:
    """Make any number of servers' authorities over one store."""
    name = f"series{next(_NUMBERS)}"
    if request.param == "redis":
        url = request.getfixturevalue("shared_redis").url(namespace=name, beat_s=0.05)
    elif request.param == "mariadb":
        url = request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_", beat_s=0.1)
    else:
        url = request.getfixturevalue("shared_postgres").url(schema=name, beat_s=0.1)
    opened = []

    def one(refused_s: float | None = None) -> SharedAuthority:
        storage = open_lease_storage(url)
        opened.append(storage)
        authority = open_authority(
            storage,
            term_s=_TERM_S,
            wall_clock=time.time if refused_s else clock,
            session_policy=replace(_POLICY, refuse_for_s=refused_s or _REFUSED_S),
        )
        assert isinstance(authority, SharedAuthority)
        return authority

    yield one
    for storage in opened:
        storage.close()


def _sweeps_until(authority: SharedAuthority, done: Callable[[], bool], what: str) -> None:
    def swept() -> bool:
        authority.expire()
        return done()

    until(swept, what)


def _refused(authority: SharedAuthority, name: str) -> bool:
    try:
        authority.open_session(name)
    except SessionClosed:
        return True
    return False


def test_closing_a_number_closes_all_below_on_every_server(
    make: Callable[[], SharedAuthority],
) -> None:
    """Lower sessions end with it, lower names never opened are refused (DESIGN §8)."""
    one, two = make(), make()
    low, mid, high = (one.open_session(f"q#{number}").client_id for number in (1, 3, 5))
    others = [one.open_session(name).client_id for name in ("r#2", "q", "q#01", "#1", "a#q#2")]
    foreign = one.open_session("q#2", peer=b"other").client_id
    assert two.close_session("q#3") == mid
    assert [one.renew(each) for each in (low, mid, high)] == [False, False, True]
    assert all(one.renew(each) for each in (*others, foreign))
    for number in range(4):
        assert _refused(one, f"q#{number}")
        two.close_session(f"q#{number}")  # again, and of those never opened: nothing happens
    assert one.open_session("q#5").client_id == high
    assert one.open_session("q#4").created
    with pytest.raises(SessionClosed):
        one.close_session("q#6")
    with pytest.raises(SessionClosed):
        one.close_session("s#0")


def test_a_series_of_any_length_holds_few_names(
    make: Callable[[], SharedAuthority], clock: Clock
) -> None:
    """A stream may open and close sessions for years; its past stays closed (DESIGN §8)."""
    authority = make()
    storage = authority._storage
    for number in range(60):
        authority.open_session(f"q#{number}")
        if number:
            authority.close_session(f"q#{number - 1}")
        if number % 10 == 9:
            clock.at += 700.0
            if number > 10:
                clock.at += _REFUSED_S
            # Room for the next ten is the proof: at most twenty names are held.
            _sweeps_until(authority, lambda: len(storage.load_sessions()) <= 5, "a sweep")
    for number in (0, 1, 30, 57, 58):
        assert _refused(authority, f"q#{number}")
    authority.close_session("q#3")
    assert authority.open_session("q#59").created is False


def test_a_series_out_of_use_is_forgotten(make: Callable[..., SharedAuthority]) -> None:
    """The end of a series is kept while one of its sessions is open, and then as long as
    any closed name (DESIGN §5, §8)."""
    refused_s = 0.3
    authority = make(refused_s)
    storage = authority._storage
    for number in (0, 1):
        in_use = authority.open_session(f"q#{number}").client_id
    authority.close_session("q#0")
    long_after = time.monotonic() + 4 * refused_s

    def kept_long_enough() -> bool:
        assert authority.renew(in_use)
        return time.monotonic() > long_after

    _sweeps_until(authority, kept_long_enough, "what a closed name is kept")
    assert _refused(authority, "q#0")
    authority.close_session("q#1")
    _sweeps_until(authority, lambda: not storage.load_sessions(), "the end of the series")
    assert authority.open_session("q#0").created
