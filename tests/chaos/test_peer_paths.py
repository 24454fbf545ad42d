"""A node of a real etcd is cut off from the others, both ways, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.etcd_cluster import EtcdCluster, EtcdNode
from chaos.run.peer_paths import PeerPaths
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_DEADLINE_S = 60.0


def _led_by(node: EtcdNode) -> int:
    """The id of whom a node takes for the leader, 0 for nobody."""
    status = node.status()
    assert status is not None
    return status.leader


@pytest.mark.parametrize("which", ["leader", "another"])
def test_a_node_that_is_cut_off_hears_of_no_leader_until_it_is_back(
    tmp_path: Path, which: str
) -> None:
    """Nor do the others hear of it: they have one among them (chaos.run's ``down`` of a node)."""
    cluster = EtcdCluster(tmp_path)
    with PeerPaths(cluster) as paths, cluster:
        paths.learn()
        leader = cluster.leader()
        number = cluster.nodes.index(leader)
        if which == "another":
            number = (number + 1) % 3
        alone = cluster.nodes[number]
        others = [node for node in cluster.nodes if node is not alone]
        paths.cut(number)
        until(lambda: _led_by(alone) == 0, "it knows of no leader", _DEADLINE_S)
        led = cluster.leader(not_=alone)
        assert led in others
        assert (led is leader) is (which == "another")
        assert _led_by(alone) == 0
        paths.mend(number)
        until(lambda: _led_by(alone) == _led_by(led) != 0, "it is back", _DEADLINE_S)
