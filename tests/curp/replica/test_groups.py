"""Groups with witnesses: DESIGN §7, invariants 1, 3, 4, 5, 9, 10, 11, 12 and 13."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from chaos.sim.group.log import LogStore
from curp._cli.command import main
from curp._cli.operator_client import OperatorClient
from curp._group_token import GROUP_TOKEN_KEY
from curp._replica import replica_list
from curp._replica.driver import drive
from curp.log import open_engine
from curp.log._commits import GroupLog
from curp.v1 import curp_pb2 as pb
from curp.v1 import curp_pb2_grpc
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.logs import created
from tests.curp.replica.by_hand import DEPOSIT, ByHand
from tests.curp.replica.running import Running, replica
from tests.helpers.processes import Process, started
from tests.helpers.raw import RawClient, header
from tests.helpers.waiting import until

# Nothing is appended by time: what is unsynced stays so until somebody asks.
_LAZY: dict[str, Any] = {"tuning": {"batch_delay_s": 600.0}}


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[str]:
    """One witness, in memory."""
    with _witness(tmp_path, "w1") as process:
        yield process.line()


def _witness(tmp_path: Path, name: str, listen: str = "127.0.0.1:0") -> object:
    return started("curp.witness", "--listen", listen, log=tmp_path / f"{name}.err")


def _held(address: str) -> pb.WitnessStatusReply:
    with grpc.insecure_channel(address) as channel:
        status: pb.WitnessStatusReply = curp_pb2_grpc.WitnessStub(channel).Status(
            pb.WitnessStatusRequest(), timeout=20, wait_for_ready=True
        )
        return status


def _registered(running: Running) -> tuple[ByHand, int]:
    """A client whose registration is in the log, and the configuration number."""
    running.until_leading()
    client = ByHand(running.address)
    number = client.configuration().configuration
    assert client.deposit("first", "opening", 1).ok
    return client, number


def test_what_commutes_is_answered_first_and_what_does_not_is_synced(witness: str) -> None:
    """A call in conflict is marked synced, and one without the number (invariants 1 and 3)."""
    log = LogStore()
    with replica(log.engine(), witnesses=[witness], **_LAZY) as running:
        client, number = _registered(running)
        tail = log.tail
        first = client.deposit("a1", "alice", 2, configuration=number)
        other = client.deposit("b1", "bob", 3, configuration=number)
        assert (client.mark(first), client.mark(other), log.tail) == ("", "", tail)
        conflicting = client.deposit("a2", "alice", 4, configuration=number)
        assert client.mark(conflicting) == str(number)
        assert log.tail == tail + 3
        # A caller with no number, and one with another: synced before their answer.
        assert client.deposit("c1", "carol", 5).ok
        assert log.tail == tail + 4
        assert client.mark(client.deposit("d", "dora", 6, configuration=number + 1)) == str(number)
        assert log.tail == tail + 5
        answered = running.replica.answered()
        # The client's first call had none, either.
        assert (answered["fast"], answered["conflict"], answered["no-number"]) == (2, 1, 3)


def test_a_clients_first_call_may_be_answered_first(witness: str) -> None:
    """Its registration is in the log when it is told its id (invariant 3; DESIGN §5)."""
    log = LogStore()
    with replica(log.engine(), witnesses=[witness], **_LAZY) as running:
        running.until_leading()
        client = ByHand(running.address)
        number = client.configuration().configuration
        tail = log.tail
        assert client.mark(client.deposit("a1", "alice", 1, configuration=number)) == ""
        assert log.tail == tail
        assert running.replica.answered()["fast"] == 1


def test_a_groups_records_are_its_logs(witness: str) -> None:
    """Every leader of a log says the same store, and another log's refuses its ids (§3, §7)."""
    log, others = LogStore(), LogStore()
    with (
        replica(log.engine(), **_LAZY) as first,
        replica(others.engine(), **_LAZY) as other,
    ):
        for running in (first, other):
            running.until_leading()
        with RawClient(first.address) as mine, RawClient(other.address) as its:
            assert 0 not in (mine.store, its.store)
            assert mine.store != its.store
            request = bank_pb2.DepositRequest(reference="r", account="alice", cents=1)
            raw = header(mine.client_id, mine.token, 1, store=mine.store)
            refused = its.call(DEPOSIT, request.SerializeToString(), raw=raw)
            assert refused.refusal == ("FAILED_PRECONDITION", "STORE_MISMATCH", "unknown")
            assert its.renew(mine.client_id, mine.token, mine.store).reason == "STORE_MISMATCH"
            assert mine.call(DEPOSIT, request.SerializeToString(), raw=raw).ok
            store = mine.store
    with replica(log.engine(), name="r2", **_LAZY) as next_:
        next_.until_leading()
        with RawClient(next_.address) as again:
            assert again.store == store


