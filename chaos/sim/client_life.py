"""Driver of the product's ``ClientState``: one life of a client, its lease, its way to a group."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from chaos.sim.group_client import GroupPath
from chaos.sim.loop import EPOCH_S, Process, Timer
from chaos.sim.network import NO_CONNECTION
from chaos.sim.world import World
from rifl._client.lease_requests import (
    REPLIES,
    LeaseRequest,
    TrialRequest,
    due_trials,
    earliest,
    failed,
    next_request,
    replied,
    tried,
)
from rifl._client.routing import LEASE_SERVICE, Router
from rifl._client.settings import Settings
from rifl._client.state import ClientState

__all__ = ["ClientLife"]


class ClientLife:
    """What the parts of a client share, from a start to the death after it."""

    def __init__(
        self,
        world: World,
        process: Process,
        dice: Random,
        settings: Settings,
        router: Router | None,
    ) -> None:
        self.world = world
        self.name = process.name
        self.process = process
        self.keeper = _Keeper(self)
        self.state = _State(settings, router, process, dice, self.keeper.look)
        # Of a client of a group, which asks witnesses.
        self.group: GroupPath | None = None

    @property
    def tracing(self) -> bool:
        """Whether anybody reads what happens."""
        return self.world.loop.tracing

    def trace(self, text: str) -> None:
        """Add a line to the log of events."""
        self.world.trace(self.name, text)


class _State(ClientState):
    """The client's state, on simulated clocks and dice."""

    def __init__(
        self,
        settings: Settings,
        router: Router | None,
        process: Process,
        dice: Random,
        look: Callable[[], None],
    ) -> None:
        self._process = process
        self._look = look
        self._dice = dice
        super().__init__(settings, router)
        self.now = process.clock
        self.jitter = dice.random
        self.stamp = self._stamp  # type: ignore[method-assign]
        self._unconnected: set[int] = set()

    def note(self, target: int, status: Any) -> None:
        """Take the end of an attempt: it may tell that there is no connection."""
        if status.details() in NO_CONNECTION:
            self._unconnected.add(target)
        else:
            self._unconnected.discard(target)

    def connected(self, index: int) -> bool:
        return index not in self._unconnected

    def look_at_lease(self) -> None:
        self._look()

    def _stamp(self) -> tuple[int, int]:
        return int((EPOCH_S + self._process.clock()) * 1e6), self._dice.getrandbits(64)


class _Keeper:
    """Keeps the lease as ``LeaseKeeper``'s thread does: one request at a time."""

    def __init__(self, life: ClientLife) -> None:
        self._life = life
        self._busy = False
        self._timer: Timer | None = None

    def look(self) -> None:
        """Look for work."""
        if self._busy:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state = self._life.state
        due = next_request(state)
        if isinstance(due, LeaseRequest):
            self._ask(due)
            return
        if state.router is not None:
            for trial in due_trials(state):
                self._try(trial)
            due = earliest(due, state.router.due_at())
        if due is not None:
            self._timer = self._life.process.at(due, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.look()

    def _try(self, trial: TrialRequest) -> None:
        life = self._life

        def ended(status: Any, reply: bytes | None) -> None:
            found = None
            if status.code() is grpc.StatusCode.OK and reply is not None:
                found = REPLIES["Renew"].FromString(reply)
            tried(life.state, trial.target, trial.lease, found, status)
            self.look()

        life.world.network.call(
            life.process,
            trial.target,
            "lease",
            LEASE_SERVICE + "Renew",
            (),
            trial.message.SerializeToString(),
            trial.timeout_s,
            ended,
        )

    def _ask(self, request: LeaseRequest) -> None:
        life, state = self._life, self._life.state
        self._busy = True
        router = state.router
        target = 0 if router is None else router.targets.current

        def ended(status: Any, reply: bytes | None) -> None:
            self._busy = False
            if router is not None:
                router.ended(target, status, heartbeat=True)
            if status.code() is grpc.StatusCode.OK and reply is not None:
                replied(state, request, REPLIES[request.method].FromString(reply))
            else:
                failed(state, request, status)
            self.look()

        life.world.network.call(
            life.process,
            target,
            "session" if request.method == "OpenSession" else "lease",
            LEASE_SERVICE + request.method,
            (),
            request.message.SerializeToString(),
            request.timeout_s,
            ended,
        )
