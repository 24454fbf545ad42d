"""Real Redis servers, each a process of its own in a directory of its own."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import redis

from chaos.ports import free_port
from chaos.redis_server import RedisServer, redis_answers, redis_executable
from tests.helpers.waiting import until

__all__ = ["Backup", "ClusterServers", "RedisServer", "SentinelServer"]


class Backup:
    """What a server had once: a restored backup, or a replica that lagged behind."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        server.stop()
        shutil.copytree(server.directory, folder)
        server.start()

    def restore(self) -> None:
        """Start the server with that again."""
        self.server.stop()
        shutil.copytree(self.folder, self.server.directory, dirs_exist_ok=True)
        self.server.start()


class SentinelServer:
    """One Sentinel that watches a primary named ``main``, and holds it for down after a while."""

    def __init__(self, directory: Path, primary_port: int, down_after_ms: int = 500) -> None:
        self.port = free_port()
        configuration = directory / "sentinel.conf"
        configuration.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {directory}\n"
            f"sentinel monitor main 127.0.0.1 {primary_port} 1\n"
            f"sentinel down-after-milliseconds main {down_after_ms}\n"
            "sentinel failover-timeout main 5000\n"
        )
        with (directory / "sentinel.log").open("ab") as log:
            self._process = subprocess.Popen(
                [redis_executable(), str(configuration), "--sentinel"], stdout=log, stderr=log
            )
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            until(lambda: redis_answers(client), "Sentinel answers")

    def told(self, *command: str) -> Any:
        """Ask the Sentinel."""
        with redis.Redis(port=self.port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command("SENTINEL", *command)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(60)


class ClusterServers:
    """Three primaries of a cluster, and a replica of each if asked for."""

    def __init__(self, directory: Path, *, replicated: bool) -> None:
        self.nodes: list[RedisServer] = []
        for number in range(6 if replicated else 3):
            (directory / str(number)).mkdir()
            settings = {"cluster-enabled": "yes", "cluster-node-timeout": "1500"}
            settings |= {"cluster-replica-validity-factor": "0"}
            self.nodes.append(RedisServer(directory / str(number), **settings))
        self.primaries, replicas = self.nodes[:3], self.nodes[3:]
        for number, node in enumerate(self.primaries):
            slots = range(number * 16384 // 3, (number + 1) * 16384 // 3)
            self.ask(node, "ADDSLOTS", *slots)
        for node in self.nodes[1:]:
            self.ask(node, "MEET", "127.0.0.1", self.nodes[0].port)
        for node in self.nodes:
            until(partial(self._knows_all, node), "the nodes know each other", 60)
        for node, primary in zip(replicas, self.primaries, strict=False):
            self.ask(node, "REPLICATE", self.id_of(primary))
        for node in replicas:
            until(partial(self._follows, node), "the replica follows", 60)
        for node in self.nodes:
            until(partial(self._is_up, node), "it is up")

    def url(self, **options: Any) -> str:
        """Return the store's URL with these options."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}?" + "&".join(f"{k}={v}" for k, v in options.items())

    def ask(self, node: RedisServer, *command: Any) -> Any:
        """Say CLUSTER and so on to a node, without what redis-py makes of the answer."""
        with redis.Redis(port=node.port, socket_timeout=5) as client:
            client.response_callbacks.clear()
            return client.execute_command("CLUSTER", *command)

    def info(self, node: RedisServer) -> str:
        """Return what CLUSTER INFO says."""
        return self.ask(node, "INFO").decode()  # type: ignore[no-any-return]

    def id_of(self, node: RedisServer) -> str:
        """Return a node's id."""
        return self.ask(node, "MYID").decode()  # type: ignore[no-any-return]

    def slot_of(self, key: str) -> int:
        """Return the slot that a key is in."""
        return int(self.ask(self.nodes[0], "KEYSLOT", key))

    def primary_of(self, key: str) -> RedisServer:
        """Return the primary that has the key's slot."""
        slot = self.slot_of(key)
        for first, last, (_, port, *_), *_ in self.ask(self.nodes[0], "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody has slot {slot}")

    def stop(self) -> None:
        """End them all."""
        for node in self.nodes:
            node.stop()

    def _knows_all(self, node: RedisServer) -> bool:
        return f"cluster_known_nodes:{len(self.nodes)}" in self.info(node)

    def _is_up(self, node: RedisServer) -> bool:
        return "cluster_state:ok" in self.info(node)

    def _follows(self, node: RedisServer) -> bool:
        with node.client() as client:
            return client.info("replication").get("master_link_status") == "up"  # type: ignore[no-any-return]
