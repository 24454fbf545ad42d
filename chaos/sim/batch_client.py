"""Driver of the product's ``run_batch``: a batch of calls at a client, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from chaos.check.history import read_value
from chaos.sim.event_loop import EventLoop
from chaos.sim.network import Network
from chaos.sim.planned import PlannedCall
from chaos.sim.service import Operation, encode
from rifl._client.aio_channel import run_batch
from rifl._client.batch import BatchItem, BatchResult
from rifl._client.state import ClientState

__all__ = ["ClientBatch", "value_of"]


class ClientBatch:
    """One batch, from its begin until ``ended`` is told what became of each item."""

    def __init__(
        self,
        events: EventLoop,
        network: Network,
        state: ClientState,
        calls: Sequence[PlannedCall],
        ended: Callable[[ClientBatch, list[BatchResult]], None],
    ) -> None:
        self.planned = calls[0]
        self.calls = calls
        self._events = events
        self._network = network
        self._state = state
        self._ended = ended

    def go(self) -> None:
        """Begin."""
        self._events.create_task(self._run())

    async def _run(self) -> None:
        state: Any = self._state
        channel: Any = self
        items = [
            BatchItem(
                encode(Operation(call.number, call.account, call.amount, call.behaviour)),
                call.key or None,
            )
            for call in self.calls
        ]
        method, deadline_s = self.planned.method, self.planned.deadline_s
        self._ended(self, await run_batch(state, channel, method, items, deadline_s, None))

    # What gRPC's channel, and a call of it, is to that.

    def unary_unary(self, method: str) -> Callable[..., asyncio.Future[bytes]]:
        """Return what sends requests."""
        return self._send

    def _send(self, body: bytes, *, timeout: float | None, metadata: Any) -> asyncio.Future[bytes]:
        router, answer = self._state.router, self._events.create_future()
        target = 0 if router is None else router.choose()

        def over(status: Any, reply: bytes | None) -> None:
            if router is not None:
                router.ended(target, status)
            if status.code() is grpc.StatusCode.OK and reply is not None:
                answer.set_result(reply)
            else:
                answer.set_exception(_error(status))

        process, method = self._events.process, self.planned.method
        self._network.call(process, target, "batch", method, metadata, body, timeout, over)
        return answer


def _error(status: Any) -> grpc.aio.AioRpcError:
    initial, trailing = (
        grpc.aio.Metadata(*(found or ()))
        for found in (status.initial_metadata(), status.trailing_metadata())
    )
    return grpc.aio.AioRpcError(status.code(), initial, trailing, status.details())


def value_of(result: BatchResult) -> list[int] | None:
    """Return what an item's answer tells of its account."""
    return read_value(result.response) if result.ok else None
