"""Groups of real processes whose log is in a real etcd (DESIGN §7: survives its machine)."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.etcd_cluster import EtcdCluster
from curp._cli.command import main
from curp.log._errors import LogFull
from examples.replicated_bank.load import Load
from tests.curp.log.conformance import Writer
from tests.curp.logs import opened_new
from tests.curp.replica.operated import DEADLINE_S, operated
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three nodes."""
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


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


def test_an_etcd_that_others_filled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every replica names it; with room again the group goes on, and nothing is lost (§7)."""
    flag = "--quota-backend-bytes=16777216"
    with (
        EtcdCluster(tmp_path / "small", flag, nodes=1) as etcd,
        operated(tmp_path, etcd.url(group="bank")) as group,
    ):
        group.start()
        group.until_listed()
        group.deposit("a")
        with contextlib.closing(opened_new(etcd.url(group="other"))) as other:
            writer = Writer(other)

            def full() -> bool:
                with contextlib.suppress(LogFull):
                    writer.append(b"x" * 900_000)
                    return False
                return True

            until(full, "there is no room", DEADLINE_S)

        def named() -> bool:
            main(["status", *group.replicas.values()])
            return capsys.readouterr().out.count("NOSPACE") >= 2

        until(named, "both replicas name it", DEADLINE_S)
        etcd.control("del", "--prefix", "curp/other/")
        status = etcd.nodes[0].status()
        assert status is not None
        etcd.control("compact", str(status.header.revision), "--physical")
        etcd.control("defrag")
        etcd.control("alarm", "disarm")
        group.deposit("b")
        assert group.balances("a", "b") == [1, 1]