def test_a_duplicate_of_an_unsynced_call_waits_for_its_entry(witness: str) -> None:
    """Its answer is synced then, and says so; a sync request brings it about (invariant 9)."""
    log = LogStore()
    with replica(log.engine(), witnesses=[witness], **_LAZY) as running:
        client, number = _registered(running)
        assert client.mark(client.deposit("a1", "alice", 2, configuration=number)) == ""
        again = client.begin_deposit("a1", "alice", 2, configuration=number, attempt=2)
        assert client.sync(2, number + 1) == "OTHER_CONFIGURATION"
        assert client.sync(9, number) == "NOT_KNOWN"
        assert client.sync(2, number) == "SYNCED"
        assert dict(again.trailing_metadata())["curp-synced"] == str(number)
        assert dict(again.trailing_metadata())["rifl-outcome"] == "replayed"
        assert client.sync(2, number) == "SYNCED"
        assert running.bank.paid["a1"] == 1


def test_reads_wait_for_what_they_conflict_with(witness: str) -> None:
    """And for nothing else; nothing of them is logged (invariant 10)."""
    log = LogStore()
    with replica(log.engine(), witnesses=[witness], **_LAZY) as running:
        client, number = _registered(running)
        client.deposit("a1", "alice", 2, configuration=number)
        tail = log.tail
        assert client.balance("bob", 3, configuration=number).ok
        assert log.tail == tail
        assert client.balance("alice", 4, configuration=number).ok
        assert log.tail == tail + 1
        assert client.balance("alice", 5, configuration=number).ok
        assert log.tail == tail + 1


def test_witnesses_are_told_what_is_synced(witness: str) -> None:
    """They drop it, and nothing else (invariant 12)."""
    with replica(LogStore().engine(), witnesses=[witness], **_LAZY) as running:
        client, number = _registered(running)
        assert client.record(witness, "a1", "alice", 2, configuration=number) == "ACCEPTED"
        assert client.mark(client.deposit("a1", "alice", 2, configuration=number)) == ""
        assert _held(witness).held == 1
        assert client.sync(2, number) == "SYNCED"
        until(lambda: _held(witness).held == 0, "the witness drops what is synced")


def test_a_request_that_is_stuck_on_a_witness_is_run_by_the_leader(witness: str) -> None:
    """Its client died on the way: it is run once, synced and collected (invariant 12)."""
    with replica(LogStore().engine(), witnesses=[witness]) as running:
        client, number = _registered(running)
        assert client.record(witness, "stuck", "alice", 2, configuration=number) == "ACCEPTED"
        other, seq = ByHand(running.address), 0
        while _held(witness).held:
            # Rounds of collection follow what others do.
            seq += 1
            assert seq < 2000
            other.deposit(f"other{seq}", "bob", seq, configuration=number, first=seq)
        assert running.bank.paid["stuck"] == 1
        assert client.deposit("stuck", "alice", 2, configuration=number).outcome != "executed"
        assert running.bank.paid["stuck"] == 1


def test_a_new_leader_replays_what_a_witness_holds(tmp_path: Path, witness: str) -> None:
    """Answered first, never appended: there after the leader was lost (invariant 5)."""
    log = LogStore()
    lost = Running(log.engine(), "r1", witnesses=[witness], **_LAZY)
    try:
        client, number = _registered(lost)
        for seq, account in enumerate(("alice", "bob", "carol"), 2):
            verdict = client.record(witness, account, account, seq, configuration=number, first=seq)
            assert verdict == "ACCEPTED"
            reply = client.deposit(account, account, seq, configuration=number, first=seq)
            assert (reply.ok, client.mark(reply)) == (True, "")
        with replica(log.engine(), "r2", witnesses=[witness]) as second:
            # As if it had been stopped in the middle: its number is taken from it.
            until(lambda: _expired(log, second), "the second leads")
            assert {key: second.bank.paid.get(key) for key in ("alice", "bob", "carol")} == {
                "alice": 1,
                "bob": 1,
                "carol": 1,
            }
            client.move(second.address)
            new = client.configuration().configuration
            assert new > number
            # The same identity at the new leader: its first answer, and it is synced.
            again = client.deposit("carol", "carol", 4, configuration=new, attempt=2)
            assert (again.outcome, client.mark(again)) == ("replayed", str(new))
            # The witness serves the new number only, and from empty.
            assert client.record(witness, "z", "z", 5, configuration=number) != "ACCEPTED"
            assert _held(witness).configuration == new
    finally:
        lost.stop()


