"""The same group on ``grpc.aio.server``: coroutine handlers, replayed too (DESIGN §7)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

import curp
import rifl.aio
from chaos.sim.group.log import LogStore
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.ledger import CONFLICTS, READ_ONLY, AioBank
from tests.helpers.ports import free_port


class _Running:
    def __init__(self, engine: Any, name: str, **tuning: Any) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.replica = curp.Replica(
            engine,
            name=name,
            address=self.address,
            conflict_keys=CONFLICTS,
            read_only=READ_ONLY,
            tuning=curp.Tuning(lease_term_s=60.0, **tuning),
        )
        self.server = grpc.aio.server(interceptors=[self.replica.aio_interceptor()])
        self.servicer = self.replica.servicer(AioBank)
        bank_pb2_grpc.add_BankServicer_to_server(self.servicer, self.replica.registrar(self.server))
        self.replica.add_to_server(self.server)

    async def start(self) -> None:
        self.server.add_insecure_port(self.address)
        await self.server.start()
        self.replica.start()

    async def until(self, role: str) -> None:
        async with asyncio.timeout(60):
            while self.replica.role != role:
                assert self.replica.role != "stopped", self.replica.waiting_for
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.replica.aclose()
        await self.server.stop(None)


async def test_coroutine_handlers_run_once_and_replay_on_the_next_leader() -> None:
    """Leader, standby and take-over on event loops; errors replay as they were answered."""
    log = LogStore()
    first = _Running(log.engine(), "r1")
    await first.start()
    await first.until("leader")
    second = _Running(log.engine(), "r2")
    await second.start()
    try:
        targets = f"{first.address},{second.address}"
        async with rifl.aio.connect(targets) as channel:
            stub = bank_pb2_grpc.BankStub(channel)

            async def deposit(reference: str) -> Any:
                request = bank_pb2.DepositRequest(reference=reference, account="alice", cents=1)
                return await stub.Deposit(request, timeout=60)

            await asyncio.gather(*(deposit(f"p{n}") for n in range(20)))
            with pytest.raises(grpc.RpcError) as refused:
                await stub.Transfer(
                    bank_pb2.TransferRequest(from_account="nobody", to_account="alice", cents=1),
                    timeout=60,
                )
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            await first.stop()
            await second.until("leader")
            await asyncio.gather(*(deposit(f"q{n}") for n in range(20)))
            balance = await stub.Balance(bank_pb2.BalanceRequest(account="alice"), timeout=60)
        assert balance.balance_cents == 40
        assert len(second.servicer.current.paid) == 40
        assert set(second.servicer.current.paid.values()) == {1}
    finally:
        await second.stop()


async def test_an_idle_client_follows_the_leader_by_its_heartbeats() -> None:
    """It keeps its id, though it was given no address of the one that leads by then (§5)."""
    log = LogStore()
    known = _Running(log.engine(), "known", client_term_s=3.0)
    await known.start()
    await known.until("leader")
    added = _Running(log.engine(), "added", client_term_s=3.0)
    await added.start()
    try:
        async with rifl.aio.connect(known.address, follow_leaders=True) as channel:
            stub = bank_pb2_grpc.BankStub(channel)
            request = bank_pb2.DepositRequest(reference="a", account="alice", cents=1)
            await stub.Deposit(request, timeout=60)
            before = channel.session.client_id
            targets = channel._inner.router.targets
            await asyncio.to_thread(known.replica.transfer, "added")
            await added.until("leader")
            async with asyncio.timeout(60):
                while targets.addresses[targets.current] != added.address:
                    await asyncio.sleep(0.01)
            request = bank_pb2.DepositRequest(reference="b", account="alice", cents=1)
            await stub.Deposit(request, timeout=60)
            assert channel.session.client_id == before
    finally:
        await known.stop()
        await added.stop()
