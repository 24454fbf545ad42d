"""Batched calls to a group, sync and aio: each its own entry, all in one append (DESIGN §4, §7)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

import curp
import rifl
import rifl.aio
from _rifl_ground.refusals import Outcome
from chaos.sim.group.log import LogStore
from curp._wire.entries import entry_from_bytes
from examples.bank.v1 import bank_pb2
from lease_server.v1 import lease_server_pb2, lease_server_pb2_grpc
from rifl import BatchItem, MethodPolicy
from rifl.core._serving.policy import PolicyError
from tests.curp.logs import created
from tests.curp.replica.ledger import CONFLICTS
from tests.curp.replica.running import Running, replica
from tests.curp.replica.test_aio import _Running as RunningAio
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.raw import SESSION_SECRET
from tests.helpers.waiting import until

_DEPOSIT = "/bank.v1.Bank/Deposit"
_TRANSFER = "/bank.v1.Bank/Transfer"


def _items(prefix: str, count: int, accounts: int = 3) -> list[BatchItem]:
    return [
        BatchItem(
            bank_pb2.DepositRequest(
                reference=f"{prefix}{n}", account=f"a{n % accounts}", cents=1
            ).SerializeToString(deterministic=True),
            key=f"{prefix}{n}".encode(),
        )
        for n in range(count)
    ]


def _receipts(results: Any) -> list[tuple[int, int]]:
    for result in results:
        assert result.ok, result
    receipts = [bank_pb2.Receipt.FromString(result.response) for result in results]
    return [(receipt.entry, receipt.balance_cents) for receipt in receipts]


def _operations(log: LogStore) -> list[Any]:
    entries = log.engine().read(0)
    found = [entry_from_bytes(entry.lsn, entry.body) for entry in entries]
    return [entry for entry in found if getattr(entry, "method", "") == _DEPOSIT]


class _Counting:
    """An engine that counts its appends, and how much each of them brought."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.appends: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def append(self, entries: Any, **more: Any) -> int:
        self.appends.append(len(entries))
        tail: int = self._engine.append(entries, **more)
        return tail


def test_a_batch_is_one_append_of_an_entry_for_each_call() -> None:
    """Calls that conflict run in the batch's order, and each leaves its entry (DESIGN §7)."""
    log = LogStore()
    engine = _Counting(log.engine())
    with replica(engine) as running, rifl.connect(running.address, session="s") as channel:
        running.until_leading()
        channel.batch(_DEPOSIT, _items("first", 1), timeout=60)
        del engine.appends[:]
        results = channel.batch(_DEPOSIT, _items("p", 12), timeout=60)
        # a0 has the opening payment, too.
        assert _receipts(results)[:6] == [(2, 2), (1, 1), (1, 1), (3, 3), (2, 2), (2, 2)]
        assert engine.appends.count(12) == 1
        assert [entry.key for entry in _operations(log)][1:] == [b"p%d" % n for n in range(12)]
        again = channel.batch(_DEPOSIT, _items("p", 12), timeout=60)
        assert {result.outcome for result in again} == {Outcome.REPLAYED}
        assert _receipts(again) == _receipts(results)
        assert set(running.bank.paid.values()) == {1}


def test_a_batch_and_single_calls_take_turns() -> None:
    """What conflicts with a call of the batch waits for the batch, and nothing deadlocks."""
    with (
        replica(LogStore().engine()) as running,
        rifl.connect(running.address, session="s") as channel,
        rifl.connect(running.address) as other,
    ):
        running.until_leading()
        futures = [
            channel.batch_future(_DEPOSIT, _items(f"b{number}-", 30), timeout=60)
            for number in range(8)
        ]
        stub = other.unary_unary(_DEPOSIT)
        singles = [
            stub.future(item.request, timeout=60) for item in _items("single", 30, accounts=2)
        ]
        for single in singles:
            single.result()
        for future in futures:
            _receipts(future.result(timeout=60))
        assert sum(running.bank.balances.values()) == 8 * 30 + 30
        assert set(running.bank.paid.values()) == {1}
        until(lambda: running.replica._store.count_running() == 0, "all turns are given back", 20)


def test_a_call_of_a_batch_that_fails_takes_no_other_with_it() -> None:
    """Each call has its own verdict: an error, a payload that does not fit its identity."""
    log = LogStore()
    with (
        replica(log.engine()) as running,
        rifl.connect(running.address, session="s") as channel,
    ):
        running.until_leading()
        transfers = [
            bank_pb2.TransferRequest(from_account=giver, to_account="b", cents=1)
            for giver in ("a0", "nobody", "a0")
        ]
        channel.batch(_DEPOSIT, _items("p", 6), timeout=60)
        results = channel.batch(
            _TRANSFER,
            [BatchItem(one.SerializeToString(), f"t{n}") for n, one in enumerate(transfers)],
            timeout=60,
        )
        assert [result.ok for result in results] == [True, False, True]
        other = _items("q", 6)[5].request
        mixed = [*_items("p", 2), BatchItem(other, key=b"p2"), *_items("n", 1)]
        verdicts = channel.batch(_DEPOSIT, mixed, timeout=60)
        assert [(result.ok, result.reason) for result in verdicts] == [
            (True, ""),
            (True, ""),
            (False, "PAYLOAD_MISMATCH"),
            (True, ""),
        ]


