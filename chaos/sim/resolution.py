"""Driver of the product's ``Resolver``: a question what became of a call."""

from __future__ import annotations

from typing import Any

import grpc

from chaos.check.history import read_value
from chaos.sim.client_life import ClientLife
from chaos.sim.planned import PlannedCall
from rifl._client.errors import CallError
from rifl._client.resolution import RESOLVE_METHOD, Resolver
from rifl.v1 import rifl_pb2

__all__ = ["Resolution"]

_RESOLVE_TIMEOUT_S = 6.0


class Resolution:
    """A caller asks what became of its call."""

    def __init__(self, life: ClientLife, planned: PlannedCall, rpc_id: Any) -> None:
        self._life = life
        self._planned = planned
        try:
            self._resolver = Resolver(life.state, rpc_id, _RESOLVE_TIMEOUT_S)
        except CallError:
            # Nothing is left to be resolved.
            return
        life.process.after(life.state.jitter(), self._send)

    def _send(self) -> None:
        life = self._life
        router = life.state.router
        life.world.network.call(
            life.process,
            0 if router is None else router.targets.current,
            "resolve",
            RESOLVE_METHOD,
            (),
            self._resolver.request().SerializeToString(),
            self._resolver.remaining_s(),
            self._ended,
        )

    def _ended(self, status: Any, reply: bytes | None) -> None:
        life, world = self._life, self._life.world
        try:
            if status.code() is not grpc.StatusCode.OK or reply is None:
                life.process.after(self._resolver.retry_after_s(status), self._send)
                return
            resolution = self._resolver.read(rifl_pb2.ResolveReply.FromString(reply))
        except CallError as error:
            life.trace(f"call {self._planned.number} not resolved: {error}")
            return
        value = None
        if isinstance(resolution.reply, bytes):
            value = read_value(resolution.reply)
        world.history.resolved(
            world.loop.now, self._planned.number, resolution.outcome.value, value
        )
        life.trace(f"call {self._planned.number} resolved: {resolution.outcome.value} {value}")
