"""The finality of one attempt's answer at a group (CURP §3.2.1; DESIGN §7: 1, 9, 13)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from _rifl_ground.refusals import Outcome
from curp._core.group_call import AttemptStep, GroupCall, LeaderAnswer, SyncVerdict
from curp._core.witness_table import WitnessVerdict
from rifl.core._shared.errors import LeaseExpired

ACCEPTED, CONFLICT = WitnessVerdict.ACCEPTED, WitnessVerdict.CONFLICT
EXECUTED = LeaderAnswer(Outcome.EXECUTED)
REFUSED = LeaderAnswer(Outcome.NOT_EXECUTED, reason="DRAINING")


def test_all_witnesses_and_the_leader_make_one_round_trip() -> None:
    """Invariant 1: with every witness's word the answer is final at once (CURP §3.2.1)."""
    call = GroupCall(2)
    assert call.witness_answered(ACCEPTED) is AttemptStep.WAIT
    assert call.leader_answered(EXECUTED) is AttemptStep.WAIT
    assert call.witness_answered(ACCEPTED) is AttemptStep.FINAL
    assert (call.fast, call.refresh) == (True, False)


@pytest.mark.parametrize("verdict", [*WitnessVerdict, None])
def test_one_refusal_makes_it_two(verdict: WitnessVerdict | None) -> None:
    """A conflict, a full or lost witness, another number: the leader has to sync (1)."""
    if verdict is ACCEPTED:
        return
    call = GroupCall(2)
    assert call.witness_answered(verdict) is AttemptStep.WAIT
    assert call.leader_answered(EXECUTED) is AttemptStep.SYNC
    assert call.witness_answered(ACCEPTED) is AttemptStep.WAIT
    assert call.patience_over() is AttemptStep.WAIT
    assert call.sync_answered(SyncVerdict.SYNCED) is AttemptStep.FINAL
    assert not call.fast
    stale = (WitnessVerdict.OTHER_CONFIGURATION, WitnessVerdict.FROZEN)
    assert call.refresh is (verdict in stale)


def test_a_synced_answer_needs_no_witness() -> None:
    """Invariant 1: what is in the log is final, errors and refusals of the handler too."""
    for outcome in Outcome:
        call = GroupCall(1)
        assert call.leader_answered(LeaderAnswer(outcome, synced=True)) is AttemptStep.FINAL
        assert not call.fast


def test_a_duplicates_answer_is_judged_anew() -> None:
    """Invariant 9: a replayed answer of an unsynced operation is not final by itself."""
    call = GroupCall(1)
    assert call.leader_answered(LeaderAnswer(Outcome.REPLAYED)) is AttemptStep.WAIT
    assert call.witness_answered(CONFLICT) is AttemptStep.SYNC
    assert call.sync_answered(SyncVerdict.SYNCED) is AttemptStep.FINAL


@pytest.mark.parametrize("verdict", [SyncVerdict.NOT_KNOWN, SyncVerdict.OTHER_CONFIGURATION, None])
def test_an_answer_that_may_be_lost_is_asked_for_again(verdict: SyncVerdict | None) -> None:
    """Invariant 9: another leader does not vouch for it; the same identity goes there."""
    call = GroupCall(1)
    call.witness_answered(CONFLICT)
    call.leader_answered(EXECUTED)
    assert call.sync_answered(verdict) is AttemptStep.AGAIN
    assert call.refresh


def test_patience_ends() -> None:
    """A witness that says nothing costs a sync, not the call (DESIGN §7, client path)."""
    call = GroupCall(2)
    assert call.patience_over() is AttemptStep.WAIT
    call.witness_answered(ACCEPTED)
    assert call.leader_answered(EXECUTED) is AttemptStep.WAIT
    assert call.patience_over() is AttemptStep.SYNC
    assert call.sync_answered(SyncVerdict.SYNCED) is AttemptStep.FINAL


@pytest.mark.parametrize(
    ("verdicts", "step"),
    [
        ([], AttemptStep.UNKNOWN),
        ([ACCEPTED], AttemptStep.UNKNOWN),
        ([CONFLICT], AttemptStep.UNKNOWN),
        ([CONFLICT, ACCEPTED], AttemptStep.UNKNOWN),
        ([CONFLICT, None], AttemptStep.UNKNOWN),
        ([CONFLICT, CONFLICT], AttemptStep.FINAL),
    ],
)
def test_a_call_that_a_witness_may_hold_is_never_told_not_executed(
    verdicts: list[WitnessVerdict | None], step: AttemptStep
) -> None:
    """Invariant 13: a new leader may run it yet."""
    call = GroupCall(2)
    for verdict in verdicts:
        call.witness_answered(verdict)
    assert call.leader_answered(REFUSED) is step


def test_an_expired_lease_is_no_reason_for_a_second_identity() -> None:
    """Invariant 13: the next leader may know the client, and run what the witness holds."""
    expired = LeaderAnswer(Outcome.UNKNOWN, reason=LeaseExpired.reason, first=True)
    assert GroupCall(1).leader_answered(expired) is AttemptStep.AGAIN
    assert GroupCall(1).leader_answered(expired._replace(first=False)) is AttemptStep.FINAL
    assert GroupCall(1).leader_answered(expired._replace(synced=True)) is AttemptStep.FINAL
    refused = GroupCall(1)
    refused.witness_answered(CONFLICT)
    assert refused.leader_answered(expired) is AttemptStep.FINAL


def test_what_the_transport_says_is_passed_on() -> None:
    """An error without a label leaves the outcome open already (DESIGN §3)."""
    call = GroupCall(1)
    call.witness_answered(ACCEPTED)
    assert call.leader_answered(LeaderAnswer(None)) is AttemptStep.FINAL


_LEADER = [
    LeaderAnswer(outcome, synced, reason, first)
    for outcome in (*Outcome, None)
    for synced in (False, True)
    for reason in ("", LeaseExpired.reason)
    for first in (False, True)
]
_WITNESS = [*WitnessVerdict, None, "silent"]


def courses() -> Iterator[tuple[LeaderAnswer, tuple[object, ...], int, SyncVerdict | None]]:
    """Every leader's answer with every two witnesses' words, in every order."""
    yield from itertools.product(
        _LEADER, itertools.product(_WITNESS, repeat=2), range(3), (*SyncVerdict, None)
    )


def test_no_order_of_events_makes_an_unsafe_answer_final() -> None:
    """Invariants 1 and 13 over all answers of a leader and two witnesses, in all orders."""
    for answer, words, place, sync in courses():
        call = GroupCall(2)
        step, synced, said = AttemptStep.WAIT, answer.synced, []
        for at in range(3):
            if at == place:
                step = call.leader_answered(answer)
            if step is not AttemptStep.WAIT:
                break
            if at < 2 and words[at] != "silent":
                said.append(words[at])
                step = call.witness_answered(words[at])  # type: ignore[arg-type]
        if step is AttemptStep.WAIT:
            step = call.patience_over()
        if step is AttemptStep.SYNC:
            synced = sync is SyncVerdict.SYNCED
            step = call.sync_answered(sync)
        assert step in (AttemptStep.FINAL, AttemptStep.UNKNOWN, AttemptStep.AGAIN)
        if step is not AttemptStep.FINAL:
            continue
        if answer.outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
            assert synced or said == [ACCEPTED, ACCEPTED]
            assert call.fast is (not synced)
        elif answer.outcome is Outcome.NOT_EXECUTED:
            may_hold = len(said) < 2 or ACCEPTED in said or None in said
            assert synced or not may_hold
