"""Troubles of a replica, and its reports of them (DESIGN §7; invariants 3, 5, 10 and 13)."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from chaos.sim.group.log import LogStore, Moment
from curp._cli.command import main
from curp._core.entries import ClientRegistered
from curp._wire.entries import entry_to_bytes
from curp.log._errors import LogUnavailable
from curp.log._values import NewLogEntry
from curp.v1 import curp_pb2 as pb
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.ledger import Bank
from tests.curp.replica.running import replica
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.waiting import until

_DEADLINE_S = 60.0


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[str]:
    """One witness, in memory."""
    with started("curp.witness", "--listen", "127.0.0.1:0", log=tmp_path / "w.err") as process:
        yield process.line()


class _Chancy(Bank):
    """Answers by chance of its own."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        receipt = super().Deposit(request, context)
        receipt.entry = random.getrandbits(60)
        return receipt


def test_a_handler_that_answers_otherwise_in_replay_stops_the_replica() -> None:
    """It is detected and named, and the replica does not serve (DESIGN §7)."""
    log = LogStore()
    with replica(log.engine(), factory=_Chancy) as running:
        running.until_leading()
        assert ByHand(running.address).deposit("one", "alice", 1).ok
        with replica(log.engine(), "r2", factory=_Chancy) as second:
            until(lambda: second.replica.role == "stopped", "it stops", _DEADLINE_S)
            assert "Diverged" in second.replica.waiting_for
            assert "/bank.v1.Bank/Deposit" in second.replica.waiting_for
    # Nor does it lead, when nobody else does.
    with replica(log.engine(), "r3", factory=_Chancy) as third:
        until(lambda: third.replica.role == "stopped", "it stops", _DEADLINE_S)
        assert third.replica.configuration().leader == ""


def test_a_request_that_cannot_be_read_replays_as_it_was_answered() -> None:
    """What a client sends stops no standby: errors are answers too (DESIGN §7)."""
    log = LogStore()
    with replica(log.engine()) as running, replica(log.engine(), "r2") as second:
        until(lambda: "leader" in (running.replica.role, second.replica.role), "one leads", 60.0)
        leader, standby = running, second
        if second.replica.role == "leader":
            leader, standby = second, running
        client = ByHand(leader.address)
        assert client.send(b"\xff not a request", 1).code is grpc.StatusCode.INTERNAL
        assert client.deposit("", "", 2).ok
        tail = leader.replica.status().tail
        until(lambda: standby.replica.status().applied >= tail, "it follows", _DEADLINE_S)
        assert standby.replica.role == "standby"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (pb.LogEntry(version=2).SerializeToString(), "newer"),
        (b"\xff\xff\xff", "no log entry"),
        (
            pb.LogEntry(version=1, operation=pb.Operation(client_id=1)).SerializeToString(),
            "identity",
        ),
    ],
)
def test_a_log_that_cannot_be_read_stops_the_replica(body: bytes, named: str) -> None:
    """Written by a newer version, or damaged: never skipped, never served over (DESIGN §7)."""
    log = LogStore()
    engine = log.engine()
    number = engine.take_leadership("other", "127.0.0.1:1", term_s=0.01)
    entries = [NewLogEntry(entry_to_bytes(ClientRegistered(1))), NewLogEntry(body)]
    engine.append(entries, configuration=number, expected_tail=0, append_id=b"i" * 16)
    with replica(log.engine()) as running:
        until(lambda: running.replica.role == "stopped", "it stops", _DEADLINE_S)
        assert "CorruptLog" in running.replica.waiting_for
        assert named in running.replica.waiting_for


