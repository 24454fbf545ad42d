"""Numbered sessions close in order and stay closed while the series is in use (DESIGN §8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lease_server import LeaseAuthority, MemoryLeaseStorage, SessionClosed, SessionPolicy
from lease_server._series import numbered
from lease_server._sessions import SessionState

POLICY = SessionPolicy(default_retention_s=1000.0, refuse_for_s=100.0)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.at = 1e6

    def __call__(self) -> float:
        return self.at


def _authority(storage: MemoryLeaseStorage, clock: Clock) -> LeaseAuthority:
    return LeaseAuthority(storage, clock=clock, wall_clock=clock, session_policy=POLICY)


def _swept(authority: LeaseAuthority, clock: Clock, seconds: float) -> list[int]:
    clock.at += seconds
    return authority.expire()


def test_only_a_whole_number_makes_a_name_numbered() -> None:
    """A name has one reading: the series before its last "#", and the number (DESIGN §8)."""
    assert numbered("q#0") == ("q", 0)
    assert numbered("a#1#22") == ("a#1", 22)
    for name in ("q", "q#", "#1", "q#01", "q#-1", "q#1 ", "q#1234567890123456789"):
        assert numbered(name) is None


def test_closing_a_number_closes_all_below_for_good() -> None:
    """Lower sessions end with it, lower names never opened are refused (DESIGN §8)."""
    clock = Clock()
    authority = _authority(MemoryLeaseStorage(), clock)
    low, mid, high = (authority.open_session(f"q#{number}").client_id for number in (1, 3, 5))
    other = authority.open_session("r#2").client_id
    assert authority.close_session("q#3") == mid
    assert authority.expire() == [low, mid]
    assert not authority.alive(low)
    for number in (0, 1, 2, 3):
        with pytest.raises(SessionClosed):
            authority.open_session(f"q#{number}")
        assert authority.close_session(f"q#{number}") in (low, mid)
    assert authority.open_session("q#5").client_id == high
    assert authority.open_session("q#4").created
    assert authority.alive(other)


def test_closing_a_number_nobody_knows_is_refused() -> None:
    """Whether a series is known can be asked without changing anything (DESIGN §8)."""
    authority = _authority(MemoryLeaseStorage(), Clock())
    authority.open_session("q#7")
    for name in ("r#0", "q#6", "q#8"):
        with pytest.raises(SessionClosed):
            authority.close_session(name)
    assert authority.open_session("q#6").created


def test_the_end_of_a_series_is_kept_while_it_is_in_use() -> None:
    """Long after `refuse_for_s` a leftover of a closed number is still refused (DESIGN §8)."""
    clock = Clock()
    storage = MemoryLeaseStorage()
    authority = _authority(storage, clock)
    authority.open_session("q#0")
    for number in range(1, 40):
        used = authority.open_session(f"q#{number}").client_id
        assert authority.renew(used)
        authority.close_session(f"q#{number - 1}")
        _swept(authority, clock, 400.0)
        if number % 10 == 0:  # and across restarts
            authority = _authority(storage, clock)
            assert authority.renew(used)
    assert len(storage.load_sessions()) <= 5
    with pytest.raises(SessionClosed):
        authority.open_session("q#3")
    clock.at += 2000.0
    for _ in range(8):  # the last one expires, then the series is refused for a while
        _swept(authority, clock, 60.0)
    with pytest.raises(SessionClosed):
        authority.close_session("q#38")
    assert storage.load_sessions() == []


def test_a_crash_between_two_closings_reopens_nothing() -> None:
    """Lower sessions are closed first; an open row below a closed one is not alive (§5)."""
    clock = Clock()
    storage = MemoryLeaseStorage()
    authority = _authority(storage, clock)
    low = authority.open_session("q#1").client_id
    high = authority.open_session("q#2").client_id
    rows = {row.client_id: row for row in storage.load_sessions()}
    storage.put_session(replace(rows[high], state=SessionState.CLOSED))
    again = _authority(storage, clock)
    assert not again.alive(low)
    with pytest.raises(SessionClosed):
        again.open_session("q#1")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_no_number_at_or_below_a_closed_one_is_ever_opened(steps: list[tuple[bool, int]]) -> None:
    """Whatever the order of openings, closings, sweeps and restarts (DESIGN §8)."""
    clock = Clock()
    storage = MemoryLeaseStorage()
    authority = _authority(storage, clock)
    authority.open_session("q#6")
    closed = -1
    for at, (opens, number) in enumerate(steps):
        if number == 6 and not opens:
            continue
        try:
            if opens:
                authority.open_session(f"q#{number}")
                assert number > closed
            else:
                authority.close_session(f"q#{number}")
                closed = max(closed, number)
        except SessionClosed:
            pass
        _swept(authority, clock, 300.0)
        authority.open_session("q#6")
        if at % 7 == 6:
            authority = _authority(storage, clock)
