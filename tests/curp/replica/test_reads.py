"""Reads at a leader, and its lease: DESIGN §7, invariant 10."""

from __future__ import annotations

import pytest

from curp._core.read_lease import ReadLease
from curp._core.state import GroupState
from curp._replica.waiting import Reads
from rifl._stores.pending import Pending
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.errors import Deposed
from tests.curp.core.groups import AliveLeases, call


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _attempt() -> Attempt:
    state = GroupState()
    state.lead(AliveLeases())
    attempt = state.table.decide(call(1, 1), MethodPolicy(), 0.0).attempt
    assert attempt is not None
    return attempt


def _reads(clock: _Clock) -> Reads:
    reads = Reads(clock)
    reads.lease = ReadLease(1.0, drift=0.1)
    reads.lease.renewed(0.0)
    return reads


def test_the_lease_is_looked_at_when_what_conflicts_is_synced() -> None:
    """Valid when the read was asked for is not enough: it is judged at the end."""
    clock = _Clock()
    reads = _reads(clock)
    ended: list[Attempt] = []
    answers = []
    for now in (0.5, 0.95):
        synced = Pending()
        answers.append(reads.answered(_attempt(), synced, ended.append))
        assert not answers[-1].done
        clock.now = now
        synced.succeed()
    assert [type(answer.error) for answer in answers] == [type(None), Deposed]
    assert len(ended) == 2


def test_a_read_whose_leadership_ended_is_not_answered() -> None:
    """Deposed while it waited, ended meanwhile, or without a lease: asked again elsewhere."""
    clock = _Clock()
    synced = Pending()
    answer = _reads(clock).answered(_attempt(), synced, lambda attempt: None)
    synced.fail(Deposed("another leads"))
    with pytest.raises(Deposed):
        answer.wait()
    gone = _attempt()
    gone.ended = True
    with pytest.raises(Deposed):
        _reads(clock).check(gone)
    with pytest.raises(Deposed):
        Reads(clock).check(_attempt())


def test_calls_are_taken_until_the_lease_is_over_without_the_drift() -> None:
    """Reads end earlier than the lease; whether another may lead is a hint only."""
    clock = _Clock()
    reads = _reads(clock)
    clock.now = 0.95
    assert reads.may_lead()
    clock.now = 1.0
    assert not reads.may_lead()
    assert not Reads(clock).may_lead()
