"""Driver of the product's ``Exchange``: one call, whose attempts go over the network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.sim.client_life import ClientLife
from chaos.sim.loop import Timer
from chaos.sim.network import Rpc
from chaos.sim.planned import PlannedCall
from chaos.sim.service import Operation, encode
from chaos.sim.stream_client import ClientStream
from rifl._client.answers import ATTEMPT_CANCELLED
from rifl._client.errors import CallError
from rifl._client.exchange import Exchange
from rifl.core._calling.invocation import Invocation

__all__ = ["ClientExchange"]


class ClientExchange(Exchange):
    """A call's flow, whose attempts go over the simulated network."""

    def __init__(
        self, life: ClientLife, planned: PlannedCall, finished: Callable[[ClientExchange], None]
    ) -> None:
        """``finished`` is told of the end, with this."""
        self._life = life
        self._finished = finished
        self.planned = planned
        self._rpcs: dict[int, Any] = {}
        self._timer: Timer | None = None
        self.stream: ClientStream | None = None
        if planned.messages:
            self.stream = ClientStream(life.world, life.process, planned)
        state = life.state
        now = state.now()
        self.request = encode(
            Operation(planned.number, planned.account, planned.amount, planned.behaviour)
        )
        hedges = self.stream is None or self.stream.sends
        super().__init__(
            state,
            Invocation(
                planned.method,
                now,
                None if planned.deadline_s is None else now + planned.deadline_s,
                planned.key or None,
                hedge_after_s=state.settings.hedge_after_s if hedges else None,
                stamp=state.stamp(),
            ),
        )

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """See ``Exchange``."""
        life = self._life
        router = life.state.router
        target = 0 if router is None else router.choose()
        if life.tracing:
            life.trace(f"call {self.planned.number} attempt {number} to server{target}")
        if self.stream is not None:
            over = partial(self._over, number, target)
            try:
                self._rpcs[number] = self.stream.launch(target, header, timeout_s, over)
            except CallError as error:
                self.fail(error)
            return
        path = life.group
        method = self.invocation.method
        if path is not None and header is not None:
            if self.planned.unrecorded and path.knowledge.view_for(method) is not None:
                header = path.unrecorded(header)
            else:
                over = partial(self._over, number, target)
                self._rpcs[number] = path.send(
                    target, method, self.request, header, timeout_s, over
                )
                return
        metadata = () if header is None else (header,)
        self._rpcs[number] = life.world.network.call(
            life.process,
            target,
            "call",
            self.invocation.method,
            metadata,
            self.request,
            timeout_s,
            partial(self._over, number, target),
        )

    def _over(self, number: int, target: int, status: Any, reply: bytes | None) -> None:
        if self._rpcs.pop(number, None) is None:
            # It was cancelled.
            return
        router = self.state.router
        if router is not None:
            router.ended(target, status)
        life = self._life
        life.state.note(target, status)
        if life.tracing:
            life.trace(
                f"call {self.planned.number} attempt {number}: {status.code().name} "
                f"{status.details() or ''}",
            )
        self.attempt_ended(number, status, reply)

    def cancel_attempt(self, number: int) -> None:
        """See ``Exchange``."""
        rpc = self._rpcs.pop(number, None)
        if isinstance(rpc, Rpc):
            self._life.world.network.cancel(rpc)
        elif rpc is not None:
            rpc.cancel()

    def cut_attempt(self, number: int) -> None:
        """See ``Exchange``."""
        self.cancel_attempt(number)
        self._life.process.after(0.0, self.attempt_ended, number, ATTEMPT_CANCELLED, None)

    def set_timer(self, at: float | None) -> None:
        """See ``Exchange``."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._life.process.at(at, self.wake)

    def ended(self) -> None:
        """See ``Exchange``."""
        self._finished(self)
