"""A group over an engine that takes less in one append than it was given (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from chaos.sim.group.log import LogStore, Moment
from curp.log._errors import LogUnavailable
from examples.bank.v1 import bank_pb2
from sharedlog._engines.engine import Limits
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.ledger import Bank
from tests.curp.replica.running import Running, replica
from tests.helpers.processes import started
from tests.helpers.raw import RawClient
from tests.helpers.waiting import until

_DEADLINE_S = 60.0
_KIB = 1 << 10


# Of a store that takes eight entries, and half a mebibyte, at once.
_SMALL = Limits(8, 512 * _KIB, 1000)


class _Wordy(Bank):
    """Answers with many bytes."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        context.set_trailing_metadata((("note", "n" * 4000),))
        return super().Deposit(request, context)


class _Path:
    """The way to the engine, which a test cuts off."""

    def __init__(self) -> None:
        self.cut = False

    def __call__(self, operation: str, moment: Moment) -> None:
        if self.cut and moment is Moment.BEFORE:
            raise LogUnavailable("the engine is cut off")


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[str]:
    """One witness, in memory."""
    with started("curp.witness", "--listen", "127.0.0.1:0", log=tmp_path / "w.err") as process:
        yield process.line()


def _answered_first(log: LogStore, witness: str, calls: int, limits: Limits, **more: Any) -> ByHand:
    """Have so many calls answered that no log has, by a leader that is gone then."""
    path = _Path()
    with replica(
        log.engine(path, limits),
        witnesses=[witness],
        tuning={"max_unsynced": 1000, "batch_entries": 1000, "batch_delay_s": 60.0},
        **more,
    ) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        number = client.configuration().configuration
        # The client's registration is in the log before its first answer leaves.
        assert client.deposit("first", "opening", 1).ok
        path.cut = True
        for seq in range(2, calls + 2):
            name = f"a{seq}"
            assert client.record(witness, name, name, seq, configuration=number) == "ACCEPTED"
            answer = client.deposit(name, name, seq, configuration=number)
            assert (answer.ok, client.mark(answer)) == (True, "")
    # Its leader could not give it back.
    log.end_lease()
    return client


def test_a_recovery_of_more_than_one_append_loses_nothing(witness: str) -> None:
    """What was answered first is appended in pieces that the engine takes (invariant 5)."""
    log = LogStore()
    client = _answered_first(log, witness, 40, _SMALL, factory=_Wordy)
    with replica(log.engine(limits=_SMALL), "r2", factory=_Wordy, witnesses=[witness]) as second:
        second.until_leading()
        client.move(second.address)
        for seq in range(2, 42):
            again = client.deposit(f"a{seq}", f"a{seq}", seq, attempt=2)
            assert (again.ok, again.outcome) == (True, "replayed")
        assert all(second.bank.paid[f"a{seq}"] == 1 for seq in range(2, 42))


def test_a_request_that_fits_no_append_is_refused_before_it_is_placed(witness: str) -> None:
    """One call stops no leader: it is told, and others go on (invariant 1; DESIGN §9)."""
    log = LogStore()
    with replica(log.engine(limits=_SMALL), witnesses=[witness]) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        number = client.configuration().configuration
        refused = client.deposit("r", "a" * 600 * _KIB, 1, configuration=number)
        assert (refused.reason, refused.outcome) == ("REQUEST_TOO_LARGE", "unknown")
        plain = client.deposit("r", "a" * 600 * _KIB, 1)
        assert (plain.reason, plain.outcome) == ("REQUEST_TOO_LARGE", "not-executed")
        assert leader.bank.paid == {}
        assert client.deposit("r", "a", 2, configuration=number).ok
        assert leader.replica.role == "leader"


