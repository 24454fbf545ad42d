"""Silent witnesses are not waited for again and again (DESIGN §7, client path)."""

from __future__ import annotations

import pytest

from curp._core.silent_witnesses import SilentWitnesses


def test_a_silent_witness_is_suspect_until_it_is_heard() -> None:
    """A call that waited in vain makes it one; its answer, whenever it comes, ends that."""
    suspects = SilentWitnesses()
    assert suspects.may_record(0.0)
    suspects.silent("w", 0.0, 0.05)
    assert not suspects.may_record(0.06)
    suspects.heard("w", 0.07)
    assert suspects.may_record(0.08)
    assert len(suspects) == 0


def test_a_witness_that_others_heard_of_is_not_suspect() -> None:
    """Slow for one call is not silent: it answered another that began no earlier."""
    suspects = SilentWitnesses()
    suspects.heard("w", 1.0)
    suspects.silent("w", 0.9, 1.1)
    assert suspects.may_record(1.1)
    suspects.silent("w", 1.0, 1.1)
    assert suspects.may_record(1.1)
    suspects.silent("w", 1.01, 1.1)
    assert not suspects.may_record(1.1)


def test_one_call_tries_again_and_ever_later() -> None:
    """0.1 s, then twice as long after each call that tried, at most 5 s."""
    suspects = SilentWitnesses()
    tried = []
    suspects.silent("w", 0.0, 0.0)
    for tick in range(30_000):
        now = tick / 1000
        if suspects.may_record(now):
            tried.append(now)
            # Calls under way find it silent, too: that changes nothing.
            suspects.silent("w", now, now)
    assert tried == pytest.approx([0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 11.3, 16.3, 21.3, 26.3], abs=0.02)


def test_all_suspects_are_tried_by_one_call() -> None:
    """A call is recorded on all witnesses or on none (invariant 1)."""
    suspects = SilentWitnesses()
    suspects.silent("v", 0.0, 0.0)
    suspects.silent("w", 0.0, 0.05)
    assert not suspects.may_record(0.1)
    assert suspects.may_record(0.2)
    assert not suspects.may_record(0.2)
    suspects.heard("v", 0.21)
    assert not suspects.may_record(0.22)
    suspects.heard("w", 0.23)
    assert suspects.may_record(0.24)
