"""Decisions about arriving calls, in the order of DESIGN §4, steps 2 to 5."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rifl.core import (
    BadHeader,
    CompletionRecord,
    Draining,
    InvariantViolated,
    LeaseExpired,
    PayloadMismatch,
    RpcId,
    SessionClosed,
    StoreUnavailable,
    Verdict,
    WindowExceeded,
)
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.client_table import Attempt, ClientTable, Decision
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call

CLIENT, SESSION, NOW = 7, 8, 100.0
POLICY = MethodPolicy()
RECORD = CompletionRecord(response=b"answer")


class FakeLeases:
    """The lease server the table is given: who is alive is what the test says."""

    def __init__(self) -> None:
        self.live = {CLIENT, SESSION}
        self.renewed: list[tuple[int, float]] = []

    def renew(self, client_id: int, now: float) -> bool:
        self.renewed.append((client_id, now))
        return client_id in self.live

    def is_session(self, client_id: int) -> bool:
        return client_id == SESSION

    def writes(self, client_id: int, token: bytes) -> bool:
        return True

    def holder(self, client_id: int) -> bytes:
        return b""


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


@pytest.fixture
def table(leases: FakeLeases) -> ClientTable:
    return ClientTable(leases, window=3, key_bounds=KeyBounds(max_keys=2, max_bytes=1000))


def sequenced(
    seq: int,
    first_incomplete: int = 1,
    completed: tuple[tuple[int, int], ...] = (),
    fingerprint: bytes | None = b"f",
    client_id: int = CLIENT,
    token: bytes = b"token",
) -> Call:
    return Call(client_id, token, seq, None, first_incomplete, completed, fingerprint=fingerprint)


def keyed(key: bytes, fingerprint: bytes | None = b"f", client_id: int = SESSION) -> Call:
    return Call(client_id, b"token", None, key, fingerprint=fingerprint)


def claim(table: ClientTable, call: Call) -> Attempt:
    decision = table.decide(call, POLICY, NOW)
    assert decision.verdict is Verdict.NEW
    assert decision.attempt is not None
    return decision.attempt


def complete(table: ClientTable, call: Call) -> None:
    table.settle(claim(table, call), RECORD, keep=True)


def refused(table: ClientTable, call: Call, error: type[Exception]) -> None:
    with pytest.raises(error):
        table.decide(call, POLICY, NOW)


def stale(table: ClientTable, seq: int) -> bool:
    entry = table.get(CLIENT)
    return entry is not None and entry.tracker.peek(seq) is Verdict.STALE


class TestKnownCalls:
    """Step 2: what is known is told, before anything else is asked."""

    @pytest.mark.parametrize("call", [sequenced(1), keyed(b"k")])
    def test_new_then_running_then_completed(self, table: ClientTable, call: Call) -> None:
        """One identity is NEW once, then IN_PROGRESS with its attempt, then COMPLETED with
        its record (DESIGN §4, steps 2 and 5)."""
        attempt = claim(table, call)
        assert table.decide(call, POLICY, NOW) == Decision(Verdict.IN_PROGRESS, attempt)
        assert table.running() == [attempt]
        table.settle(attempt, RECORD, keep=True)
        assert table.decide(call, POLICY, NOW) == Decision(Verdict.COMPLETED, None, RECORD)
        assert (attempt.ended, table.running()) == (True, [])

    def test_a_record_that_is_not_kept_has_to_be_fetched(self, table: ClientTable) -> None:
        """Without keep the verdict is COMPLETED with no record (ClientTable.settle)."""
        table.settle(claim(table, sequenced(1)), RECORD, keep=False)
        table.settle(claim(table, keyed(b"k")), RECORD, keep=False)
        for call in (sequenced(1), keyed(b"k")):
            assert table.decide(call, POLICY, NOW) == Decision(Verdict.COMPLETED, None, None)

    @pytest.mark.parametrize("call", [sequenced(1), keyed(b"k")])
    def test_completed_calls_are_answered_after_the_lease_expired(
        self, table: ClientTable, leases: FakeLeases, call: Call
    ) -> None:
        """The record outranks the lease, also while new calls are refused (DESIGN §4, step 2;
        RIFL §3.3)."""
        complete(table, call)
        leases.live.clear()
        table.refusing = Draining("stopping")
        assert table.decide(call, POLICY, NOW).record == RECORD

    @pytest.mark.parametrize("call", [sequenced(1), keyed(b"k")])
    def test_running_calls_are_waited_for_after_the_lease_expired(
        self, table: ClientTable, leases: FakeLeases, call: Call
    ) -> None:
        """A duplicate of a running call waits, whatever the lease (DESIGN §4, step 2)."""
        attempt = claim(table, call)
        leases.live.clear()
        table.refusing = Draining("stopping")
        assert table.decide(call, POLICY, NOW) == Decision(Verdict.IN_PROGRESS, attempt)

    @pytest.mark.parametrize(
        ("call", "other"),
        [
            (sequenced(1), sequenced(1, fingerprint=b"g")),
            (keyed(b"k"), keyed(b"k", fingerprint=b"g")),
        ],
    )
    @pytest.mark.parametrize("alive", [True, False])
    def test_another_payload_is_refused_running_or_completed(
        self, table: ClientTable, leases: FakeLeases, call: Call, other: Call, alive: bool
    ) -> None:
        """The fingerprint must match before anything is told (DESIGN §4, step 2)."""
        attempt = claim(table, call)
        if not alive:
            leases.live.clear()
        refused(table, other, PayloadMismatch)
        table.settle(attempt, RECORD, keep=True)
        refused(table, other, PayloadMismatch)
        assert table.decide(call, POLICY, NOW).record == RECORD

    def test_a_resolution_fits_any_payload(self, table: ClientTable) -> None:
        """No fingerprint matches every call, and what it records fits every call after
        (rifl.proto, Outcomes.Resolve)."""
        complete(table, sequenced(1))
        resolution = sequenced(1, fingerprint=None)
        assert table.decide(resolution, POLICY, NOW).verdict is Verdict.COMPLETED
        attempt = claim(table, sequenced(2, fingerprint=None))
        late = sequenced(2, fingerprint=b"late")
        assert table.decide(late, POLICY, NOW).verdict is Verdict.IN_PROGRESS
        table.settle(attempt, RECORD, keep=True)
        assert table.decide(late, POLICY, NOW).verdict is Verdict.COMPLETED


class TestStaleCalls:
    """Step 3: what was acknowledged is stale."""

    def test_below_first_incomplete_and_inside_ranges(self, table: ClientTable) -> None:
        """An acknowledged seq is STALE, known before or not (DESIGN §4, step 3)."""
        complete(table, sequenced(2))
        claim(table, sequenced(9, 3, ((5, 6),)))
        for seq in (1, 2, 5, 6):
            assert table.decide(sequenced(seq), POLICY, NOW).verdict is Verdict.STALE
        assert table.decide(sequenced(4), POLICY, NOW).verdict is Verdict.NEW

    def test_stale_comes_before_the_lease(self, table: ClientTable, leases: FakeLeases) -> None:
        """A stale call of an expired client is STALE, one not known LEASE_EXPIRED (DESIGN §4,
        step 3 before step 5)."""
        claim(table, sequenced(9, 3))
        leases.live.clear()
        table.refusing = Draining("stopping")
        assert table.decide(sequenced(2), POLICY, NOW).verdict is Verdict.STALE
        refused(table, sequenced(4), LeaseExpired)

    def test_a_running_call_that_is_acknowledged_stays_running(self, table: ClientTable) -> None:
        """Duplicates still find the attempt; it settles without a trace, STALE after
        (RIFL §3.3, a late completion is dropped)."""
        attempt = claim(table, sequenced(1))
        claim(table, sequenced(2, 2))
        assert table.decide(sequenced(1), POLICY, NOW) == Decision(Verdict.IN_PROGRESS, attempt)
        table.settle(attempt, RECORD, keep=True)
        assert table.decide(sequenced(1), POLICY, NOW).verdict is Verdict.STALE

    def test_an_acknowledged_call_that_is_abandoned_stays_stale(self, table: ClientTable) -> None:
        """Nothing makes an acknowledged call new again (ResultTracker, invariant 2)."""
        attempt = claim(table, sequenced(1))
        claim(table, sequenced(2, 2))
        table.settle(attempt, None, keep=True)
        assert table.decide(sequenced(1), POLICY, NOW).verdict is Verdict.STALE


_Arrange = Callable[[ClientTable], Call]


def _duplicate_running(table: ClientTable) -> Call:
    claim(table, sequenced(30))
    return sequenced(30, 3, ((5, 6),))


def _duplicate_completed(table: ClientTable) -> Call:
    complete(table, sequenced(30))
    return sequenced(30, 3, ((5, 6),))


def _stale_itself(table: ClientTable) -> Call:
    claim(table, sequenced(31, 1, ((30, 30),)))
    return sequenced(30, 3, ((5, 6),))


def _no_room(table: ClientTable) -> Call:
    for seq in (20, 21, 22):
        claim(table, sequenced(seq))
    return sequenced(30, 3, ((5, 6),))


def _refusing(table: ClientTable) -> Call:
    claim(table, sequenced(20))
    table.refusing = StoreUnavailable("disk full")
    return sequenced(30, 3, ((5, 6),))


def _new(table: ClientTable) -> Call:
    claim(table, sequenced(20))
    return sequenced(30, 3, ((5, 6),))


class TestAcknowledgements:
    """Step 4: acknowledgements are applied, whatever becomes of the call."""

    @pytest.mark.parametrize(
        ("arrange", "error"),
        [
            (_new, None),
            (_duplicate_running, None),
            (_duplicate_completed, None),
            (_stale_itself, None),
            (_no_room, WindowExceeded),
            (_refusing, StoreUnavailable),
        ],
    )
    def test_a_live_clients_are_applied(
        self, table: ClientTable, arrange: _Arrange, error: type[Exception] | None
    ) -> None:
        """Also when the call is a duplicate, stale or refused (DESIGN §4, step 4)."""
        call = arrange(table)
        if error is None:
            table.decide(call, POLICY, NOW)
        else:
            refused(table, call, error)
        assert [seq for seq in range(1, 8) if stale(table, seq)] == [1, 2, 5, 6]

    @pytest.mark.parametrize(
        "arrange", [_new, _duplicate_running, _duplicate_completed, _stale_itself]
    )
    def test_a_dead_clients_are_not(
        self, table: ClientTable, leases: FakeLeases, arrange: _Arrange
    ) -> None:
        """A client without a lease changes no state (DESIGN §4, step 4, "if alive")."""
        call = arrange(table)
        leases.live.clear()
        try:
            table.decide(call, POLICY, NOW)
        except LeaseExpired:
            assert arrange is _new
        assert [seq for seq in range(1, 8) if stale(table, seq)] == []

    def test_they_make_room_for_their_own_call(self, table: ClientTable) -> None:
        """The window is judged after the header's acknowledgements (DESIGN §4, step 5)."""
        for seq in (1, 2, 3):
            complete(table, sequenced(seq))
        refused(table, sequenced(4), WindowExceeded)
        claim(table, sequenced(4, 2))
        claim(table, sequenced(5, 2, ((3, 3),)))


