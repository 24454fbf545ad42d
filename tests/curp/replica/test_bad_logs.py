"""Logs that went back, ask for what is not served, or are held by a stopped process (§7)."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

from chaos.sim.group.log import LogStore
from curp.log._values import NewLog
from tests.curp.logs import created
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import Running, replica
from tests.helpers.processes import started
from tests.helpers.waiting import until

_DEADLINE_S = 60.0


def _stops(running: Running, *named: str) -> None:
    until(lambda: running.replica.role == "stopped", "it stops", _DEADLINE_S)
    for each in named:
        assert each in running.replica.waiting_for


def test_a_log_that_went_back_stops_leader_and_standby() -> None:
    """The engine forgot what it acknowledged: going on would make that final (DESIGN §7)."""
    log = LogStore()
    with replica(log.engine()) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        for seq in (1, 2, 3):
            assert client.deposit(str(seq), "alice", seq).ok
        with replica(log.engine(), "r2") as standby:
            until(lambda: standby.bank.balances == {"alice": 3}, "it follows", _DEADLINE_S)
            log.forget(log.tail - 2)
            _stops(standby, "CorruptLog", "went back")
            lost = client.deposit("4", "alice", 4)
            assert not lost.ok
            assert lost.outcome == "unknown"
            _stops(leader, "TailMismatch")
            # It answers nobody any more, and says what it is.
            assert client.deposit("5", "alice", 5).reason == "NOT_LEADER"
            assert leader.replica.status().waiting_for == leader.replica.waiting_for


def test_a_log_that_lost_its_id_stops_the_replica() -> None:
    """Witnesses could not tell it from another group's: nothing is served over it (DESIGN §7)."""
    with replica(LogStore(new=NewLog({})).engine()) as running:
        _stops(running, "CorruptLog", "the log has no id")


def test_a_log_with_calls_of_a_method_that_is_not_served_stops_the_replica() -> None:
    """A new release without the method: it is named, and nothing is served over it (DESIGN §7)."""
    log = LogStore()
    with replica(log.engine()) as running:
        running.until_leading()
        assert ByHand(running.address).deposit("one", "alice", 1).ok
    without = {
        "methods": {"/bank.v1.Bank/Deposit": None},
        "conflict_keys": {"/bank.v1.Bank/Balance": "account"},
    }
    with replica(log.engine(), "r2", **without) as second:
        _stops(second, "NotServed", "/bank.v1.Bank/Deposit")
        assert second.replica.configuration().leader == ""
    # Nothing is lost: who serves the method reads the same log.
    with replica(log.engine(), "r3") as third:
        third.until_leading()
        assert third.bank.paid == {"one": 1}


def test_a_process_stopped_inside_a_commit_holds_the_group_up_visibly(tmp_path: Path) -> None:
    """SQLite's lock is its process's: calls are told, the status names it, nothing is lost."""
    url = created(f"sqlite:///{tmp_path}/bank.log?group=bank&timeout_s=0.1")
    with replica(url, tuning={"lease_term_s": 2.0}) as running:
        running.until_leading()
        client = ByHand(running.address)
        assert client.deposit("first", "alice", 1).ok
        with started("tests.curp.log.locker", url, log=tmp_path / "locker.err") as locker:

            def stopped() -> bool:
                stat = Path(f"/proc/{locker.pid}/stat").read_text()
                return stat.rpartition(")")[2].split()[0] == "T"

            until(stopped, "it stopped inside its transaction", _DEADLINE_S)
            seqs = itertools.count(3)
            waiting = client.begin_deposit("second", "alice", 2)
            until(lambda: "was not free" in running.replica.waiting_for, "it says so", _DEADLINE_S)
            until(
                lambda: client.balance("bob", next(seqs)).reason == "NOT_LEADER",
                "callers are sent away",
                _DEADLINE_S,
            )
            assert not waiting.done()
            # Whoever looks after the group ends it: the lock goes with the process.
            os.kill(locker.pid, signal.SIGKILL)
            until(
                lambda: client.deposit("second", "alice", 2, attempt=2).ok,
                "it goes on",
                _DEADLINE_S,
            )
        assert running.bank.paid == {"first": 1, "second": 1}
