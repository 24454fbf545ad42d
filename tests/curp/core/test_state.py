"""The state of clients and calls that the log holds: DESIGN §7, invariants 6, 7, 8 and 12."""

from __future__ import annotations

import pytest

from curp._core.entries import (
    CallsAcknowledged,
    ClientRegistered,
    ClientRemoved,
    IdsReserved,
    LeaderStarted,
    SecretsPut,
    SessionForgotten,
    SessionPut,
    SessionsRekeyed,
)
from curp._core.state import GroupState, Witnessed
from curp._wire.snapshots import snapshot_from_chunks, snapshot_to_chunks
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import LeaseExpired, OutcomeUnknown, StoreMismatch
from rifl.core._shared.invariant import InvariantViolated
from tests.curp.core.groups import AliveLeases, call, committed, operation

_POLICY = MethodPolicy()


def _decide(state: GroupState, client_id: int, seq: int) -> Verdict:
    state.lead(AliveLeases())
    return state.table.decide(call(client_id, seq), _POLICY, 0.0).verdict


def test_an_entry_brings_its_record_and_its_acknowledgements() -> None:
    """Replay rebuilds trackers and records together (DESIGN §7)."""
    state = committed(
        operation(1, 1),
        operation(1, 2),
        operation(1, 4, first_incomplete=2, completed=((3, 3),)),
    )
    assert _decide(state, 1, 1) is Verdict.STALE
    assert _decide(state, 1, 2) is Verdict.COMPLETED
    assert _decide(state, 1, 3) is Verdict.STALE
    assert _decide(state, 1, 4) is Verdict.COMPLETED
    assert _decide(state, 1, 5) is Verdict.NEW


def test_what_a_renewal_acknowledged_is_of_the_log() -> None:
    """A standby's and a leader's states are alike, and nothing moves back (GroupState, 1)."""
    entries = [
        *(operation(1, seq) for seq in (1, 2, 3, 4)),
        CallsAcknowledged(1, 2, ((4, 4),)),
        CallsAcknowledged(1, 1),
        operation(2, 1),
        ClientRemoved(2),
        # Placed as the client was removed: it comes not back.
        CallsAcknowledged(2, 2),
    ]
    standby = committed(*entries)
    leader = GroupState()
    leader.lead(AliveLeases())
    leader.commit(1, ClientRegistered(1), 0.0)
    attempts = {seq: leader.table.decide(call(1, seq), _POLICY, 0.0).attempt for seq in range(1, 6)}
    for entry in entries[:4]:
        leader.commit(leader.applied + 1, entry, 0.0, attempt=attempts[entry.seq])
    committed(*entries[4:], state=leader)
    assert list(leader.dump()) == list(standby.dump())
    verdicts = [_decide(standby, 1, seq) for seq in (1, 2, 3, 4)]
    assert verdicts == [Verdict.STALE, Verdict.COMPLETED, Verdict.COMPLETED, Verdict.STALE]
    assert standby.known_ids() == [1]
    assert standby.table.find(2) is None
    # Of the one that still runs: it is answered, and not kept.
    committed(CallsAcknowledged(1, 6), state=leader)
    leader.commit(leader.applied + 1, operation(1, 5), 0.0, attempt=attempts[5])
    assert _decide(leader, 1, 5) is Verdict.STALE


def test_a_leaders_own_attempt_is_settled_by_its_entry_and_not_before() -> None:
    """Until its entry is in the log a call runs, so duplicates wait for it (invariant 9)."""
    state = committed(operation(1, 1))
    state.lead(AliveLeases())
    attempt = state.table.decide(call(1, 2), _POLICY, 0.0).attempt
    assert attempt is not None
    assert state.table.decide(call(1, 2), _POLICY, 0.0).verdict is Verdict.IN_PROGRESS
    entry = operation(1, 2, first_incomplete=2)
    state.commit(state.applied + 1, entry, 0.0, attempt=attempt)
    assert attempt.ended
    decision = state.table.decide(call(1, 2), _POLICY, 0.0)
    assert decision.record == entry.answer
    assert _decide(state, 1, 1) is Verdict.STALE


def test_an_entry_brings_the_seed_of_its_call() -> None:
    """Another seed is another client's call, at a standby, and after a snapshot, too (§3)."""
    state = committed(operation(1, 1, stamp=(5, 6)))
    loaded = GroupState()
    loaded.load(snapshot_from_chunks(list(snapshot_to_chunks(state.dump(), b"")))[0], 0.0)
    for found in (state, loaded):
        found.lead(AliveLeases())
        mine, others = call(1, 1), call(1, 1)
        mine.seed, others.seed = 6, 7
        assert found.table.decide(mine, _POLICY, 0.0).verdict is Verdict.COMPLETED
        with pytest.raises(StoreMismatch):
            found.table.decide(others, _POLICY, 0.0)


def test_a_dropped_client_is_gone_with_its_last_operation() -> None:
    """Its removal follows everything it had running (invariant 7)."""
    state = committed(operation(1, 1))
    state.lead(AliveLeases())
    attempt = state.table.decide(call(1, 2), _POLICY, 0.0).attempt
    assert state.table.drop([1]) == []
    assert state.commit(state.applied + 1, operation(1, 2), 0.0, attempt=attempt)
    state.commit(state.applied + 1, ClientRemoved(1), 0.0)
    assert state.known_ids() == []
    with pytest.raises(InvariantViolated):
        state.commit(state.applied + 1, operation(1, 3), 0.0)