class TestNewCalls:
    """Step 5: known and alive, with room, and then in progress."""

    def test_a_dead_client_gets_no_state(self, table: ClientTable, leases: FakeLeases) -> None:
        """Refusals of unknown clients leave nothing behind (DESIGN §4, step 5; anchors, RIFL)."""
        leases.live.clear()
        refused(table, sequenced(1, client_id=99), LeaseExpired)
        refused(table, sequenced(1), LeaseExpired)
        refused(table, keyed(b"k"), SessionClosed)
        assert len(table) == 0

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (sequenced(1, client_id=SESSION), BadHeader),
            (keyed(b"", client_id=CLIENT), BadHeader),
        ],
    )
    def test_a_refused_first_call_leaves_no_state(
        self, leases: FakeLeases, call: Call, error: type[Exception]
    ) -> None:
        """A live client's entry is made with its first call, not before (DESIGN §4)."""
        table = ClientTable(leases)
        refused(table, call, error)
        assert len(table) == 0

    def test_refusing_leaves_no_state_of_a_new_client(self, table: ClientTable) -> None:
        """While draining a client without state stays without (DESIGN §4, step 5)."""
        table.refusing = Draining("stopping")
        refused(table, sequenced(1), Draining)
        refused(table, keyed(b"k"), Draining)
        assert len(table) == 0

    def test_refusing_says_the_same_to_everyone(self, table: ClientTable) -> None:
        """Each refusal is an error of its own: one shared by all callers would gather the
        traceback, and so the request, of every one of them (DESIGN §9, bounds)."""
        table.refusing = StoreUnavailable("disk full")
        raised = []
        for seq in (1, 2, 3):
            with pytest.raises(StoreUnavailable, match="disk full") as caught:
                table.decide(sequenced(seq), POLICY, NOW)
            raised.append(caught.value)
        assert len({id(error) for error in raised}) == 3
        assert table.refusing.__traceback__ is None

    def test_sessions_take_keyed_calls_only(self, table: ClientTable) -> None:
        """Two openers would both start at seq 1 (DESIGN §5)."""
        refused(table, sequenced(1, client_id=SESSION), BadHeader)
        assert claim(table, keyed(b"k")).entry.client_id == SESSION

    def test_a_closed_session_says_so_first(self, table: ClientTable, leases: FakeLeases) -> None:
        """A closed session is SESSION_CLOSED for any new call (DESIGN §3)."""
        leases.live.discard(SESSION)
        refused(table, sequenced(1, client_id=SESSION), SessionClosed)
        refused(table, keyed(b"k"), SessionClosed)

    def test_keyed_identities_have_bounds_of_their_own(self, table: ClientTable) -> None:
        """Keys do not use the window, nor seqs the keys' bounds (DESIGN §4)."""
        for key in (b"a", b"b"):
            claim(table, keyed(key, client_id=CLIENT))
        refused(table, keyed(b"c", client_id=CLIENT), WindowExceeded)
        for seq in (1, 2, 3):
            claim(table, sequenced(seq))
        refused(table, sequenced(4), WindowExceeded)

    def test_a_seq_and_a_key_never_meet(self, table: ClientTable) -> None:
        """Sequenced and keyed identities of one client are different calls (DESIGN §3)."""
        claim(table, sequenced(1))
        claim(table, keyed(b"\x01", client_id=CLIENT))
        claim(table, keyed(b"1", client_id=CLIENT))
        assert len(table.running()) == 3

    def test_clients_do_not_share_identities(self, table: ClientTable, leases: FakeLeases) -> None:
        """The same seq of another client is another call, with a window of its own (DESIGN §3)."""
        leases.live.add(9)
        for client_id in (CLIENT, 9):
            for seq in (1, 2, 3):
                claim(table, sequenced(seq, client_id=client_id))
        assert len({attempt.call.rpc_id for attempt in table.running()}) == 6

    def test_every_arrival_of_a_live_client_renews(
        self, table: ClientTable, leases: FakeLeases
    ) -> None:
        """A call renews its client's lease at the time it was decided (DESIGN §5)."""
        table.decide(sequenced(1), POLICY, 5.0)
        table.decide(sequenced(1), POLICY, 6.0)
        assert leases.renewed == [(CLIENT, 5.0), (CLIENT, 6.0)]

    def test_attempts_are_told_apart(self, table: ClientTable) -> None:
        """Each run is an attempt of its own (DESIGN §6)."""
        first = claim(table, sequenced(1))
        table.settle(first, None, keep=True)
        assert claim(table, sequenced(1)) is not first

    def test_the_verified_token_is_noted(self, table: ClientTable) -> None:
        """An accepted call's token is remembered (ClientEntry.token)."""
        entry = claim(table, sequenced(1, token=b"old")).entry
        claim(table, sequenced(2, token=b"new"))
        assert entry.token == b"new"