def test_a_deposed_leader_drops_its_answers_and_follows(witness: str) -> None:
    """What it executed and never logged is gone from its state (invariant 4)."""
    log = LogStore()
    with replica(log.engine(), "r1", witnesses=[witness], **_LAZY) as first:
        client, number = _registered(first)
        # Not on the witness: nobody was told that this one is final.
        assert client.mark(client.deposit("lost", "alice", 2, configuration=number)) == ""
        assert first.bank.paid["lost"] == 1
        taken = log.engine()
        until(lambda: _take(log, taken), "the number is taken")
        waiting = client.begin_deposit("also lost", "alice", 3, configuration=number)
        assert waiting.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
        until(lambda: "lost" not in first.bank.paid, "it begins over")
        assert first.bank.paid == {"first": 1}
        first.until_leading()
        assert client.deposit("lost", "alice", 2, attempt=2).ok
        assert first.bank.paid == {"first": 1, "lost": 1}


def _expired(log: LogStore, other: Running) -> bool:
    leader = log.engine().leadership()
    if leader is not None and not leader.replica.startswith(other.replica.settings.name):
        log.end_lease()
    return other.replica.role == "leader"


def _take(log: LogStore, engine: GroupLog) -> bool:
    log.end_lease()
    return engine.take_leadership("thief", "127.0.0.1:1", term_s=0.5) > 0


def test_another_witness_list_is_in_force_only_under_a_new_number(
    tmp_path: Path, witness: str
) -> None:
    """What was answered first is synced before, and the old witness serves no more (11)."""
    log = LogStore()
    with (
        _witness(tmp_path, "w2") as other,  # type: ignore[attr-defined]
        replica(log.engine(), witnesses=[witness], group_token="ours", **_LAZY) as running,  # noqa: S106
    ):
        second, shown = other.line(), ((GROUP_TOKEN_KEY, "ours"),)
        client, number = _registered(running)
        client.deposit("a1", "alice", 2, configuration=number)
        tail = log.tail
        with grpc.insecure_channel(running.address) as channel:
            changed = curp_pb2_grpc.GroupStub(channel).ChangeWitnesses(
                pb.ChangeWitnessesRequest(witnesses=[second], configuration=number),
                timeout=30,
                metadata=shown,
            )
            assert (list(changed.witnesses), changed.configuration) == ([second], number + 1)
            assert log.tail == tail + 1
            with pytest.raises(grpc.RpcError):
                curp_pb2_grpc.GroupStub(channel).ChangeWitnesses(
                    pb.ChangeWitnessesRequest(witnesses=[], configuration=number),
                    timeout=30,
                    metadata=shown,
                )
        # A collection under the old number found that its witness is another's by now: the
        # leader would list the old witnesses again, and does not.
        list_keeper = running.replica._group_servicer.leading._list_keeper
        drive(list_keeper.again(number), list_keeper.step)
        assert list(running.replica.configuration().witnesses) == [second]
        assert running.replica.configuration().configuration == number + 1
        assert client.mark(client.deposit("b", "bob", 3, configuration=number)) == str(number + 1)
        assert client.record(second, "c", "carol", 4, configuration=number + 1) == "ACCEPTED"
        assert client.mark(client.deposit("c", "carol", 4, configuration=number + 1)) == ""


class _SlowToPublish:
    """An engine whose next write of metadata waits until it is told to go on."""

    def __init__(self, engine: GroupLog) -> None:
        self._engine = engine
        self.armed = False
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def put_metadata(self, *arguments: Any, **keywords: Any) -> None:
        if self.armed:
            self.armed = False
            self.reached.set()
            self.go_on.wait(60)
        self._engine.put_metadata(*arguments, **keywords)


def test_a_change_that_outlives_its_leadership_costs_the_next_one_nothing(witness: str) -> None:
    """What it finds refused ended with its own leadership (invariants 4 and 11)."""
    log = LogStore()
    engine = _SlowToPublish(log.engine())
    with replica(engine, witnesses=[witness]) as running:
        client, number = _registered(running)
        engine.armed = True
        with grpc.insecure_channel(running.address) as channel:
            request = pb.ChangeWitnessesRequest(witnesses=[witness], configuration=number)
            change = curp_pb2_grpc.GroupStub(channel).ChangeWitnesses.future(request, timeout=60)
            assert engine.reached.wait(60)
            until(lambda: _take(log, log.engine()), "the number is taken")
            # It finds out by what it appends.
            waiting = client.begin_deposit("lost", "alice", 3)
            assert waiting.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
            until(lambda: running.replica.role != "leader", "it steps down")
            running.until_leading()
            leads = client.configuration().configuration
            engine.go_on.set()
            assert change.exception(timeout=60) is not None
        assert client.deposit("after", "alice", 2, configuration=leads).ok
        assert client.configuration().configuration == leads


