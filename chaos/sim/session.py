"""Model of the world: what opens a session of several clients, and its driver, who closes it."""

from __future__ import annotations

from typing import Any

import grpc

from chaos.sim.loop import Process
from chaos.sim.world import World
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.lease_requests import LEASE_TIMEOUT_S
from rifl._client.routing import LEASE_SERVICE

__all__ = ["Closing", "secret_of"]


def secret_of(session: str) -> bytes:
    """Return what opens a session: its clients and its driver have it."""
    return b"the secret of " + session.encode()


class Closing:
    """A driver closes the session of a batch, until it is told that it is closed."""

    def __init__(self, world: World, session: str) -> None:
        self._world = world
        self._session = session
        self._process = Process(world.loop, "driver")

    def send(self) -> None:
        """Ask for it."""
        self._world.trace("driver", f"closes {self._session}")
        self._world.network.call(
            self._process,
            0,
            "session",
            LEASE_SERVICE + "CloseSession",
            (),
            pb.CloseSessionRequest(
                name=self._session, secret=secret_of(self._session)
            ).SerializeToString(),
            LEASE_TIMEOUT_S,
            self._ended,
        )

    def _ended(self, status: Any, reply: bytes | None) -> None:
        transient = status.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        if transient and not self._world.over:
            self._process.after(0.5, self.send)