class TestSettling:
    """What an attempt leaves behind."""

    def test_an_attempt_without_a_record_makes_the_call_new(self, table: ClientTable) -> None:
        """Its identity is claimed again, once, and its room is free (DESIGN §4)."""
        for call in (sequenced(1), keyed(b"k")):
            table.settle(claim(table, call), None, keep=True)
            claim(table, call)
            assert table.decide(call, POLICY, NOW).verdict is Verdict.IN_PROGRESS

    def test_only_the_running_attempt_settles(self, table: ClientTable) -> None:
        """An attempt that was settled, or taken over, violates the invariant and changes
        nothing (ClientTable, invariant 2; DESIGN §9, decide first)."""
        old = claim(table, sequenced(1))
        table.settle(old, None, keep=True)
        with pytest.raises(InvariantViolated):
            table.settle(old, RECORD, keep=True)
        current = claim(table, sequenced(1))
        with pytest.raises(InvariantViolated):
            table.settle(old, RECORD, keep=True)
        assert table.decide(sequenced(1), POLICY, NOW) == Decision(Verdict.IN_PROGRESS, current)
        table.settle(current, RECORD, keep=True)
        with pytest.raises(InvariantViolated):
            table.settle(current, None, keep=True)
        assert table.decide(sequenced(1), POLICY, NOW).record == RECORD

    def test_keyed_records_count_their_bytes(self, leases: FakeLeases) -> None:
        """Records fill the bound on bytes, and abandoned calls give their key's back (DESIGN
        §4, bounds on count and bytes)."""
        table = ClientTable(leases, key_bounds=KeyBounds(max_keys=100, max_bytes=100))
        for _ in range(50):
            table.settle(claim(table, keyed(b"k" * 60)), None, keep=True)
        attempt = claim(table, keyed(b"a"))
        table.settle(attempt, CompletionRecord(response=b"r" * 99), keep=False)
        refused(table, keyed(b"b"), WindowExceeded)