def test_a_witness_that_restarted_is_listed_under_a_new_number(tmp_path: Path) -> None:
    """It refuses until then, and the leader notices when it collects (invariants 2 and 11)."""
    process = Process("curp.witness", "--listen", "127.0.0.1:0", log=tmp_path / "w.err")
    try:
        address = process.line()
        with replica(LogStore().engine(), witnesses=[address]) as running:
            client, number = _registered(running)
            process.kill()
            process.close()
            process = Process("curp.witness", "--listen", address, log=tmp_path / "w.err")
            assert process.line() == address
            assert client.record(address, "x", "x", 2, configuration=number) != "ACCEPTED"
            assert client.deposit("x", "x", 2, configuration=number).ok
            new = until(
                lambda: (found := client.configuration().configuration) > number and found,
                "a new number",
            )
            until(lambda: _held(address).mode == "normal", "the witness is started")
            assert client.record(address, "y", "y", 3, configuration=new) == "ACCEPTED"
    finally:
        process.close()


def test_a_standby_names_the_leader_to_who_asks_for_a_lease(witness: str) -> None:
    """A client that knows one address of a group finds the others, also where it is new there."""
    log = LogStore()
    with replica(log.engine(), "added", witnesses=[witness]) as leads:
        leads.until_leading()
        with (
            replica(log.engine(), "known", witnesses=[witness]) as known,
            rifl.connect(known.address, follow_leaders=True) as channel,
        ):
            stub = bank_pb2_grpc.BankStub(channel)
            request = bank_pb2.DepositRequest(reference="a", account="alice", cents=1)
            stub.Deposit(request, timeout=30)
            assert leads.bank.paid == {"a": 1}


def _named_by(address: str) -> dict[str, bool]:
    """The addresses that ``curp status`` names, asked at one, and whether they answer."""
    statuses = OperatorClient([address], timeout_s=10.0).statuses()
    return {named: status is not None for named, status in statuses}


def test_replicas_are_added_and_removed_while_clients_have_the_old_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, witness: str
) -> None:
    """Any replica's status names all of them; one address that answers is enough for a client."""
    monkeypatch.setattr(replica_list, "_LOOK_S", 0.05)
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank")
    removed = Running(url, "removed", witnesses=[witness])
    with contextlib.ExitStack() as stack:
        stack.callback(removed.stop)
        removed.until_leading()
        kept = stack.enter_context(replica(url, "kept", witnesses=[witness]))
        added = stack.enter_context(replica(url, "added", witnesses=[witness]))
        everyone = dict.fromkeys((removed.address, kept.address, added.address), True)
        for asked in everyone:
            until(lambda at=asked: _named_by(at) == everyone, "all are named", 30)
        old_list = [removed.address, kept.address]

        def pay(channel: grpc.Channel, reference: str) -> None:
            request = bank_pb2.DepositRequest(reference=reference, account="alice", cents=1)
            bank_pb2_grpc.BankStub(channel).Deposit(request, timeout=30)

        with rifl.connect(old_list, follow_leaders=True) as before:
            pay(before, "a")
            removed.replica.transfer("added")
            added.until_leading()
            removed.stop()
            del everyone[removed.address]
            for asked in everyone:
                until(lambda at=asked: _named_by(at) == everyone, "the others are named", 30)
            pay(before, "b")
            with rifl.connect(old_list, follow_leaders=True) as after:
                pay(after, "c")
        assert added.bank.paid == {"a": 1, "b": 1, "c": 1}


def test_a_replica_that_crashed_is_named_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its address, which another group may have by then, whose replica is not taken for ours."""
    monkeypatch.setattr(replica_list, "_LOOK_S", 0.05)
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank")
    with (
        replica(LogStore().engine(), "stranger") as stranger,
        replica(url, "r1") as ours,
        contextlib.closing(open_engine(url)) as engine,
    ):
        ours.until_leading()
        stranger.until_leading()
        replica_list.change_replicas(engine, lambda found: found | {stranger.address})
        both = {ours.address: True, stranger.address: False}
        until(lambda: _named_by(ours.address) == both, "it is named", 30)
        assert main(["status", ours.address]) == 3
        assert "another group" in capsys.readouterr().out
        assert main(["forget", url, stranger.address]) == 0
        until(lambda: _named_by(ours.address) == {ours.address: True}, "it is forgotten", 30)
        assert main(["status", ours.address]) == 0
        assert main(["forget", url, stranger.address]) == 1
