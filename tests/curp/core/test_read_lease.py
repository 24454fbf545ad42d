"""Reads under a lease: DESIGN §7, invariant 10."""

from __future__ import annotations

import pytest

from curp._core.read_lease import ReadLease


def test_it_counts_from_when_the_renewal_was_sent_less_a_margin() -> None:
    """Shorter than the engine's lease however long the reply took (invariant 10)."""
    lease = ReadLease(2.0, drift=0.25)
    assert not lease.valid(0.0)
    lease.renewed(10.0)
    assert lease.valid(11.4)
    assert not lease.valid(11.5)
    assert lease.left_s(11.0) == 0.5


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