class TestDropping:
    """A lease or session that is over."""

    def test_its_records_go_at_once(self, table: ClientTable, leases: FakeLeases) -> None:
        """Nothing of a dropped client is known; ids without state may go too (DESIGN §4)."""
        complete(table, sequenced(1))
        leases.live.clear()
        assert table.drop([CLIENT, 99]) == [CLIENT, 99]
        assert table.get(CLIENT) is None
        refused(table, sequenced(1), LeaseExpired)

    def test_its_running_calls_finish_first(self, table: ClientTable, leases: FakeLeases) -> None:
        """The rows go with the last running attempt, and are told to go once (DESIGN §4,
        "after its running calls finished")."""
        done, first, second = (claim(table, sequenced(seq)) for seq in (1, 2, 3))
        table.settle(done, RECORD, keep=True)
        leases.live.clear()
        assert table.drop([CLIENT]) == []
        assert table.decide(sequenced(1), POLICY, NOW).record == RECORD
        assert table.decide(sequenced(2), POLICY, NOW).verdict is Verdict.IN_PROGRESS
        refused(table, sequenced(4), LeaseExpired)
        assert table.settle(first, RECORD, keep=True) is False
        assert table.settle(second, None, keep=True) is True
        assert len(table) == 0
        assert table.drop([CLIENT]) == [CLIENT]

    def test_a_settled_call_of_a_live_client_drops_nothing(self, table: ClientTable) -> None:
        """settle says the rows may go only of a dropped client (ClientTable.settle)."""
        assert table.settle(claim(table, sequenced(1)), RECORD, keep=True) is False
        assert [entry.client_id for entry in table.entries()] == [CLIENT]


