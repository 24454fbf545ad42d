"""Reads under a lease: DESIGN §7, invariant 10."""

from __future__ import annotations

import pytest

from curp._core.read_lease import LeaseLength, ReadLease, Renew, keep_lease
from curp._core.steps import Pause

TERM_S = 1.0


def test_it_counts_from_when_the_renewal_was_sent_less_a_margin() -> None:
    """Shorter than the engine's lease however long the reply took (invariant 10)."""
    lease = ReadLease(2.0, drift=0.25)
    assert not lease.valid(0.0)
    lease.renewed(10.0)
    assert lease.valid(11.4)
    assert not lease.valid(11.5)


def test_a_late_reply_to_an_older_renewal_shortens_nothing() -> None:
    """Renewals may be answered in another order."""
    lease = ReadLease(2.0, drift=0.5)
    lease.renewed(10.0)
    lease.renewed(9.0)
    assert lease.valid(10.9)
    lease.end()
    assert not lease.valid(10.0)


def test_it_is_over_when_the_engine_may_give_it_to_another() -> None:
    """Later than the last read, counted from the same moment (DESIGN §7)."""
    lease = ReadLease(2.0, drift=0.25)
    assert lease.over(0.0)
    lease.renewed(10.0)
    assert not lease.valid(11.9)
    assert not lease.over(11.9)
    assert lease.over(12.0)
    lease.renewed(10.5)
    assert not lease.over(12.0)
    lease.end()
    assert lease.over(10.0)


@pytest.mark.parametrize(("term_s", "drift"), [(0.0, 0.1), (float("inf"), 0.1), (1.0, 0.0), (1, 1)])
def test_a_lease_without_a_margin_is_refused(term_s: float, drift: float) -> None:
    """Clocks drift: a lease as long as the engine's would be no lease."""
    with pytest.raises(ValueError, match=r"term_s|drift"):
        ReadLease(term_s, drift=drift)


def test_a_longer_lease_is_no_longer_read_by() -> None:
    """A renewal that was sent before and comes late ends it sooner (7.10)."""
    lease = ReadLease(2.0, drift=0.25)
    lease.renewed(10.0, 5.0)
    assert lease.valid(11.4)
    assert not lease.valid(11.5)
    # Where calls had better go is another matter.
    assert not lease.over(14.9)
    assert lease.over(15.0)
    lease.renewed(12.0, 2.0)
    assert lease.valid(13.4)
    assert not lease.over(14.9)


def test_a_lease_is_a_term_where_that_is_enough() -> None:
    """A leader that died is missed for no longer than before: a quarter of a term is no matter."""
    length = LeaseLength(TERM_S)
    assert (length.asked_s, length.every_s, length.first_pause_s) == (TERM_S, 0.25, 0.25)
    length.took(0.25)
    assert (length.asked_s, length.first_pause_s) == (TERM_S, 0.0)


def test_a_lease_is_longer_while_the_engine_is_slow() -> None:
    """By what it took last, within a bound, and no longer once it is fast again."""
    length = LeaseLength(TERM_S)
    length.took(0.5)
    assert (length.asked_s, length.every_s, length.first_pause_s) == (1.75, 0.25, 0.0)
    length.took(60.0)
    assert length.asked_s == 8 * TERM_S
    length.took(0.01)
    assert length.asked_s == TERM_S


class _SlowLog:
    """A log whose commits take so long, one after the other.

    What a commit says of the lease is judged when it is begun; others see it once it has ended.
    """

    def __init__(self, commit_s: float) -> None:
        self.now = 0.0
        self._commit_s = commit_s
        self._ends = 0.0
        # How often another one would have been granted the number in between.
        self.lost = 0

    def put(self, term_s: float, behind: float = 0.0) -> None:
        """Have a lease, behind so much of an append that is under way."""
        judged = self.now + behind * self._commit_s
        self.lost += judged > self._ends
        self.now = judged + self._commit_s
        self._ends = judged + term_s


def _kept(log: _SlowLog, renewals: int, *, behind: float) -> None:
    """Take the lead, and keep it; each other renewal is ``behind`` something."""
    length, lease = LeaseLength(TERM_S), ReadLease(TERM_S, drift=0.1)
    sent_at, asked_s = log.now, length.asked_s
    log.put(asked_s)
    length.took(log.now - sent_at)
    lease.renewed(sent_at, asked_s)
    rule = keep_lease(lease, length, lambda: log.now, lambda: False)
    step, count = next(rule), 0
    while count < renewals:
        if isinstance(step, Pause):
            log.now += step.seconds
        elif isinstance(step, Renew):
            log.put(step.term_s, behind * (count % 2))
            count += 1
        step = rule.send(False)


@pytest.mark.parametrize("commit_s", [0.001, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_leader_that_lives_keeps_its_lease_on_a_slow_log(commit_s: float) -> None:
    """Each other renewal waits behind an append that has just begun (7.10).

    Else others take the lead, and whoever lost it before it served comes back, and so on.
    """
    log = _SlowLog(commit_s)
    _kept(log, 100, behind=1.0)
    assert log.lost == 0


@pytest.mark.parametrize("commit_s", [1.1, 1.5, 2.0])
def test_a_lease_that_was_over_when_it_was_seen_is_kept_from_then_on(commit_s: float) -> None:
    """On a log whose commits take longer than a term, if nobody was faster (7.10)."""
    log = _SlowLog(commit_s)
    _kept(log, 100, behind=1.0)
    assert log.lost == 1
