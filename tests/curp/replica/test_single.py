"""One replica without witnesses: plain clients, restarts, reads (DESIGN §7, invariants 1, 8, 9)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import curp
import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.logs import created
from tests.curp.replica.running import RawClient, replica


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log of its own."""
    return created(f"sqlite:///{tmp_path}/bank.log?group=bank")


def _deposit(stub: Any, reference: str, account: str = "alice", cents: int = 5) -> Any:
    request = bank_pb2.DepositRequest(reference=reference, account=account, cents=cents)
    return stub.Deposit(request, timeout=30)


def test_a_plain_client_is_served_and_everything_is_in_the_log(url: str) -> None:
    """Calls without a configuration number are synced before their answer (invariant 1)."""
    with replica(url) as running:
        running.until_leading()
        with rifl.connect(running.address) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda n: _deposit(stub, f"p{n}"), range(40)))
            reply = stub.Balance(bank_pb2.BalanceRequest(account="alice"), timeout=30)
            assert reply.balance_cents == 200
            with pytest.raises(grpc.RpcError) as refused:
                stub.Transfer(
                    bank_pb2.TransferRequest(
                        reference="t", from_account="nobody", to_account="alice", cents=1
                    ),
                    timeout=30,
                )
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            # Before the client's end, which is an entry of its own.
            status = running.replica.status()
        assert status.unsynced == 0
        assert status.applied == status.tail
        assert set(running.bank.paid.values()) == {1}
        assert running.replica.answered()["fast"] == 0


def test_a_restart_rebuilds_the_state_and_the_records_from_the_log(url: str) -> None:
    """Replay runs the same handlers, and a retry gets its first answer (DESIGN §7)."""
    with replica(url) as running:
        running.until_leading()
        raw = RawClient(running.address)
        request = bank_pb2.DepositRequest(reference="once", account="alice", cents=7)
        body = request.SerializeToString()
        first = raw.call("/bank.v1.Bank/Deposit", body, 1)
        assert first.ok
    with replica(url) as running:
        running.until_leading()
        raw.move(running.address)
        again = raw.call("/bank.v1.Bank/Deposit", body, 1, attempt=2)
        assert (again.ok, again.outcome, again.response) == (True, "replayed", first.response)
        assert running.bank.paid == {"once": 1}


def test_a_snapshot_takes_the_place_of_the_log(url: str) -> None:
    """State, records and clients come from it, and the entries behind it (invariant 8)."""
    with replica(url) as running:
        running.until_leading()
        raw = RawClient(running.address)
        for seq in range(1, 6):
            body = bank_pb2.DepositRequest(reference=f"p{seq}", account="a", cents=1)
            assert raw.call("/bank.v1.Bank/Deposit", body.SerializeToString(), seq).ok
        lsn = running.replica.snapshot()
        assert lsn == running.replica.status().tail
        body = bank_pb2.DepositRequest(reference="p6", account="a", cents=1)
        assert raw.call("/bank.v1.Bank/Deposit", body.SerializeToString(), 6).ok
    with replica(url) as running:
        running.until_leading()
        assert running.bank.paid == {f"p{seq}": 1 for seq in range(1, 7)}
        raw.move(running.address)
        for seq in (2, 6):
            body = bank_pb2.DepositRequest(reference=f"p{seq}", account="a", cents=1)
            reply = raw.call("/bank.v1.Bank/Deposit", body.SerializeToString(), seq, attempt=2)
            assert reply.outcome == "replayed"
        assert set(running.bank.paid.values()) == {1}


def test_a_call_without_an_identity_is_refused(url: str) -> None:
    """What is not in the log must not change the state (DESIGN §7)."""
    with replica(url) as running:
        running.until_leading()
        with grpc.insecure_channel(running.address) as channel, pytest.raises(grpc.RpcError):
            _deposit(bank_pb2_grpc.BankStub(channel), "plain")
        assert running.bank.paid == {}


def test_a_server_without_the_interceptor_is_refused(url: str) -> None:
    """No replica hosts a group on a server whose calls would pass the log by (add_to_server)."""
    alone = curp.Replica(url, name="r1", address="127.0.0.1:1")
    try:
        server = grpc.server(ThreadPoolExecutor(1))
        with pytest.raises(rifl.PolicyError, match=r"interceptors=\[replica.interceptor\(\)\]"):
            alone.add_to_server(server)
    finally:
        alone.close()
