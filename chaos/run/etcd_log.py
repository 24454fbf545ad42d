"""The etcd that a group's log is in, and every path to it and within it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from chaos.etcd_cluster import EtcdCluster
from chaos.run.etcd_member import EtcdMember
from chaos.run.peer_paths import PeerPaths
from chaos.run.toxiproxy import Link, Links, Toxiproxy

__all__ = ["EtcdLog"]


class _NodePath(Links):
    """All paths of one node: its clients', and its peers' both ways."""

    def __init__(self, links: Sequence[Link], peers: PeerPaths, number: int) -> None:
        super().__init__(links)
        self._peers = peers
        self._number = number

    def cut(self) -> None:
        super().cut()
        self._peers.cut(self._number)

    def mend(self) -> None:
        self._peers.mend(self._number)
        super().mend()


class EtcdLog:
    """Three nodes, ``etcd-1`` and so on; it runs within its context.

    ``links``: ``log-N`` leads replica N to all of them, ``etcd-N`` everybody to node N, its
    peers, too. ``urls``: the log, by each replica's path.
    """

    def __init__(self, directory: Path, proxy: Toxiproxy, replicas: int) -> None:
        """Build it; nothing runs yet."""
        self._cluster = EtcdCluster(directory)
        self._peers = PeerPaths(self._cluster)
        self._stack = contextlib.ExitStack()
        nodes = self._cluster.nodes
        self.members = {
            f"etcd-{number}": EtcdMember(self._cluster, node)
            for number, node in enumerate(nodes, 1)
        }
        paths = [
            [
                proxy.link(f"log-{replica}-etcd-{number}", node.port)
                for number, node in enumerate(nodes, 1)
            ]
            for replica in range(1, replicas + 1)
        ]
        self.links: dict[str, Links] = {
            f"log-{replica}": Links(own) for replica, own in enumerate(paths, 1)
        }
        for number, theirs in enumerate(zip(*paths, strict=True)):
            self.links[f"etcd-{number + 1}"] = _NodePath(theirs, self._peers, number)
        self.urls = [
            f"etcd://{','.join(link.address for link in own)}/?group=bank" for own in paths
        ]

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.enter_context(self._peers)
            stack.enter_context(self._cluster)
            self._peers.learn()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def leader(self) -> str:
        """The member that leads the others; raises ``RuntimeError`` where none does."""
        return f"etcd-{self._cluster.nodes.index(self._cluster.leader()) + 1}"
