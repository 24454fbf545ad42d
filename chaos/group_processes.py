"""A group as real processes: started, killed, stopped, continued, started again."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import grpc

from chaos.ports import free_ports
from curp.log import create_log
from curp.v1 import curp_pb2

__all__ = ["GroupProcesses", "NoLeader"]

_ROOT = Path(__file__).parents[1]
_START_S = 60.0
# A replica asks its witnesses first, a second each.
_ASK_S = 3.0
_LOOK_EVERY_S = 0.01


class NoLeader(RuntimeError):
    """No replica leads within the time given."""


class GroupProcesses:
    """Replicas, ``python -m module``, and witnesses, each on a port of its own that it keeps.

    A replica is told ``--listen``, ``--name``, ``--log`` and its ``--witness``es, prints a
    line when it listens, and ends when its standard input closes: nothing outlives this
    process. What they say goes to files in ``directory``. One thread.
    """

    def __init__(
        self,
        directory: Path,
        module: str,
        log: str | Sequence[str],
        *,
        replicas: int = 3,
        witnesses: int = 1,
        arguments: Sequence[str] = (),
    ) -> None:
        """Build it; nothing runs yet.

        ``log``: the engine's URL, or one for each replica, if they reach it by paths of
        their own.
        """
        self._directory = directory
        self._module = module
        self._logs = [log] * replicas if isinstance(log, str) else list(log)
        self._arguments = tuple(arguments)
        ports = free_ports(replicas + witnesses)
        self.replicas = [f"127.0.0.1:{port}" for port in ports[:replicas]]
        self.witnesses = [f"127.0.0.1:{port}" for port in ports[replicas:]]
        # Where replicas and clients find the witnesses; may be set before it starts.
        self.listed = list(self.witnesses)
        # Where clients find each replica, by the address it listens on; as above.
        self.reached = {address: address for address in self.replicas}
        # Seconds that a replica's monotonic clocks are ahead of the machine's: a time
        # namespace of Linux's, which needs root.
        self.clocks_ahead_s: dict[str, int] = {}
        # Variables that a process is started with beside this one's, by its address.
        self.environments: dict[str, dict[str, str]] = {}
        # By address.
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> Self:
        """Create the log and start all of it; returns when every process listens."""
        create_log(self._logs[0])
        try:
            # The first leader lists the witnesses it finds.
            for addresses in (self.witnesses, self.replicas):
                for address in addresses:
                    self._spawn(address)
                for address in addresses:
                    self._await_ready(address)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def status(self, address: str) -> curp_pb2.GroupStatusReply | None:
        """Return what a replica says of itself, None if it says nothing."""
        channel = self._channels.get(address)
        if channel is None:
            options = (
                ("grpc.initial_reconnect_backoff_ms", 20),
                ("grpc.max_reconnect_backoff_ms", 100),
            )
            channel = self._channels[address] = grpc.insecure_channel(address, options)
        ask = channel.unary_unary(
            "/curp.v1.Group/Status",
            request_serializer=curp_pb2.GroupStatusRequest.SerializeToString,
            response_deserializer=curp_pb2.GroupStatusReply.FromString,
        )
        try:
            reply: curp_pb2.GroupStatusReply = ask(curp_pb2.GroupStatusRequest(), timeout=_ASK_S)
        except grpc.RpcError:
            return None
        return reply

    def leader(self, *, not_: str | None = None, timeout_s: float = 60.0) -> str:
        """Wait for a replica that leads, other than ``not_``; its address."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            for address in self.replicas:
                if address == not_ or address not in self._running:
                    continue
                found = self.status(address)
                if found is not None and found.role == "leader":
                    return address
            time.sleep(_LOOK_EVERY_S)
        states = {address: self.status(address) for address in self.replicas}
        raise NoLeader(f"no replica leads after {timeout_s:g} s: {states}; {self.complaints()}")

    def kill(self, address: str) -> None:
        """SIGKILL: it gets no chance to finish anything."""
        process = self._running.pop(address)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def stop(self, address: str) -> None:
        """SIGSTOP: alive, and silent."""
        self._running[address].send_signal(signal.SIGSTOP)

    def resume(self, address: str) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        self._running[address].send_signal(signal.SIGCONT)

    def start(self, address: str) -> None:
        """Start what was killed, on its old port; returns when it listens."""
        self._spawn(address)
        self._await_ready(address)

    def runs(self, address: str) -> bool:
        """Whether it was started, not killed, and has not ended by itself."""
        process = self._running.get(address)
        return process is not None and process.poll() is None

    def pid(self, address: str) -> int:
        """Return the id of a process that was started and not killed."""
        return self._running[address].pid

    def complaints(self) -> str:
        """The last that each process said."""
        files = sorted(self._directory.glob("*.err"))
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)

    def _spawn(self, address: str) -> None:
        if address in self.witnesses:
            command = ["-m", "curp.witness", "--listen", address]
        else:
            number = self.replicas.index(address)
            command = ["-m", self._module, "--listen", address, "--name", f"r{number + 1}"]
            if self.reached[address] != address:
                command += ["--address", self.reached[address]]
            command += ["--log", self._logs[number]]
            for witness in self.listed:
                command += ["--witness", witness]
            command += self._arguments
        errors = self._directory / f"{address.rpartition(':')[2]}.err"
        with errors.open("ab") as complaints:
            self._running[address] = subprocess.Popen(  # noqa: S603 - our own command
                [*_ahead(self.clocks_ahead_s.get(address, 0)), sys.executable, *command],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={
                    **os.environ,
                    "PYTHONUNBUFFERED": "1",
                    **self.environments.get(address, {}),
                },
            )

    def _await_ready(self, address: str) -> None:
        output = self._running[address].stdout
        ready = output is not None and select.select([output], [], [], _START_S)[0]
        if not ready or output is None or not output.readline():
            raise RuntimeError(f"{address} did not start: {self.complaints()}")

    def _end(self) -> None:
        for channel in self._channels.values():
            channel.close()
        for address in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                self.kill(address)


def _ahead(seconds: int) -> list[str]:
    if not seconds:
        return []
    unshare = shutil.which("unshare") or "unshare"
    return [unshare, "--time", f"--monotonic={seconds}", f"--boottime={seconds}", "--"]
