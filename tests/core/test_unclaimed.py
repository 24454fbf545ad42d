"""Runs that a store was not asked about before: which may be, and how they end (DESIGN §4.6)."""

from __future__ import annotations

from typing import Any

import pytest

from rifl.core import (
    CompletionRecord,
    InProgress,
    LeaseExpired,
    Outcome,
    OutcomeUnknown,
    PayloadMismatch,
    RecordPending,
    RiflError,
    SessionClosed,
    StaleRpc,
    Verdict,
    WindowExceeded,
)
from rifl.core._serving.answer import Answer
from rifl.core._serving.client_table import Attempt, Decision
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._serving.serving import execute
from rifl.core._serving.unclaimed import may_run_beside, may_run_unclaimed
from rifl.core._shared.call import Call
from tests.core.test_serving import (
    BUSY,
    COMMITTED,
    FAILED_PRECONDITION,
    RAISED,
    REJECTED,
    UNAVAILABLE,
    UNDONE,
    Script,
    attempt_of,
    drive,
    policy_of,
)

ATOMIC = policy_of(Kind.ATOMIC, UNAVAILABLE)


def first(**more: Any) -> Call:
    """A first attempt, but for what is given."""
    call = Call(7, b"", 1, method="/p.S/M")
    for name, value in more.items():
        setattr(call, name, value)
    return call


def unclaimed(recorded: CompletionRecord | None = None) -> Attempt:
    """A run that began before the store was asked."""
    attempt = attempt_of(ATOMIC)
    attempt.unclaimed, attempt.recorded = True, recorded
    return attempt


@pytest.mark.parametrize(
    ("call", "policy", "may_run", "beside"),
    [
        (first(), ATOMIC, True, False),
        (first(asked=True), ATOMIC, False, False),
        (first(attempt=2), ATOMIC, False, True),
        (first(retried_by_grpc=True), ATOMIC, False, True),
        (first(attempt=2, asked=True), ATOMIC, False, True),
        (first(key=b"k"), ATOMIC, False, False),
        (first(attempt=2, key=b"k"), ATOMIC, False, False),
        (first(streamed=True), ATOMIC, False, False),
        (first(), MethodPolicy(kind="atomic", claim="always"), False, False),
        (first(attempt=2), MethodPolicy(kind="atomic", claim="always"), False, False),
        (first(), MethodPolicy(kind="idempotent"), False, False),
        (first(), MethodPolicy(kind="idempotent", claim="never"), True, False),
        (first(asked=True), MethodPolicy(kind="idempotent", claim="never"), False, False),
        (first(attempt=2), MethodPolicy(kind="idempotent", claim="never"), False, True),
        (first(key=b"k"), MethodPolicy(kind="idempotent", claim="never"), False, False),
        (first(), MethodPolicy(), False, False),
    ],
)
def test_first_attempts_of_what_can_be_undone_run_before_they_are_claimed(
    call: Call, policy: MethodPolicy, may_run: bool, beside: bool
) -> None:
    """Others find out beside whom they run (DESIGN §4, step 6)."""
    assert may_run_unclaimed(call, policy) is may_run
    assert may_run_beside(call, policy) is beside


@pytest.mark.parametrize("result", [UNDONE, REJECTED, BUSY])
def test_whatever_ends_such_a_run_first_asks_what_stands(result: Any) -> None:
    """Another copy's record is the answer, and told as a replay (DESIGN §4, step 6)."""
    store = Script(standing=COMMITTED)
    answer = drive(store, execute(store, unclaimed()), result)
    assert answer == Answer(COMMITTED, Outcome.REPLAYED)
    assert store.asked == ["start", "run", "committed", "adopt"]


def test_its_own_record_is_executed() -> None:
    """Committed, though nobody saw it (DESIGN §4, step 7)."""
    store = Script(standing=COMMITTED)
    answer = drive(store, execute(store, unclaimed(COMMITTED)), UNDONE)
    assert answer == Answer(COMMITTED, Outcome.EXECUTED)


def test_a_commit_that_was_seen_asks_nothing() -> None:
    """The answer leaves after one question to the store, the commit's own (DESIGN §4, step 6)."""
    store, attempt = Script(), unclaimed(COMMITTED)
    attempt.committed = COMMITTED
    store.standing = COMMITTED
    assert drive(store, execute(store, attempt), RAISED) == Answer(COMMITTED, Outcome.EXECUTED)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (LeaseExpired, OutcomeUnknown),
        (SessionClosed, OutcomeUnknown),
        (WindowExceeded, RecordPending),
        (PayloadMismatch, RecordPending),
        (StaleRpc, StaleRpc),
        (RecordPending, RecordPending),
    ],
)
@pytest.mark.parametrize("doubt", ["put into a transaction", "not known to be undone", ""])
def test_a_refusal_says_that_nothing_ran_only_where_that_is_known(
    refusal: type[RiflError], told: type[RiflError], doubt: str
) -> None:
    """What was put into a transaction may have stood, and be gone with its client (DESIGN §3)."""
    store = Script(failing={"committed": refusal("no")})
    attempt = unclaimed(COMMITTED if doubt == "put into a transaction" else None)
    result = RAISED if doubt == "not known to be undone" else UNDONE
    with pytest.raises(told if doubt else refusal):
        drive(store, execute(store, attempt), result)
    # The store has ended the attempt.
    assert store.asked == ["start", "run", "committed"]


def test_a_lost_race_is_served_anew_and_not_run_in_vain_again() -> None:
    """Refused with its commit, or found running elsewhere, the call is decided about (§4.6)."""
    store = Script(
        decisions=[Decision(Verdict.COMPLETED, None, COMMITTED)],
        failing={"committed": InProgress("it runs elsewhere")},
    )
    answer = drive(store, execute(store, unclaimed()), UNDONE)
    assert answer == Answer(COMMITTED, Outcome.REPLAYED)
    assert store.asked == ["start", "run", "committed", "claim"]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("result", [UNDONE, BUSY])
def test_beside_such_a_run_nothing_is_not_executed_without_a_record(
    beside: bool, result: Any
) -> None:
    """It may be suspended, and commit later (DESIGN §4, step 6)."""
    store, attempt = Script(), attempt_of(ATOMIC)
    attempt.beside = beside
    answer = drive(store, execute(store, attempt), result)
    assert answer.outcome is (Outcome.UNKNOWN if beside else Outcome.NOT_EXECUTED)
    # An error that the handler decides is recorded, and final, either way.
    store, attempt = Script(), attempt_of(ATOMIC)
    attempt.beside = beside
    assert drive(store, execute(store, attempt), REJECTED).outcome is Outcome.EXECUTED
    assert [record.code for record in store.kept] == [FAILED_PRECONDITION]
