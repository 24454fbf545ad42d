"""Replicas within the test's process: real servers, a real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

import curp
from examples.bank.v1 import bank_pb2_grpc
from tests.curp.replica.ledger import CONFLICTS, READ_ONLY, Bank
from tests.helpers.ports import free_port
from tests.helpers.raw import RawClient as Raw
from tests.helpers.waiting import until

__all__ = ["RawClient", "Running", "replica"]

_DEADLINE_S = 60.0


class Running:
    """A replica behind its server."""

    def __init__(
        self,
        engine: Any,
        name: str,
        factory: Callable[[], Any] = Bank,
        tuning: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        # Told to the replica before the server has it.
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        options = {
            "conflict_keys": CONFLICTS,
            "read_only": READ_ONLY,
            "tuning": curp.Tuning(**{"lease_term_s": 60.0, **(tuning or {})}),
            **more,
        }
        self.replica = curp.Replica(engine, name=name, address=self.address, **options)
        self.server = grpc.server(ThreadPoolExecutor(32), interceptors=[self.replica.interceptor()])
        self.servicer = self.replica.servicer(factory)
        bank_pb2_grpc.add_BankServicer_to_server(self.servicer, self.replica.registrar(self.server))
        self.replica.add_to_server(self.server)
        assert self.server.add_insecure_port(self.address) == port
        self.server.start()
        self.replica.start()

    @property
    def bank(self) -> Any:
        """The servicer of the moment."""
        return self.servicer.current

    def until_leading(self) -> None:
        """Wait until it serves."""
        until(
            lambda: self.replica.role == "leader",
            f"leading; it is {self.replica.role}, waits for {self.replica.waiting_for!r}",
            _DEADLINE_S,
        )

    def stop(self) -> None:
        """Hand over and stop."""
        self.replica.close()
        self.server.stop(None).wait()


@contextmanager
def replica(engine: Any, name: str = "r1", **more: Any) -> Iterator[Running]:
    """Run a replica, and stop it."""
    running = Running(engine, name, **more)
    try:
        yield running
    finally:
        running.stop()


class RawClient:
    """A client by hand that outlives the server it was granted by."""

    def __init__(self, address: str) -> None:
        self._raw = Raw(address)

    def call(self, method: str, request: bytes, seq: int, **more: Any) -> Any:
        """Make a call and take its answer apart."""
        return self._raw.call(method, request, seq, **more)

    def move(self, address: str) -> None:
        """Go to another server with the same client id."""
        moved = Raw(address, grant=False)
        moved.client_id, moved.token = self._raw.client_id, self._raw.token
        self._raw.channel.close()
        self._raw = moved