def test_batches_of_a_named_session_outlive_the_leader() -> None:
    """What Spark's tasks send: rows of a numbered session, again after a change of leader (§8)."""
    log = LogStore()
    first = Running(log.engine(), "r1")
    first.until_leading()
    with replica(log.engine(), "r2") as second:
        targets = [first.address, second.address]
        with rifl.connect(targets, follow_leaders=True, session="query#1") as task:
            before = _receipts(task.batch(_DEPOSIT, _items("row", 40), timeout=60))
        first.stop()
        second.until_leading()
        with rifl.connect(second.address, session="query#1") as again:
            results = again.batch(_DEPOSIT, _items("row", 41), timeout=60)
        assert _receipts(results)[:40] == before
        outcomes = [result.outcome for result in results]
        assert outcomes == [Outcome.REPLAYED] * 40 + [Outcome.EXECUTED]
        with grpc.insecure_channel(second.address) as channel:
            leases = lease_server_pb2_grpc.LeaseServerStub(channel)
            closing = lease_server_pb2.CloseSessionRequest(name="query#1", secret=SESSION_SECRET)
            leases.CloseSession(closing, timeout=60)
        with rifl.connect(second.address, session="query#1") as zombie:
            late = zombie.batch(_DEPOSIT, _items("late", 1), timeout=60)
        assert (late[0].ok, late[0].reason) == (False, "SESSION_CLOSED")
        assert set(second.bank.paid.values()) == {1}


async def test_batches_on_an_event_loop_and_on_the_next_leader() -> None:
    """The same with coroutines; the next leader replays what the first one answered."""
    log = LogStore()
    first = RunningAio(log.engine(), "r1")
    await first.start()
    await first.until("leader")
    second = RunningAio(log.engine(), "r2")
    await second.start()
    try:
        targets = [first.address, second.address]
        async with rifl.aio.connect(targets, follow_leaders=True, session="s") as channel:
            batches = await asyncio.gather(
                *(channel.batch(_DEPOSIT, _items(f"b{n}-", 20), timeout=60) for n in range(4))
            )
            await first.stop()
            await second.until("leader")
            for number, before in enumerate(batches):
                again = await channel.batch(_DEPOSIT, _items(f"b{number}-", 20), timeout=60)
                assert _receipts(again) == _receipts(before)
        assert set(second.servicer.current.paid.values()) == {1}
        assert len(second.servicer.current.paid) == 80
    finally:
        await second.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("point", "times"), [("executed", 3), ("appended", 4), ("reply", 4)])
def test_a_leader_killed_in_the_middle_of_a_batch(tmp_path: Path, point: str, times: int) -> None:
    """The client sends it to the next leader, with the same identities: each effect once (5)."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank")

    def start(number: int, **more: Any) -> Any:
        given = {
            "url": url,
            "name": f"r{number}",
            "address": addresses[number],
            **more,
        }
        log = tmp_path / f"r{number}.err"
        return started("tests.curp.replica.server", json.dumps(given), log=log)

    with start(0, die_at=[point, times]) as leader:
        until(lambda: leader.line(60) == "leader", "the first one leads", 60)
        with start(1), rifl.connect(addresses, follow_leaders=True, session="s") as channel:
            entries = []
            for number in range(4):
                results = channel.batch(_DEPOSIT, _items(f"b{number}-", 9), timeout=120)
                entries += _receipts(results)
            assert leader.wait() == -signal.SIGKILL
            # Twelve payments into each of three accounts, numbered without a gap.
            assert sorted(entry for entry, _ in entries) == sorted([*range(1, 13)] * 3)
            again = channel.batch(_DEPOSIT, _items("b0-", 9), timeout=60)
            assert {result.outcome for result in again} == {Outcome.REPLAYED}


def test_calls_of_a_batch_run_in_its_order() -> None:
    """Handlers that run at once would be in the log in another order: refused at start-up."""
    with pytest.raises(PolicyError, match="batch_concurrency"):
        curp.Replica(
            LogStore().engine(),
            name="r1",
            address="127.0.0.1:1",
            conflict_keys=CONFLICTS,
            methods={_DEPOSIT: MethodPolicy(required=True, batch_concurrency=4)},
        )


def test_a_standby_names_the_leader_to_a_batch() -> None:
    """Not executed there, and the client goes on (DESIGN §3, NOT_LEADER)."""
    log = LogStore()
    with replica(log.engine()) as leader:
        leader.until_leading()
        standby = Running(log.engine(), "r2")
        try:
            targets = [standby.address, leader.address]
            with rifl.connect(targets, follow_leaders=True, session="s") as channel:
                _receipts(channel.batch(_DEPOSIT, _items("p", 5), timeout=60))
        finally:
            standby.stop()
