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

__all__ = ["Channel", "ClientBatch", "value_of"]


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
        router = state.router

        def ended(target: int, status: Any) -> None:
            state.note(target, status)
            if router is not None:
                router.ended(target, status)

        choose = (lambda: 0) if router is None else router.choose
        channel: Any = Channel(self._events, self._network, "batch", choose, ended)
        items = [
            BatchItem(
                encode(Operation(call.number, call.account, call.amount, call.behaviour)),
                call.key or None,
            )
            for call in self.calls
        ]
        method, deadline_s = self.planned.method, self.planned.deadline_s
        self._ended(self, await run_batch(state, channel, method, items, deadline_s, None))


class Channel:
    """What gRPC's channel is to the product's client: it sends requests of one kind."""

    def __init__(
        self,
        events: EventLoop,
        network: Network,
        kind: str,
        choose: Callable[[], int],
        ended: Callable[[int, Any], object] = lambda target, status: None,
    ) -> None:
        """``choose``: the target of a request; ``ended`` is told of it, and of its status."""
        self._events = events
        self._network = network
        self._kind = kind
        self._choose = choose
        self._ended = ended

    def unary_unary(
        self, method: str, *, request_serializer: Any = bytes, response_deserializer: Any = bytes
    ) -> Callable[..., asyncio.Future[Any]]:
        """Return what sends requests."""

        def send(request: Any, *, timeout: float | None, metadata: Any = ()) -> Any:
            target, answer = self._choose(), self._events.create_future()

            def over(status: Any, reply: bytes | None) -> None:
                if answer.cancelled():
                    return
                self._ended(target, status)
                if status.code() is grpc.StatusCode.OK and reply is not None:
                    answer.set_result(response_deserializer(reply))
                else:
                    answer.set_exception(_error(status))

            body, process = request_serializer(request), self._events.process
            self._network.call(process, target, self._kind, method, metadata, body, timeout, over)
            return answer

        return send


def _error(status: Any) -> grpc.aio.AioRpcError:
    initial, trailing = (
        grpc.aio.Metadata(*(found or ()))
        for found in (status.initial_metadata(), status.trailing_metadata())
    )
    return grpc.aio.AioRpcError(status.code(), initial, trailing, status.details())


def value_of(result: BatchResult) -> list[int] | None:
    """Return what an item's answer tells of its account."""
    return read_value(result.response) if result.ok else None
