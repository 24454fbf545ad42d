"""Backups of an etcd cluster, from which another one is made."""

from __future__ import annotations

import subprocess
from pathlib import Path

from chaos.etcd_cluster import EtcdCluster, etcd_executable


def restore(cluster: EtcdCluster, backup: Path, directory: Path, token: str) -> EtcdCluster:
    """Make another cluster of one node from a backup; of the same number, but for a token."""
    restored = EtcdCluster(directory, nodes=1)
    (node,) = restored.nodes
    node.port, node.peer = cluster.nodes[0].port, cluster.nodes[0].peer
    node.advertised = cluster.nodes[0].advertised
    node.directory.mkdir(parents=True)
    subprocess.run(
        [
            etcd_executable("etcdutl"),
            "snapshot",
            "restore",
            str(backup),
            "--name=n1",
            f"--data-dir={node.directory / 'data'}",
            f"--initial-cluster={cluster.members}",
            f"--initial-advertise-peer-urls={node.peer}",
            *([f"--initial-cluster-token={token}"] if token else []),
        ],
        check=True,
        capture_output=True,
    )
    return restored
