"""Groups of real processes whose log is in a real etcd (DESIGN §7: survives its machine)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.etcd_cluster import EtcdCluster
from examples.replicated_bank.load import Load
from tests.curp.replica.operated import DEADLINE_S, operated
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three nodes."""
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.mark.timeout(240)
def test_leaders_of_the_group_and_of_etcd_die_under_load(tmp_path: Path, etcd: EtcdCluster) -> None:
    """One after the other, and at once: nothing is lost, and nothing done twice (§7)."""
    with operated(tmp_path, etcd.url(group="bank"), replicas=3) as group:
        group.start()
        group.until_listed()
        with Load(list(group.replicas.values()), callers=4, accounts=32) as load:

            def more() -> None:
                before = load.answered
                until(lambda: load.answered > before + 40, "calls are answered", DEADLINE_S)

            more()
            leader = group.leader()
            group.stop(leader, how=signal.SIGKILL)
            more()
            group.start(leader)
            node = etcd.leader()
            node.kill()
            more()
            etcd.start(node)
            etcd.wait_ready(node)
            leader, node = group.leader(), etcd.leader()
            node.suspend()
            group.stop(leader, how=signal.SIGKILL)
            more()
            node.resume()
            more()
            report = load.finish()
    assert report.violations == []
    assert (report.duplicates, report.lost, report.unknown) == (0, 0, 0)
    assert report.effects >= 160


def test_a_leader_goes_on_where_its_node_of_etcd_died(tmp_path: Path, etcd: EtcdCluster) -> None:
    """Any node but etcd's leader may die: the group has the same leader as before (§7)."""
    with operated(tmp_path, etcd.url(group="bank")) as group:
        group.start()
        group.until_listed()
        group.deposit("a")
        led, leads = group.leader(), etcd.leader()
        for number, node in enumerate(each for each in etcd.nodes if each is not leads):
            node.kill()
            group.deposit(f"b{number}")
            etcd.start(node)
            etcd.wait_ready(node)
        assert group.leader() == led
        assert group.balances("a", "b0", "b1") == [1, 1, 1]
