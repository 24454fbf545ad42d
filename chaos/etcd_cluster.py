"""Real etcd clusters on this machine: nodes that can be killed, suspended and filled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import grpc

from chaos.ports import free_port
from chaos.programs import program
from sharedlog._engines.etcd.calls import STATUS
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

__all__ = ["EtcdCluster", "EtcdNode", "etcd_executable"]

_START_S = 60.0
_PAUSE_S = 0.02
_BUILT = str(Path(__file__).parents[1] / ".venv" / "etcd")


def etcd_executable(name: str = "etcd") -> str:
    """Find a program of etcd's; raises ``NotInstalled``."""
    return program(name, _BUILT, target="etcd")


class EtcdNode:
    """One node, a process of its own in a directory of its own."""

    def __init__(
        self, name: str, directory: Path, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self.name = name
        self._credentials = credentials
        self.directory = directory
        self.port = free_port()
        # Where it listens for its peers, and where they find it.
        self.peer = self.advertised = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    def start(self, cluster: str, *flags: str) -> None:
        """Start it; returns at once."""
        self.directory.mkdir(parents=True, exist_ok=True)
        url = f"{'https' if self._credentials else 'http'}://{self.host}"
        command = [
            etcd_executable(),
            f"--name={self.name}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={self.peer}",
            f"--initial-advertise-peer-urls={self.advertised}",
            f"--initial-cluster={cluster}",
            "--log-level=warn",
            *flags,
        ]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own

    def status(self) -> pb.StatusResponse | None:
        """Return what it says of itself; None if it does not answer."""
        with (
            grpc.secure_channel(self.host, self._credentials)
            if self._credentials
            else grpc.insecure_channel(self.host)
        ) as channel:
            call = channel.unary_unary(
                STATUS.path,
                request_serializer=pb.StatusRequest.SerializeToString,
                response_deserializer=pb.StatusResponse.FromString,
            )
            with contextlib.suppress(grpc.RpcError):
                found: pb.StatusResponse = call(pb.StatusRequest(), timeout=1.0)
                return found
        return None

    def kill(self) -> None:
        """Kill it with SIGKILL; idempotent."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def suspend(self) -> None:
        """Stop it with SIGSTOP: its connections stay open, and nothing answers.

        Returns when all of its threads stand still.
        """
        if self.process is None:
            return
        self._signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        while any(_state(each / "stat") != "T" for each in threads.iterdir()):
            time.sleep(_PAUSE_S / 10)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


class EtcdCluster:
    """Some nodes that form a cluster, as a context manager: they run within it.

    ``flags``: of each node, such as ``--quota-backend-bytes=16777216``. ``credentials``:
    clients come over TLS, with these.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        nodes: int = 3,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.flags = flags
        self.nodes = [
            EtcdNode(f"n{one}", directory / f"n{one}", credentials) for one in range(1, nodes + 1)
        ]

    @property
    def members(self) -> str:
        """Who they are, as each of them is told."""
        return ",".join(f"{node.name}={node.advertised}" for node in self.nodes)

    def __enter__(self) -> Self:
        """Start all nodes; returns when they have a leader."""
        try:
            self.heal()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, **options: object) -> str:
        """Return the URL of a log in it, with these options, ``group`` among them."""
        hosts = ",".join(node.host for node in self.nodes)
        return f"etcd://{hosts}/?{urlencode(options)}"

    def start(self, node: EtcdNode) -> None:
        """Start a node (again); returns at once: see ``wait_ready``."""
        node.start(self.members, *self.flags)

    def wait_ready(self, node: EtcdNode) -> None:
        """Wait until the node answers and knows who leads."""
        end = time.monotonic() + _START_S
        while True:
            found = node.status()
            if found is not None and found.leader:
                return
            if node.process is None or node.process.poll() is not None or time.monotonic() > end:
                log = (node.directory / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"etcd {node.name} does not start: {log}")
            time.sleep(_PAUSE_S)

    def leader(self, *, not_: EtcdNode | None = None) -> EtcdNode:
        """Return the node that leads, once one does that is not ``not_``."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            for node in self.nodes:
                if node is not_ or node.process is None:
                    continue
                found = node.status()
                if found is not None and found.leader == found.header.member_id:
                    return node
            time.sleep(_PAUSE_S)
        raise RuntimeError("no etcd node leads")

    def heal(self) -> None:
        """Start and resume what was killed or suspended, and wait until all are ready."""
        for node in self.nodes:
            if node.process is None:
                self.start(node)
            node.resume()
        for node in self.nodes:
            self.wait_ready(node)

    def suspend(self) -> None:
        """Stop all nodes with SIGSTOP; returns at once.

        They count ticks, not time: after ``resume`` they go on as if nothing had been.
        """
        for node in self.nodes:
            node._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all nodes go on."""
        for node in self.nodes:
            node.resume()

    def control(self, *arguments: str) -> str:
        """Run etcdctl over the nodes that run; what it printed."""
        hosts = ",".join(node.host for node in self.nodes if node.process is not None)
        command = [etcd_executable("etcdctl"), f"--endpoints={hosts}", *arguments]
        done = subprocess.run(  # noqa: S603 - our own
            command, capture_output=True, text=True, timeout=_START_S, check=False
        )
        if done.returncode:
            raise RuntimeError(f"etcdctl {arguments}: {done.stderr[-1000:]}")
        return done.stdout

    def stop(self) -> None:
        """Kill what still runs."""
        for node in self.nodes:
            node.kill()