def test_a_recovered_client_has_its_state() -> None:
    """What a store puts back decides as before the restart (DESIGN §5)."""
    table = ClientTable(FakeLeases())
    entry = table.entry(CLIENT)
    assert table.entry(CLIENT) is entry
    entry.tracker.acknowledge(3, [(5, 6)])
    entry.tracker.restore(4, (b"f", None, 0))
    assert table.decide(sequenced(4), POLICY, NOW) == Decision(Verdict.COMPLETED, None, None)
    refused(table, sequenced(4, fingerprint=b"g"), PayloadMismatch)
    assert table.decide(sequenced(6), POLICY, NOW).verdict is Verdict.STALE
    assert table.decide(sequenced(7), POLICY, NOW).verdict is Verdict.NEW
    assert [attempt.call.rpc_id for attempt in table.running()] == [RpcId(CLIENT, seq=7)]


def test_a_namespace_remembers_what_ran_and_is_new_again(table: ClientTable) -> None:
    """It goes with the last of its keys, but for those that may have had an effect (DESIGN §3)."""
    for ran in (False, True):
        attempt = claim(table, keyed(b"k", client_id=-1))
        assert not attempt.entry.may_have_run(b"k")
        attempt.ran = ran
        table.settle(attempt, None, keep=True)
        assert (table.get(-1) is None) is not ran
    assert claim(table, keyed(b"k", client_id=-1)).entry.may_have_run(b"k")


def test_unknown_outcomes_are_counted_as_long_as_their_records_are_kept() -> None:
    """Each once, whether its client is idle or not; the oldest says the age (DESIGN §9)."""
    leases = FakeLeases()
    table = ClientTable(leases)
    for seq in (1, 2, 3):
        table.settle(claim(table, sequenced(seq)), RECORD, keep=True)
    table.settle(claim(table, keyed(b"k")), RECORD, keep=True)
    assert table.unknown(NOW) == (0, 0.0)
    for identity, since in ((1, 0.0), (2, 5.0), (1, 9.0)):
        table.note_unknown(CLIENT, identity, since)
    table.note_unknown(SESSION, b"k", 8.0)
    assert table.unknown(10.0) == (3, 10.0)
    table.acknowledge(CLIENT, 2, ())
    assert table.unknown(10.0) == (2, 5.0)
    while CLIENT in {entry.client_id for entry in table.active()}:
        table.set_idle_aside(10)
    assert table.unknown(10.0) == (2, 5.0)
    table.acknowledge(CLIENT, 3, ())
    table.forget_key(SESSION, b"k")
    assert table.unknown(10.0) == (0, 0.0)
    table.note_unknown(CLIENT, 3, 0.0)
    table.drop([CLIENT])
    assert table.unknown(10.0) == (0, 0.0)