class _Huge(Bank):
    """Tells more than any append holds."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        receipt = super().Deposit(request, context)
        # A field that this message does not have.
        more = bank_pb2.DepositRequest(reference="s" * 600 * _KIB)
        receipt.MergeFromString(more.SerializeToString())
        return receipt


def test_an_answer_that_fits_no_append_is_recorded_as_such(witness: str) -> None:
    """It ran, and this is its answer for ever, at every leader (DESIGN §3, §7)."""
    log = LogStore()
    with replica(log.engine(limits=_SMALL), factory=_Huge, witnesses=[witness]) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        answer = client.deposit("r", "a", 1)
        assert (answer.reason, answer.outcome) == ("RESPONSE_TOO_LARGE", "executed")
    with replica(log.engine(limits=_SMALL), "r2", factory=_Huge, witnesses=[witness]) as second:
        second.until_leading()
        client.move(second.address)
        again = client.deposit("r", "a", 1, attempt=2)
        assert again.reason == "RESPONSE_TOO_LARGE"
        assert second.bank.paid == {"r": 1}


def test_more_unsynced_entries_than_one_append_holds_stop_nobody(witness: str) -> None:
    """``max_unsynced`` is of the leader; an append is bounded by the engine, too (invariant 3)."""
    log = LogStore()
    path = _Path()
    with replica(
        log.engine(path, _SMALL),
        witnesses=[witness],
        tuning={
            "max_unsynced": 1000,
            "batch_entries": 1000,
            "batch_delay_s": 0.001,
            "lease_term_s": 20.0,
        },
    ) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        number = client.configuration().configuration
        assert client.deposit("first", "opening", 1, configuration=number).ok
        path.cut = True
        for seq in range(2, 42):
            assert client.deposit("r", f"a{seq}", seq, configuration=number).ok
        path.cut = False
        assert client.deposit("last", "b", 42).ok
        assert leader.replica.role == "leader"
        assert leader.replica.status().unsynced == 0


class _Large(Bank):
    """Answers with 64 KiB, in a field that is not known."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        receipt: bank_pb2.Receipt = super().Deposit(request, context)
        receipt.MergeFromString(b"\x9a\x06\x80\x80\x04" + bytes(64 * _KIB))
        return receipt


def test_answers_that_nobody_acknowledged_are_bounded() -> None:
    """Of one client and of all, at the leader: new calls beyond wait, known ones do not (§9)."""
    bounds = rifl.Bounds(
        max_answer_bytes=192 * _KIB,
        max_total_answer_bytes=320 * _KIB,
        max_answer_bytes_per_caller=0,
    )
    with replica(LogStore().engine(), factory=_Large, bounds=bounds) as running:
        running.until_leading()
        one, two = ByHand(running.address), ByHand(running.address)
        for seq in (1, 2, 3):
            assert one.deposit(f"one {seq}", "alice", seq, first=1).ok
        assert one.deposit("one 4", "alice", 4, first=1).reason == "WINDOW_EXCEEDED"
        assert one.deposit("one 3", "alice", 3, first=1, attempt=2).outcome == "replayed"
        for seq in (1, 2):
            assert two.deposit(f"two {seq}", "alice", seq, first=1).ok
        assert two.deposit("two 3", "alice", 3, first=1).reason == "WINDOW_EXCEEDED"
        assert one.deposit("one 4", "alice", 4, first=4).ok
        assert two.deposit("two 3", "alice", 3, first=1).ok


def test_answers_count_for_the_address_that_the_log_has_of_a_lease() -> None:
    """At the next leader, too: a quarter of all (§9)."""
    store = LogStore()
    more: dict[str, Any] = {
        "factory": _Large,
        "bounds": rifl.Bounds(max_total_answer_bytes=512 * _KIB),
    }
    with replica(store.engine(), **more) as running:
        running.until_leading()
        clients = [ByHand(running.address) for _ in range(3)]
    with replica(store.engine(), "r2", **more) as running:
        running.until_leading()
        for client in clients:
            client.move(running.address)
        for number, client in enumerate(clients[:2]):
            assert client.deposit(f"{number}", "alice", 1, first=1).ok
        refused = clients[2].deposit("2", "alice", 1, first=1)
        assert refused.reason == "WINDOW_EXCEEDED"
        assert refused.details.startswith("yours: clients of 127.0.0.1 have ")


