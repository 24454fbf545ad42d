"""Succession, the rules of who tries to take over: DESIGN §7, invariant 10."""

from __future__ import annotations

import pytest

from curp._core.succession import FollowerStanding, Succession
from curp.log._values import Leadership

TERM_S = 2.0


def _succession() -> Succession:
    return Succession("r1", "r1/abc", term_s=TERM_S)


def _lease(expires_in_s: float, replica: str = "r2/xyz") -> Leadership:
    return Leadership(5, replica, f"{replica}:1", expires_in_s)


def _nobody() -> str:
    return ""


def _unread() -> str:
    raise AssertionError("the engine is asked for nothing")


def test_while_a_lease_runs_nobody_tries() -> None:
    """Also by the one that holds it from an earlier life; the engine is asked for no more."""
    succession = _succession()
    for replica in ("r2/xyz", "r1/abc"):
        assert succession.look(_lease(0.1, replica), _unread, 0.0) is FollowerStanding.LED


@pytest.mark.parametrize("leadership", [None, _lease(0.0), _lease(-5.0)])
def test_when_it_is_over_whoever_looks_tries(leadership: Leadership | None) -> None:
    """The engine says who gets the number."""
    assert _succession().look(leadership, _nobody, 0.0) is FollowerStanding.TAKE


def test_calls_are_sent_to_whoever_leads_and_not_to_oneself() -> None:
    """A lease of this replica's own that still runs leads nobody anywhere."""
    succession = _succession()
    assert succession.leader(_lease(1.0)) == "r2/xyz:1"
    assert succession.leader(_lease(1.0, "r1/abc")) == ""
    assert succession.leader(_lease(0.0)) == ""
    assert succession.leader(None) == ""


def test_who_handed_over_lets_others_try_first() -> None:
    """For some terms; then it tries, since nobody else may be there."""
    succession = _succession()
    succession.let_others_try(10.0)
    assert succession.look(None, _unread, 10.0) is FollowerStanding.WAIT
    assert succession.look(None, _unread, 10.0 + 2 * TERM_S) is FollowerStanding.WAIT
    assert succession.look(None, _nobody, 10.0 + 3 * TERM_S) is FollowerStanding.TAKE


def test_who_gave_a_recovery_up_holds_off_while_others_try() -> None:
    """Three terms from the last time, whoever led since; nobody else waits for it (5, 7.10)."""
    cut_off, other = _succession(), Succession("r2", "r2/xyz", term_s=TERM_S)
    cut_off.let_others_try(5.0)
    cut_off.let_others_try(10.0)
    over = 10.0 + 3 * TERM_S
    assert cut_off.look(None, _unread, 10.0) is FollowerStanding.WAIT
    assert other.look(None, _nobody, 10.0) is FollowerStanding.TAKE
    assert cut_off.look(_lease(0.5), _unread, 11.0) is FollowerStanding.LED
    assert cut_off.look(_lease(0.0), _unread, over - 0.1) is FollowerStanding.WAIT
    assert cut_off.look(_lease(0.0), _nobody, over) is FollowerStanding.TAKE


def test_one_that_was_asked_for_has_a_term_s_time() -> None:
    """Others wait for it that long, and it does not; then anybody tries."""
    succession = _succession()
    over = _lease(-TERM_S / 2)
    assert succession.look(over, lambda: "r3", 0.0) is FollowerStanding.WAIT
    assert succession.look(over, lambda: "r1", 0.0) is FollowerStanding.TAKE
    assert succession.look(_lease(-TERM_S - 0.1), lambda: "r3", 0.0) is FollowerStanding.TAKE
    assert succession.look(None, lambda: "r3", 0.0) is FollowerStanding.TAKE


def test_who_is_behind_the_log_catches_up_first() -> None:
    """Another may have caught up; but nobody is waited for longer than some terms (7.10)."""
    succession = _succession()
    assert succession.look(_lease(0.1), _unread, 9.0, behind=True) is FollowerStanding.LED
    assert succession.look(None, _unread, 10.0, behind=True) is FollowerStanding.WAIT
    assert succession.look(None, _nobody, 10.5) is FollowerStanding.TAKE
    assert succession.look(None, _unread, 10.0 + 2 * TERM_S, behind=True) is FollowerStanding.WAIT
    assert succession.look(None, _nobody, 10.0 + 3 * TERM_S, behind=True) is FollowerStanding.TAKE
    # Counted anew from when somebody led.
    assert succession.look(_lease(0.1), _unread, 20.0, behind=True) is FollowerStanding.LED
    assert succession.look(None, _unread, 20.1, behind=True) is FollowerStanding.WAIT