def test_a_leader_cut_off_from_the_engine_answers_no_reads(
    witness: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """First answers go on up to the bound, since the witness has them; reads do not (3, 10)."""
    log = LogStore()
    cut = False

    def fault(operation: str, moment: Moment) -> None:
        if cut and moment is Moment.BEFORE:
            raise LogUnavailable("the engine is cut off")

    with replica(
        log.engine(fault),
        witnesses=[witness],
        tuning={"max_unsynced": 3, "batch_delay_s": 0.001, "lease_term_s": 2.0},
    ) as running:
        running.until_leading()
        client = ByHand(running.address)
        number = client.configuration().configuration
        assert client.deposit("first", "opening", 1).ok
        cut = True
        seqs = itertools.count(2)
        for account in "abc":
            seq = next(seqs)
            assert client.record(witness, account, account, seq, configuration=number) == "ACCEPTED"
            assert client.mark(client.deposit(account, account, seq, configuration=number)) == ""
        # The bound is full: this one waits for the log.
        waiting = client.begin_deposit("d", "d", next(seqs), configuration=number)
        until(
            lambda: client.balance("x", next(seqs), configuration=number).reason == "NOT_LEADER",
            "calls are refused once the lease is over: another may lead",
            _DEADLINE_S,
        )
        refused = client.deposit("x", "x", next(seqs), configuration=number)
        assert (refused.reason, refused.outcome) == ("NOT_LEADER", "unknown")
        assert not waiting.done()
        assert "cut off" in running.replica.waiting_for
        assert main(["status", running.address]) == 1
        assert "  leader whose lease is over  " in capsys.readouterr().out
        cut = False
        assert waiting.result(timeout=_DEADLINE_S)
        until(
            lambda: client.balance("a", next(seqs), configuration=number).ok,
            "it leads on",
            _DEADLINE_S,
        )
        assert all(running.bank.paid[account] == 1 for account in "abcd")


def test_what_a_witness_may_hold_is_not_said_to_be_not_executed(witness: str) -> None:
    """A refusal that is in no log leaves the outcome open for such a call (invariant 13)."""
    log = LogStore()
    with replica(log.engine(), witnesses=[witness]) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        number = client.configuration().configuration
        assert client.deposit("first", "opening", 1).ok
        with replica(log.engine(), "r2", witnesses=[witness]) as standby:
            until(lambda: standby.replica.configuration().leader, "it follows", _DEADLINE_S)
            client.move(standby.address)
            plain = client.deposit("x", "x", 2)
            assert (plain.reason, plain.outcome) == ("NOT_LEADER", "not-executed")
            recorded = client.deposit("x", "x", 2, configuration=number)
            assert (recorded.reason, recorded.outcome) == ("NOT_LEADER", "unknown")
            client.move(leader.address)


def test_an_expired_client_is_told_so_only_when_the_log_says_it(witness: str) -> None:
    """Until its removal is logged a later leader may run its requests (invariants 7 and 13)."""
    log = LogStore()
    cut = False

    def fault(operation: str, moment: Moment) -> None:
        if cut and operation == "append" and moment is Moment.BEFORE:
            raise LogUnavailable("appends are cut off")

    with replica(log.engine(fault), witnesses=[witness], tuning={"client_term_s": 1.0}) as running:
        running.until_leading()
        client = ByHand(running.address)
        number = client.configuration().configuration
        assert client.deposit("first", "opening", 1).ok
        cut = True
        # Its lease runs out; the removal cannot be logged.
        until(
            lambda: not running.replica._authority.alive(client.client_id),
            "the lease is over",
            _DEADLINE_S,
        )
        for told in (number, 0):
            # On no witness, a late copy of it may find a later leader all the same.
            refused = client.deposit("x", "x", 2, configuration=told)
            assert (refused.reason, refused.outcome) == ("IN_PROGRESS", "unknown")
        cut = False
        until(
            lambda: client.deposit("x", "x", 2, configuration=number).reason == "LEASE_EXPIRED",
            "the removal is logged",
            _DEADLINE_S,
        )
        assert "x" not in running.bank.paid


def test_an_engine_outage_expires_no_client_of_a_leader_that_stays() -> None:
    """Nobody could renew meanwhile: a full new term when the lease resumes (DESIGN §5)."""
    log = LogStore()
    cut = False

    def fault(operation: str, moment: Moment) -> None:
        if cut and moment is Moment.BEFORE:
            raise LogUnavailable("the engine is cut off")

    with replica(log.engine(fault), tuning={"client_term_s": 1.0, "lease_term_s": 0.3}) as running:
        running.until_leading()
        client = ByHand(running.address)
        configuration = running.replica.status().configuration.configuration
        assert client.deposit("before", "a", 1).ok
        cut = True
        until(
            lambda: not running.replica._authority.alive(client.client_id),
            "the outage is longer than the client's term",
            _DEADLINE_S,
        )
        assert client.deposit("during", "a", 2).reason == "NOT_LEADER"
        cut = False
        until(running.replica._store.takes_calls, "the lease resumes", _DEADLINE_S)
        assert running.replica._authority.alive(client.client_id)
        assert client.deposit("during", "a", 2).ok
        assert running.replica.status().configuration.configuration == configuration
        # It is no eternal life: who does not call is expired a term later.
        until(
            lambda: not running.replica._authority.alive(client.client_id),
            "its new term is over, too",
            _DEADLINE_S,
        )


class _Unkept(bank_pb2_grpc.BankServicer):
    """Has no snapshot and no restore."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        return bank_pb2.Receipt(entry=1)


@pytest.mark.parametrize(("factory", "warned"), [(_Unkept, True), (Bank, False)])
def test_a_log_that_nothing_trims_is_warned_of(factory: Any, warned: bool) -> None:
    """Every replica reads all of it when it starts, so somebody should know (operations)."""
    with replica(LogStore().engine(), factory=factory, tuning={"snapshot_entries": 5}) as running:
        running.until_leading()
        client = ByHand(running.address)
        for seq in range(1, 7):
            assert client.deposit(str(seq), "a", seq).ok
        warnings = list(running.replica.status().warnings)
        assert bool(warnings) is warned
        assert all("nothing trims it" in warning for warning in warnings)


def test_a_replica_takes_over_when_it_has_the_log_s_end() -> None:
    """Who is still reading leaves the leadership to one that has caught up (invariant 10)."""
    log = LogStore()
    filler = log.engine()
    number = filler.take_leadership("filler", "127.0.0.1:1", term_s=0.001)
    entries = [NewLogEntry(entry_to_bytes(ClientRegistered(each))) for each in range(1, 5001)]
    filler.append(entries, configuration=number, expected_tail=0, append_id=b"i" * 16)
    filler.end_leadership(number)
    applied: list[int] = []
    lags: list[int] = []
    made = threading.Event()

    def note(operation: str, moment: Moment) -> None:
        if operation == "read" and moment is Moment.BEFORE and not lags:
            made.wait(_DEADLINE_S)
            report = running.replica.report()
            lags.append((report.tail or 0) - report.applied)

    engine = log.engine(note)
    take = engine.take_leadership

    def note_taken(*given: Any, **more: Any) -> int:
        made.wait(_DEADLINE_S)
        applied.append(running.replica._store.state.applied)
        return take(*given, **more)

    engine.take_leadership = note_taken  # type: ignore[method-assign]
    with replica(engine) as running:
        made.set()
        running.until_leading()
        assert applied[0] == 5000
        # While it read on, it said how far behind it was.
        assert lags == [5000]


def test_a_resolved_call_stays_not_executed_for_a_later_leader(witness: str) -> None:
    """The refusal is an entry, so what the witness holds is filtered by it (invariant 13)."""
    log = LogStore()
    with replica(log.engine(), witnesses=[witness]) as running:
        running.until_leading()
        client = ByHand(running.address)
        number = client.configuration().configuration
        assert client.deposit("first", "opening", 1).ok
        assert client.record(witness, "never", "alice", 2, configuration=number) == "ACCEPTED"
        assert client.resolve(2) == "OUTCOME_NOT_EXECUTED"
    with replica(log.engine(), "r2", witnesses=[witness]) as second:
        second.until_leading()
        assert "never" not in second.bank.paid
        client.move(second.address)
        again = client.deposit("never", "alice", 2, attempt=2)
        assert (again.reason, again.outcome) == ("NOT_EXECUTED", "not-executed")


def test_a_witness_that_comes_later_is_listed_then(tmp_path: Path) -> None:
    """A leader that could not start it serves without, and asks again (invariant 11)."""
    address = f"127.0.0.1:{free_port()}"
    with replica(
        LogStore().engine(), witnesses=[address], tuning={"witness_timeout_s": 0.3}
    ) as running:
        running.until_leading()
        assert list(running.replica.configuration().witnesses) == []
        with started("curp.witness", "--listen", address, log=tmp_path / "w.err"):
            until(
                lambda: list(running.replica.configuration().witnesses) == [address],
                "the witness is listed",
                _DEADLINE_S,
            )
            client = ByHand(running.address)
            number = client.configuration().configuration
            assert client.record(address, "x", "x", 1, configuration=number) == "ACCEPTED"


def test_a_key_is_kept_for_its_retention_on_every_replica() -> None:
    """A standby lets go of plain keys, too, and a leader runs the key again then (DESIGN §4)."""
    log = LogStore()
    more: dict[str, Any] = {"keys_from": "anyone", "key_retention_s": 4.0}
    with replica(log.engine(), **more) as first:
        first.until_leading()
        with replica(log.engine(), "r2", **more) as second:
            body = bank_pb2.DepositRequest(reference="r", account="a", cents=1).SerializeToString()
            with grpc.insecure_channel(first.address) as channel:
                deposit = channel.unary_unary("/bank.v1.Bank/Deposit")
                for _ in range(2):
                    deposit(body, metadata=(("idempotency-key", "once"),), timeout=20)
                assert first.bank.paid["r"] == 1
                until(lambda: second.bank.paid == {"r": 1}, "the standby has it", _DEADLINE_S)
                for running in (first, second):
                    until(
                        lambda running=running: not running.replica._store.statistics()[1],  # type: ignore[misc]
                        "the key goes",
                        _DEADLINE_S,
                    )
                deposit(body, metadata=(("idempotency-key", "once"),), timeout=20)
                assert first.bank.paid["r"] == 2
                until(lambda: second.bank.paid == {"r": 2}, "the standby has it", _DEADLINE_S)
