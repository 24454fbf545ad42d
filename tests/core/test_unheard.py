"""Runs that no caller waits for: which are cancelled, and how many there may be (DESIGN §4)."""

from __future__ import annotations

import pytest

from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.unheard import cancelled_at, may_be_cancelled, tried_until
from rifl.core._shared.call import Call
from tests.core.test_serving import COMMITTED, attempt_of, policy_of


def test_only_what_may_run_again_is_cancelled() -> None:
    """Not a plain method, nor one whose policy says so."""
    kinds = {kind: may_be_cancelled(MethodPolicy(kind=kind.value)) for kind in Kind}
    assert kinds == {Kind.PLAIN: False, Kind.IDEMPOTENT: True, Kind.ATOMIC: True}
    assert not may_be_cancelled(MethodPolicy(kind="idempotent", cancel_unheard=False))


@pytest.mark.parametrize(
    ("tried", "attempt_s", "remaining_s", "until"),
    [
        (0.0, 0.0, 0.0, 10.0),
        (0.0, 0.0, 5.0, 10.0),
        (15.0, 2.0, 0.0, 15.0),
        (15.0, 2.0, None, 15.0),
        # The client's clock has come to the deadline a moment earlier.
        (15.0, 2.0, 0.15, 15.0),
        (15.0, 0.1, 0.04, 15.0),
        # It cancelled: it does not try again.
        (15.0, 2.0, 1.0, 10.0),
        # The deadline was the call's: its client cut the attempt off, maybe.
        (15.0, 6.0, 5.0, 15.0),
        (15.0, 5.9, 5.0, 15.0),
        (9.0, 2.0, 0.0, 10.0),
    ],
)
def test_a_call_is_tried_as_long_as_its_header_says(
    tried: float, attempt_s: float, remaining_s: float | None, until: float
) -> None:
    """If its attempt ended at its deadline; at 10."""
    call = Call(7, b"", 1)
    call.tried_until, call.attempt_s, call.try_ms = tried, attempt_s, 6000
    assert tried_until(call, remaining_s, 10.0) == until


def test_no_run_is_cancelled_that_commits_or_is_waited_for() -> None:
    """What was begun to be committed is never cut off."""
    attempt = attempt_of(policy_of(Kind.ATOMIC))
    assert cancelled_at(attempt, 3.0) == 3.0
    attempt.duplicates = 1
    assert cancelled_at(attempt, 3.0) is None
    attempt.duplicates = 0
    attempt.recorded = COMMITTED
    assert cancelled_at(attempt, 3.0) is None
    attempt.recorded = None
    attempt.committing = True
    assert cancelled_at(attempt, 3.0) is None
