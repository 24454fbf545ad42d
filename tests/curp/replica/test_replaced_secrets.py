"""Secrets are replaced in a group, over its log, before and after a change of leader."""

from __future__ import annotations

import pytest

import rifl
from _rifl_ground.refusals import NotLeader
from chaos.sim.group.log import LogStore
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.curp.replica.running import Running, replica

OLD, NEW, OTHERS = ("drawn at random: " + each for each in ("old", "new", "others"))


def _deposit(target: str, name: str, secret: str | list[str]) -> int | str:
    """Pay once in a session; which entry the payment is, or why it is refused."""
    with rifl.connect(target, session=name, secret=secret) as channel:
        request = bank_pb2.DepositRequest(reference=name, account="alice", cents=5)
        try:
            receipt = bank_pb2_grpc.BankStub(channel).Deposit(
                request, timeout=60, metadata=(rifl.key("one and the same".ljust(255)),)
            )
        except rifl.CallError as error:
            return error.reason
        return int(receipt.entry)


def test_a_group_takes_a_new_secret_beside_the_old_and_keeps_it() -> None:
    """One entry of the log has it, for a session and for all numbers of a series (§5, §7)."""
    log = LogStore()
    names = ("nightly", "query#1", "query#2")
    first = Running(log.engine(), "r1")
    first.until_leading()
    with replica(log.engine(), "r2") as second:
        paid = [_deposit(first.address, name, OLD) for name in names]
        assert [type(entry) for entry in paid] == [int] * 3
        assert _deposit(first.address, "nightly", [NEW, OTHERS]) == "NOT_YOURS"
        for name in ("nightly", "query#2"):
            assert _deposit(first.address, name, [NEW, OLD]) in paid
        assert [_deposit(first.address, name, OLD) for name in names] == ["NOT_YOURS"] * 3
        first.stop()
        second.until_leading()
        assert [_deposit(second.address, name, OLD) for name in names] == ["NOT_YOURS"] * 3
        assert [_deposit(second.address, name, NEW) for name in names] == paid


def test_a_groups_signing_secret_is_rotated_while_a_client_calls() -> None:
    """The log has it beside the one before, whose tokens count meanwhile (§5, §7)."""
    log = LogStore()
    first = Running(log.engine(), "r1")
    first.until_leading()
    with (
        replica(log.engine(), "r2") as second,
        rifl.connect([first.address, second.address], follow_leaders=True) as channel,
    ):
        bank = bank_pb2_grpc.BankStub(channel)

        def deposit() -> int:
            request = bank_pb2.DepositRequest(reference="r", account="alice", cents=5)
            return int(bank.Deposit(request, timeout=60).balance_cents)

        assert deposit() == 5
        with pytest.raises(NotLeader):
            second.replica.rotate_secret()
        assert first.replica.rotate_secret() == 1
        assert deposit() == 10
        first.stop()
        second.until_leading()
        assert deposit() == 15
        assert second.replica.rotate_secret() == 2
        assert deposit() == 20
