"""A node of etcd, as a member of a deployment."""

from __future__ import annotations

from chaos.etcd_cluster import EtcdCluster, EtcdNode

__all__ = ["EtcdMember"]


class EtcdMember:
    """What faults strike: see ``Member``."""

    def __init__(self, cluster: EtcdCluster, node: EtcdNode) -> None:
        self._cluster = cluster
        self._node = node
        self.environment: dict[str, str] = {}

    @property
    def runs(self) -> bool:
        """Whether it was started, and not killed."""
        process = self._node.process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Start it; returns when it knows who leads."""
        self._cluster.start(self._node)
        self._cluster.wait_ready(self._node)

    def kill(self) -> None:
        """SIGKILL."""
        self._node.kill()

    def stop(self) -> None:
        """SIGSTOP."""
        self._node.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self._node.resume()
