"""The entries of one leadership, and who waits for them: DESIGN §7, invariants 3, 7 and 9."""

from __future__ import annotations

from itertools import count
from typing import Any

from curp._core.appending import AppendBatch
from curp._core.entries import ClientRegistered, ClientRemoved, Operation
from curp._core.key_locks import KeyLock
from curp._core.leader import Leader, LeaderBounds, Speed
from curp._core.recovery import operation_of
from curp._core.state import GroupState
from curp._replica.arrival import Arrival
from curp._replica.proposals import CommittedBatch, LogWrite, Proposals
from curp._wire.entries import entry_to_bytes
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.record import CompletionRecord
from tests.curp.core.groups import AliveLeases, call, committed, operation

NUMBER = 4


class _Leadership:
    """Proposals over a state, and the appends that the shell would make."""

    def __init__(self, state: GroupState) -> None:
        drawn = count()
        self.state = state
        self.state.lead(AliveLeases())
        leader = Leader(
            NUMBER, state.applied, witnessed=True, bounds=LeaderBounds(batch_delay_s=0.0)
        )
        self.proposals = Proposals(leader, state, lambda: b"%016d" % next(drawn), lambda: 0.0)

    def attempt(self, client_id: int, seq: int, keys: frozenset[int]) -> Attempt:
        """Claim a new call, whose turn has come."""
        arriving = call(client_id, seq)
        arriving.configuration = NUMBER
        arrival = arriving.extra = Arrival(b"request", keys, NUMBER, 1, ())
        arrival.turn = KeyLock(keys)
        attempt = self.state.table.decide(arriving, MethodPolicy(), 0.0).attempt
        assert attempt is not None
        return attempt

    def execute(self, attempt: Attempt) -> tuple[int, Speed]:
        """Give a call that ran its place."""
        arrival: Arrival = attempt.call.extra
        record = CompletionRecord(response=b"answer")
        entry = operation_of(attempt.call, arrival.request, record, arrival.keys)
        write = LogWrite(entry, entry_to_bytes(entry), attempt, NUMBER)
        return self.proposals.operation(write, attempt)

    def append(self) -> tuple[list[Any], CommittedBatch]:
        """Append what waits; the entries, and what that brings."""
        step = self.proposals.appending.next(0.0)
        assert isinstance(step, AppendBatch)
        tail = step.batch.expected_tail + len(step.batch.placed)
        found = self.proposals.committed(step.batch, tail)
        assert found is not None
        return [placed.what.entry for placed in step.batch.placed], found


def test_a_client_s_registration_stands_in_front_of_its_first_operation() -> None:
    """Once; and until it is in the log, its calls are synced before their answer (3)."""
    leadership = _Leadership(GroupState())
    assert leadership.execute(leadership.attempt(1, 1, frozenset({1})))[1] is Speed.UNREGISTERED
    assert leadership.execute(leadership.attempt(1, 2, frozenset({2})))[1] is Speed.UNREGISTERED
    entries, _ = leadership.append()
    assert [type(entry) for entry in entries] == [ClientRegistered, Operation, Operation]
    assert leadership.execute(leadership.attempt(1, 3, frozenset({3})))[1] is Speed.FAST


def test_an_attempt_is_settled_when_its_entry_is_in_the_log() -> None:
    """Answered first or not: whoever asks for the same waits until then (invariant 9)."""
    leadership = _Leadership(committed(operation(1, 1)))
    attempt = leadership.attempt(1, 2, frozenset({2}))
    woken: list[int] = []
    attempt.waiters = [lambda: woken.append(1)]
    _, speed = leadership.execute(attempt)
    assert speed is Speed.FAST
    assert not attempt.ended
    _, found = leadership.append()
    assert attempt.ended
    assert woken == []
    for wake in found.waiters:
        wake()
    assert woken == [1]
    assert [(each.client_id, each.seq) for each in found.collectable] == [(1, 2)]


def test_who_waits_for_the_log_is_told_when_it_has_come_so_far() -> None:
    """Those of earlier places first; nobody before (invariant 1)."""
    leadership = _Leadership(committed(operation(1, 1)))
    first, _ = leadership.execute(leadership.attempt(1, 2, frozenset({2})))
    second, _ = leadership.execute(leadership.attempt(1, 3, frozenset({3})))
    late = leadership.proposals.wait_for(second)
    early = leadership.proposals.wait_for(first)
    assert leadership.proposals.waiting() != []
    _, found = leadership.append()
    assert found.synced == [early, late]
    assert leadership.proposals.waiting() == []


def test_a_client_s_removal_follows_its_last_operation() -> None:
    """Dropped while a call runs: removed behind it, and never without an entry (7)."""
    leadership = _Leadership(committed(operation(1, 1)))
    attempt = leadership.attempt(1, 2, frozenset({2}))
    assert leadership.state.table.drop([1]) == []
    leadership.execute(attempt)
    entries, _ = leadership.append()
    assert [type(entry) for entry in entries] == [Operation]
    entries, _ = leadership.append()
    assert entries == [ClientRemoved(1)]
    assert not leadership.proposals.known(1)
    # The log never heard of this one: there is nothing to remove.
    leadership.proposals.remove([99])
    assert leadership.proposals.leader.unsynced == 0


def test_an_append_of_an_earlier_leadership_settles_nothing() -> None:
    """Its reply may come late: what is placed now is not in the log by it (invariant 4)."""
    earlier = _Leadership(committed(operation(1, 1)))
    earlier.execute(earlier.attempt(1, 2, frozenset({2})))
    step = earlier.proposals.appending.next(0.0)
    assert isinstance(step, AppendBatch)
    later = _Leadership(committed(operation(1, 1)))
    attempt = later.attempt(1, 2, frozenset({2}))
    later.execute(attempt)
    assert later.proposals.committed(step.batch, 3) is None
    assert not attempt.ended
