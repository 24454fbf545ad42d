"""A Spark Connect server, a client of it, and a service and a log that queries use."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S, BankProcess, spark_environment

__all__ = ["Connected"]


class Connected:
    """A server with one client. Both are killed together, and start again on the same port."""

    def __init__(
        self,
        directory: Path,
        master: str = "local[2]",
        pause: str = "0",
        server: Mapping[str, str] = {},
        artifacts: Sequence[str] = (),
    ) -> None:
        """``server``: what its environment has, too; ``artifacts``: packages that a client adds."""
        store = f"sqlite:///{directory}/rifl.db"
        self.bank = BankProcess(directory, "--store", store, "--pause", pause)
        self._directory, self._master = directory, master
        self._environment, self._artifacts = {**spark_environment(), **server}, artifacts
        self._port = free_port()
        self._server: Process | None = None
        self._client: Process | None = None

    def start(self) -> None:
        """Start the server and wait until it listens; start a client."""
        directory = self._directory
        self._server = Process(
            "tests.spark.connect_server",
            *("--port", str(self._port), "--master", self._master, "--directory", str(directory)),
            log=directory / "server.log",
            env=self._environment,
        )
        until(self._listens, "the server to listen", SLOW_S)
        self._client = Process(
            "tests.spark.connect_client",
            *(f"sc://127.0.0.1:{self._port}", *self._artifacts),
            log=directory / "client.log",
            with_input=True,
            env=spark_environment(),
        )

    def begin(self, step: str, **arguments: Any) -> None:
        """Have the client begin a step of ``connect_client``."""
        assert self._client is not None
        self._client.tell(json.dumps([step, arguments]))

    def told(self) -> Any:
        """Return what the step ended with."""
        assert self._client is not None
        return json.loads(self._client.line(SLOW_S))

    def run(self, step: str, **arguments: Any) -> Any:
        """Run a step to its end."""
        self.begin(step, **arguments)
        return self.told()

    def kill(self) -> None:
        """SIGKILL of server and client."""
        for each in (self._client, self._server):
            if each is not None:
                each.close()

    def close(self) -> None:
        """End all of it."""
        self.kill()
        self.bank.close()

    def _listens(self) -> bool:
        assert self._server is not None
        assert self._server.alive, self._server.errors()
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self._port)) == 0
