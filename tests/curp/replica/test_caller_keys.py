"""Conflict keys that a callable finds, at the replicas and at the client (DESIGN §7: 2, 3, 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rifl
import rifl.aio
from chaos.sim.group.log import LogStore
from curp._core.conflict_keys import keys_of_values
from curp.client import statistics
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.by_hand import DEPOSIT, ByHand
from tests.curp.replica.running import Running, replica
from tests.helpers.processes import started
from tests.helpers.waiting import until

# Nothing is appended by time: what is unsynced stays so until somebody asks.
_LAZY: dict[str, Any] = {"tuning": {"batch_delay_s": 600.0}}


def _account(request: Any) -> Any:
    return request.account


_BY_CALLABLE = {"conflict_keys": {DEPOSIT: _account}, "read_only": []}


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[str]:
    """One witness, in memory."""
    with started("curp.witness", "--listen", "127.0.0.1:0", log=tmp_path / "w.err") as process:
        yield process.line()


def _registered(running: Running) -> tuple[ByHand, int]:
    running.until_leading()
    client = ByHand(running.address)
    number = client.configuration().configuration
    assert client.deposit("first", "opening", 1).ok
    return client, number


def _taken(log: LogStore, second: Running) -> bool:
    leader = log.engine().leadership()
    if leader is not None and not leader.replica.startswith("r2"):
        log.end_lease()
    return second.replica.role == "leader"


def _entry(reply: Any) -> int:
    assert reply.ok, reply
    return bank_pb2.Receipt.FromString(reply.response).entry


def test_a_wrong_key_cannot_change_what_was_answered(witness: str) -> None:
    """A conflicting request that a wrong key got past the witness runs behind the answered one."""
    log = LogStore()
    lost = Running(log.engine(), "r1", witnesses=[witness], **_LAZY, **_BY_CALLABLE)
    try:
        client, number = _registered(lost)
        wrong, right = keys_of_values("nobody's"), keys_of_values("alice")
        # On the witness alone, and by its number it would be run again first.
        for seq, reference, keys in ((2, "wrong", wrong), (3, "right", right)):
            verdict = client.record(
                witness, reference, "alice", seq, configuration=number, conflict_keys=keys
            )
            assert verdict == "ACCEPTED"
        answered = client.deposit("right", "alice", 3, configuration=number, conflict_keys=right)
        assert (client.mark(answered), _entry(answered)) == ("", 1)
        with replica(log.engine(), "r2", witnesses=[witness], **_BY_CALLABLE) as second:
            # As if it had been stopped in the middle: its number is taken from it.
            until(lambda: _taken(log, second), "the second leads", 60)
            client.move(second.address)
            new = client.configuration().configuration
            again = client.deposit("right", "alice", 3, configuration=new, attempt=2)
            assert (again.outcome, _entry(again)) == ("replayed", 1)
            assert _entry(client.deposit("wrong", "alice", 2, configuration=new, attempt=2)) == 2
    finally:
        lost.stop()


def test_the_leader_answers_first_only_under_keys_that_cover_its_own(witness: str) -> None:
    """Its own keys decide: others recorded, and the answer waits for the log (invariant 3)."""
    with replica(LogStore().engine(), witnesses=[witness], **_LAZY, **_BY_CALLABLE) as running:
        client, number = _registered(running)

        def mark(seq: int, *values: str) -> str:
            keys = keys_of_values(values) if values else ()
            reply = client.deposit(
                f"p{seq}", f"account{seq}", seq, configuration=number, conflict_keys=keys
            )
            return client.mark(reply)

        assert mark(2, "account2") == ""
        assert mark(3, "account3", "and more") == ""
        assert mark(4, "account5") == str(number)
        # Without keys a witness holds it alone.
        assert mark(5) == ""
        assert running.replica.answered()["other-keys"] == 1


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize(
    ("given", "fast"),
    [
        (_account, {5}),
        # What conflicts with everything is alone on the witness until it is synced.
        (None, {1, 2, 3}),
        (lambda request: request.reference, {0}),
        (lambda request: 1 / 0, {1, 2, 3}),
    ],
    ids=["same", "none", "wrong", "raising"],
)
async def test_a_client_with_the_same_callable_takes_one_round_trip(
    witness: str, kind: str, given: Callable[[Any], Any] | None, fast: set[int]
) -> None:
    """Its calls are recorded by its keys; whatever it finds, each is run once and answered."""
    keys = None if given is None else {DEPOSIT: given}
    with replica(LogStore().engine(), witnesses=[witness], **_LAZY, **_BY_CALLABLE) as running:
        running.until_leading()
        target = running.address
        if kind == "aio":
            async with rifl.aio.connect(target, conflict_keys=keys) as channel:
                stub = bank_pb2_grpc.BankStub(channel)
                counted = await _pay(channel, lambda request: stub.Deposit(request, timeout=60))
        else:
            with rifl.connect(target, conflict_keys=keys) as sync:
                blocking = bank_pb2_grpc.BankStub(sync)

                async def deposit(request: Any) -> Any:
                    return await asyncio.to_thread(blocking.Deposit, request, timeout=60)

                counted = await _pay(sync, deposit)
        assert counted in fast
        assert set(running.bank.paid.values()) == {1}


async def _pay(channel: Any, deposit: Callable[[Any], Any]) -> int:
    """Open the client's row and its path, pay five times; how many were fast."""
    async with asyncio.timeout(60):
        number = 0
        while (found := channel._client.path) is None or found.knowledge.view is None:
            request = bank_pb2.DepositRequest(reference=f"open{number}", account="open", cents=1)
            await deposit(request)
            number += 1
            await asyncio.sleep(0.01)
    before = statistics(channel)
    for number in range(5):
        receipt = await deposit(
            bank_pb2.DepositRequest(reference=f"p{number}", account=f"a{number}", cents=1)
        )
        assert receipt.entry == 1
    after = statistics(channel)
    assert before is not None
    assert after is not None
    return after.fast - before.fast


def test_what_is_no_callable_is_refused() -> None:
    """Fields are told by the group: only code has to be given twice."""
    with pytest.raises(ValueError, match="callable"):
        rifl.connect("127.0.0.1:1", conflict_keys={DEPOSIT: "account"})  # type: ignore[dict-item]
