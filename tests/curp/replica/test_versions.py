"""Replicas of several versions of one application over one log (DESIGN §7)."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.sim.group.log import LogStore
from curp._cli.command import main
from curp._cli.operator_client import GroupError, OperatorClient
from examples.bank.v1 import bank_pb2
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.ledger import Bank
from tests.curp.replica.running import replica
from tests.helpers.waiting import until

_DEADLINE_S = 60.0


class _Second(Bank):
    """Tells one field more."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        receipt = super().Deposit(request, context)
        receipt.MergeFromString(bank_pb2.TransferRequest(to_account="EUR").SerializeToString())
        return receipt


def test_across_versions_the_logs_answer_stands_in_both_directions() -> None:
    """Newer replays older and older replays newer: states agree, answers are the log's (§7)."""
    log = LogStore()
    with replica(log.engine(), application_version=1) as first:
        first.until_leading()
        client = ByHand(first.address)
        assert client.deposit("one", "a", 1).ok
        told = client.deposit("one", "a", 1, attempt=2).response
    with replica(log.engine(), "r2", factory=_Second, application_version=2) as second:
        second.until_leading()
        client.move(second.address)
        again = client.deposit("one", "a", 1, attempt=2)
        assert (again.outcome, again.response) == ("replayed", told)
        assert client.deposit("two", "a", 2).ok
        newer = client.deposit("two", "a", 2, attempt=2).response
        assert b"EUR" in newer
        assert second.bank.paid == {"one": 1, "two": 1}
    with replica(log.engine(), application_version=1) as back:
        back.until_leading()
        client.move(back.address)
        again = client.deposit("two", "a", 2, attempt=2)
        assert (again.outcome, again.response) == ("replayed", newer)
        assert back.bank.paid == {"one": 1, "two": 1}


def test_a_newer_leader_saves_no_snapshot_until_the_upgrade_is_finalized() -> None:
    """What it writes an older replica could not read: going back stays possible (§7, 8)."""
    log = LogStore()
    with replica(log.engine(), application_version=1) as first:
        first.until_leading()
        assert ByHand(first.address).deposit("one", "a", 1).ok
    with replica(log.engine(), factory=_Second, application_version=2) as second:
        second.until_leading()
        assert second.replica.status().active_version == 1
        assert second.replica.snapshot() is None
        group = OperatorClient([second.address])
        with pytest.raises(GroupError, match="of application version 2, not 3"):
            group.finalize_upgrade(3, "alice")
        assert group.finalize_upgrade(2, "alice") == 2
        assert group.finalize_upgrade(2, "alice") == 2
        assert second.replica.status().active_version == 2
        assert second.replica.snapshot() is not None
    # The version is in the snapshot, too.
    with replica(log.engine(), application_version=1) as late:
        until(lambda: "upgrade" in late.replica.waiting_for, "it says why", _DEADLINE_S)
        assert (late.replica.role, late.bank.paid) == ("standby", {})
    with replica(log.engine(), "r2", factory=_Second, application_version=2) as third:
        third.until_leading()
        assert third.replica.status().active_version == 2
        assert third.bank.paid == {"one": 1}


def test_a_group_that_begins_with_a_version_has_it_active() -> None:
    """Nothing in an empty log is older: nothing is to be finalized (DESIGN §7)."""
    log = LogStore()
    with replica(log.engine(), application_version=7) as first:
        first.until_leading()
        assert first.replica.status().active_version == 7
        assert first.replica.snapshot() is not None
    with replica(log.engine()) as older:
        until(lambda: "version is 7" in older.replica.waiting_for, "it waits", _DEADLINE_S)


def test_a_version_is_a_number() -> None:
    """Checked when the replica is built (DESIGN §9)."""
    with (
        pytest.raises(ValueError, match="application version"),
        replica(LogStore().engine(), application_version=-1),
    ):
        pass


def test_commands_find_replicas_that_do_not_know_each_other_by_their_addresses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A leader that was told of no other is not taken for the whole group (DESIGN §7)."""
    log = LogStore()
    with replica(log.engine()) as running:
        running.until_leading()
    with (
        replica(log.engine(), application_version=1) as first,
        replica(log.engine(), "r2") as second,
    ):
        until(
            lambda: {first.replica.role, second.replica.role} > {"leader"}, "one leads", _DEADLINE_S
        )
        both = [first.address, second.address]
        if second.replica.role == "leader":
            assert main(["transfer", *both, "--to", "r1"]) == 0
        first.until_leading()
        assert main(["transfer", first.address, "--to", "r2"]) == 1
        assert "name the addresses of the others" in capsys.readouterr().err
        assert main(["upgrade", first.address, "--finalize"]) == 1
        assert "no replica but the leader is known" in capsys.readouterr().err
        assert main(["upgrade", *both, "--finalize"]) == 1
        assert f"not of version 1, or silent: {second.address}" in capsys.readouterr().err
        assert main(["transfer", *both, "--to", "r2"]) == 0