def _kept(running: Running, client_id: int) -> list[int]:
    """Return the calls of a client that a replica keeps the answers of."""
    entry = running.replica._store.state.table.get(client_id)
    return [] if entry is None else sorted(seq for seq, _ in entry.tracker.completed())


def test_what_an_idle_client_acknowledges_goes_on_every_replica() -> None:
    """Through the log, and once; a newcomer has room, also at the next leader (§5, §7)."""
    store = LogStore()
    more: dict[str, Any] = {
        "factory": _Large,
        "bounds": rifl.Bounds(
            max_total_answer_bytes=192 * _KIB,
            max_answer_bytes_per_caller=0,
        ),
    }
    with replica(store.engine(), **more) as leader:
        leader.until_leading()
        with replica(store.engine(), "r2", **more) as standby:
            idle, newcomer = ByHand(leader.address), ByHand(leader.address)
            for seq in (1, 2, 3):
                assert idle.deposit(f"idle {seq}", "alice", seq, first=1).ok
            assert newcomer.deposit("new", "alice", 1, first=1).reason == "WINDOW_EXCEEDED"
            for each in (leader, standby):
                until(lambda each=each: _kept(each, idle.client_id) == [1, 2, 3], "all are kept")
            assert idle.acknowledge(2, completed=[1, 1]).ok
            for each in (leader, standby):
                until(lambda each=each: _kept(each, idle.client_id) == [2], "two are freed")
            assert newcomer.deposit("new", "alice", 1, first=1).ok
            # What is late, or said again, moves nothing back, and is not in the log.
            tail = leader.replica.status().tail
            for first, completed in ((1, ()), (2, ()), (2, (1, 1))):
                assert idle.acknowledge(first, completed).ok
            assert newcomer.deposit("newer", "alice", 2, first=2).ok
            assert leader.replica.status().tail == tail + 1
            until(lambda: leader.replica.status().unsynced == 0, "all is in the log")
            leader.replica.close()
            standby.until_leading()
            for client in (idle, newcomer):
                client.move(standby.address)
            assert _kept(standby, idle.client_id) == [2]
            assert idle.deposit("idle 1", "alice", 1, first=1, attempt=2).reason == "STALE_RPC"
            assert idle.deposit("idle 3", "alice", 3, first=1, attempt=2).reason == "STALE_RPC"
            assert idle.deposit("idle 2", "alice", 2, first=1, attempt=2).outcome == "replayed"
            assert idle.acknowledge(4).ok
            until(lambda: _kept(standby, idle.client_id) == [], "the last one is freed")


def _told(address: str) -> str:
    """Return what a caller who wants a lease more is told."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/lease_server.v1.LeaseServer/Grant")(b"", timeout=_DEADLINE_S)
        except grpc.RpcError as error:
            return str(error.details())  # type: ignore[attr-defined]
    return ""


def test_the_next_leader_knows_whose_leases_are_held() -> None:
    """The log has it, and its snapshots: a restart gives no caller another share (§5, §9)."""
    store = LogStore()
    more: dict[str, Any] = {
        "bounds": rifl.Bounds(max_clients_per_caller=2),
        "tuning": {"snapshot_entries": 3},
    }
    with replica(store.engine(), **more) as running:
        running.until_leading()
        one, two = RawClient(running.address), RawClient(running.address)
        full = "127.0.0.1 holds as many leases as one caller may (2, max_clients_per_caller)"
        assert full in _told(running.address)
    with replica(store.engine(), "r2", **more) as running:
        running.until_leading()
        assert full in _told(running.address)
        one.channel.close()
        one.channel = two.channel = grpc.insecure_channel(running.address)
        assert one.release().ok
        assert _told(running.address) == ""
        assert full in _told(running.address)
        two.close()