def test_entries_are_committed_in_order_each_once() -> None:
    """A gap or a repeated entry is our own mistake (GroupState, 2)."""
    state = committed(operation(1, 1))
    for lsn in (state.applied, state.applied + 2):
        with pytest.raises(InvariantViolated):
            state.commit(lsn, operation(1, 2), 0.0)


def test_witnessed_requests_are_filtered_by_what_the_log_knows() -> None:
    """Known, running, fresh, or of a client the log does not know (invariants 6 and 12)."""
    state = committed(operation(1, 1), operation(1, 2, first_incomplete=2))
    assert state.witnessed(call(1, 1)) is Witnessed.KNOWN
    assert state.witnessed(call(1, 2)) is Witnessed.KNOWN
    assert state.witnessed(call(1, 3)) is Witnessed.FRESH
    assert state.witnessed(call(1, None, b"key")) is Witnessed.FRESH
    assert state.witnessed(call(2, 1)) is Witnessed.CLIENT_GONE
    state.lead(AliveLeases())
    state.table.decide(call(1, 3), _POLICY, 0.0)
    assert state.witnessed(call(1, 3)) is Witnessed.RUNNING


def test_what_an_idle_client_called_stays_known() -> None:
    """A client that is idle is known to a recovery and to a sync (invariants 6 and 9)."""
    state = committed(operation(1, 1))
    while state.table.get(1) is not None:
        state.table.set_idle_aside(10)
    assert state.witnessed(call(1, 1)) is Witnessed.KNOWN
    assert state.witnessed(call(1, 2)) is Witnessed.FRESH


def test_without_a_lease_server_nobody_is_alive() -> None:
    """Only a leader decides about calls."""
    state = committed(operation(1, 1))
    with pytest.raises(LeaseExpired):
        state.table.decide(call(1, 2), _POLICY, 0.0)


def test_a_snapshot_holds_what_a_live_client_has_not_acknowledged() -> None:
    """Dumped and loaded, everything is decided as before (invariant 8)."""
    session = SessionPut(9, "nightly", b"peer", "open", 60.0, 1.0)
    state = committed(
        SecretsPut(((1, b"s" * 32), (0, b"t" * 32))),
        IdsReserved(1024),
        session,
        SessionPut(8, "gone", b"", "open", 60.0, 1.0),
        SessionForgotten(8),
        SessionsRekeyed((9, 8), b"another"),
        ClientRegistered(9),
        operation(9, None, key=b"row"),
        operation(1, 1),
        operation(1, 3, first_incomplete=1, completed=((2, 2),)),
        operation(2, 1),
        operation(2, 2, first_incomplete=2),
        ClientRegistered(3, b"10.0.0.7"),
        ClientRegistered(4, b"10.0.0.7"),
        ClientRemoved(4),
        operation(-5, None, key=b"plain"),
        LeaderStarted(4, "r1", 0),
    )
    state.lead(AliveLeases())
    state.table.decide(call(2, 7, first_incomplete=1), _POLICY, 0.0)
    copy = GroupState()
    copy.load(list(state.dump()), 0.0)
    assert list(copy.dump()) == list(state.dump())
    assert copy.holders == state.holders == {3: b"10.0.0.7"}
    assert (copy.applied, copy.last_id, copy.secrets) == (
        state.applied,
        state.last_id,
        state.secrets,
    )
    assert copy.sessions == {9: session._replace(secret=b"another")}
    assert copy.known_ids() == [1, 2, 3, 9]
    for client_id, seq, verdict in [
        (1, 1, Verdict.COMPLETED),
        (1, 2, Verdict.STALE),
        (1, 3, Verdict.COMPLETED),
        (2, 1, Verdict.STALE),
        (2, 2, Verdict.COMPLETED),
        # What only ran is no part of it.
        (2, 7, Verdict.NEW),
    ]:
        assert _decide(copy, client_id, seq) is verdict
    assert copy.witnessed(call(9, None, b"row")) is Witnessed.KNOWN


def test_an_acknowledgement_that_is_in_no_entry_is_in_no_snapshot() -> None:
    """What a header said of a call that still runs is not in the log (invariant 8)."""
    state = committed(operation(1, 1))
    state.lead(AliveLeases())
    # As the leader's shell does it: acknowledgements travel in the entry.
    state.table.decide(call(1, 2), _POLICY, 0.0)
    (client,) = [item for item in state.dump() if getattr(item, "client_id", None) == 1]
    assert client.first_incomplete == 1  # type: ignore[union-attr]
    assert [kept.seq for kept in client.calls] == [1]  # type: ignore[union-attr]


def test_unknown_outcomes_are_counted_by_each_replica_that_has_the_state() -> None:
    """By those that read the log, and by those that load a snapshot (DESIGN §9)."""
    lost = refusal_record(OutcomeUnknown("it killed its leaders"))
    state = committed(
        operation(1, 1),
        operation(1, 2, answer=lost),
        operation(2, None, key=b"k", answer=lost),
    )
    loaded = GroupState()
    loaded.load(state.dump(), 3.0)
    assert state.table.unknown(7.0) == (2, 7.0)
    assert loaded.table.unknown(7.0) == (2, 4.0)
    for each in (state, loaded):
        committed(operation(1, 3, first_incomplete=3), state=each)
        assert each.table.unknown(7.0)[0] == 1
