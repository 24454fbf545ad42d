"""Model of the world: a caller without the SDK, by ``idempotency-key`` and its own retries."""

from __future__ import annotations

from random import Random
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from chaos.check.history import read_value
from chaos.sim.loop import Process
from chaos.sim.planned import PlannedCall
from chaos.sim.service import Operation, encode
from chaos.sim.world import World
from rifl._client.answers import read_answer
from rifl._wire.header import KEY_KEY

__all__ = ["PlainCaller"]

_ATTEMPT_S = 1.0
_GIVES_UP_S = 8.0
_RETRIED = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
# With ABORTED: others of that code are final.
_RETRIED_REASONS = ("IN_PROGRESS", "RECORD_PENDING")


class PlainCaller:
    """One call by its key, of a process of its own: sent until it is answered."""

    def __init__(self, world: World, planned: PlannedCall, servers: int, dice: Random) -> None:
        self.planned = planned
        self.ended = False
        self._world = world
        self._servers = servers
        self._dice = dice
        self._process = Process(world.loop, f"caller{planned.number} at {planned.at:.3f}")
        self._may_have_run = False
        self._until = 0.0
        self._request = encode(
            Operation(planned.number, planned.account, planned.amount, planned.behaviour)
        )

    def go(self) -> None:
        """Begin."""
        world, planned = self._world, self.planned
        promise = "at-least-once" if planned.op == "touch" else "once"
        world.history.start(
            world.loop.now,
            planned.number,
            planned.op,
            planned.account,
            planned.amount,
            promise,
            caller=self._process.name,
        )
        world.trace(self._process.name, f"{planned.op} {planned.account} by key {planned.key!r}")
        self._until = world.loop.now + _GIVES_UP_S
        self._send()

    def _send(self) -> None:
        planned = self.planned
        self._world.network.call(
            self._process,
            self._dice.randrange(self._servers),
            "call",
            planned.method,
            ((KEY_KEY, planned.key.decode()),),
            self._request,
            _ATTEMPT_S,
            self._answered,
        )

    def _answered(self, status: Any, reply: bytes | None) -> None:
        answer = read_answer(status)
        if answer.outcome is not Outcome.NOT_EXECUTED:
            self._may_have_run = True
        if answer.outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
            self._end(answer.outcome, status, reply)
            return
        again = answer.code in _RETRIED or answer.reason in _RETRIED_REASONS
        if again and self._world.loop.now < self._until:
            self._process.after(0.05 + 0.3 * self._dice.random(), self._send)
            return
        unknown = self._may_have_run
        self._end(Outcome.UNKNOWN if unknown else Outcome.NOT_EXECUTED, status, None)

    def _end(self, outcome: Outcome, status: Any, reply: bytes | None) -> None:
        self.ended = True
        world, code = self._world, status.code()
        value = read_value(reply) if code is grpc.StatusCode.OK else None
        world.history.end(
            world.loop.now,
            self.planned.number,
            outcome.value,
            code.name,
            value,
            "",
            caller=self._process.name,
        )
        world.trace(self._process.name, f"ends: {outcome.value} {code.name} {value}")
