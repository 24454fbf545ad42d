"""Driver of the product's ``BatchRun``: a batch of calls at a client, by events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from chaos.check.history import read_value
from chaos.sim.loop import Process, Timer
from chaos.sim.network import Network
from chaos.sim.planned import PlannedCall
from chaos.sim.service import Operation, encode
from rifl._client.batch import BatchItem, BatchResult, BatchRun, Send
from rifl._client.state import ClientState

__all__ = ["ClientBatch", "value_of"]


class ClientBatch:
    """One batch, from its begin until ``ended`` is told what became of each item.

    It drives ``BatchRun`` as a thread does that sends and waits.
    """

    def __init__(
        self,
        process: Process,
        network: Network,
        state: ClientState,
        calls: Sequence[PlannedCall],
        ended: Callable[[ClientBatch, list[BatchResult]], None],
    ) -> None:
        self.planned = calls[0]
        self.calls = calls
        self._process = process
        self._network = network
        self._state = state
        self._ended = ended
        self._timer: Timer | None = None
        self._waiting = self._woke = False
        items = [
            BatchItem(
                encode(Operation(call.number, call.account, call.amount, call.behaviour)),
                call.key or None,
            )
            for call in calls
        ]
        self._run = BatchRun(
            state,
            self.planned.method,
            items,
            self.planned.deadline_s,
            None,
            self._wake,
        )

    def go(self) -> None:
        """Carry on until something has to be waited for."""
        while True:
            step = self._run.next()
            if step is None:
                self._ended(self, self._run.results())
                return
            if isinstance(step, Send):
                self._send(step)
                return
            if not self._woke:
                break
            self._woke = False
        self._waiting = True
        if step.until is not None:
            self._timer = self._process.at(step.until, self._go_on)

    def _wake(self) -> None:
        self._woke = True
        if self._waiting:
            # As a thread would: later.
            self._process.after(0.0, self._go_on)

    def _go_on(self) -> None:
        if not self._waiting:
            return
        self._waiting = self._woke = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.go()

    def _send(self, step: Send) -> None:
        router = self._state.router
        with contextlib.nullcontext() if step.route is None else step.route:
            target = 0 if router is None else router.choose()

        def over(status: Any, reply: bytes | None) -> None:
            if router is not None:
                router.ended(target, status)
            if status.code() is grpc.StatusCode.OK and reply is not None:
                self._run.replied(reply)
            else:
                self._run.failed(status)
            self.go()

        self._network.call(
            self._process,
            target,
            "batch",
            self.planned.method,
            step.metadata,
            step.body,
            step.timeout_s,
            over,
        )


def value_of(result: BatchResult) -> list[int] | None:
    """Return what an item's answer tells of its account."""
    return read_value(result.response) if result.ok else None
