"""Driver of the product's ``AioPath``: a client's way to a group, on its event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from chaos.sim.batch_client import Channel
from chaos.sim.event_loop import EventLoop
from chaos.sim.network import Network
from chaos.sim.service import METHODS, decode
from chaos.sim.witness import FIRST_WITNESS
from curp.client._aio_path import AioPath
from curp.client._caller_keys import CallerKeys
from curp.client._messages import RECORD_TIMEOUT_S
from curp.client._record import Record
from curp.v1 import curp_pb2 as pb
from rifl._client.aio_status import finished_status
from rifl._client.answers import ATTEMPT_CANCELLED, FinalStatus

__all__ = ["GroupPath"]


class GroupPath(AioPath):
    """One life's. What is put in the place of the product's is a channel, and records' streams."""

    def __init__(
        self,
        events: EventLoop,
        network: Network,
        current: Callable[[], int],
        *,
        misled: bool = False,
    ) -> None:
        """``misled``: its callable finds other conflict keys than the server's."""
        self._events = events
        self._network = network
        find = _elsewhere if misled else _account
        channel: Any = Channel(events, network, "group", current)
        keys = CallerKeys(dict.fromkeys(METHODS, find))
        super().__init__(channel, channel, keys, "fast", events.process.clock)

    def start(self, coroutine: Any) -> Any:
        """See ``AioPath``."""
        return self._events.create_task(coroutine)

    def record(self, address: str, request: bytes) -> Record:
        """See ``AioPath``: each record is a request of its own."""
        record = Record(request)

        def ended(status: Any, reply: Any) -> None:
            answered = status.code() is grpc.StatusCode.OK
            record.end(pb.RecordReply.FromString(reply).verdict if answered else None)

        target = FIRST_WITNESS + int(address.removeprefix("witness").partition(":")[0])
        process, method = self._events.process, "/curp.v1.Witness/Record"
        self._network.call(process, target, "record", method, (), request, RECORD_TIMEOUT_S, ended)
        return record

    def unrecorded(self, header: tuple[str, bytes]) -> tuple[str, bytes]:
        """Return the header of a call that goes to the leader alone: it has no number."""
        return header

    def send(
        self,
        target: int,
        method: str,
        body: bytes,
        header: tuple[str, bytes],
        timeout_s: float | None,
        on_end: Callable[[Any, Any], None],
    ) -> Any:
        """Send an attempt at a call; what can be cancelled. ``on_end(status, reply)``."""
        to_leader: list[_Sent] = []

        def inner(body: bytes, *, metadata: Any, timeout: float | None) -> _Sent:
            sent = _Sent(self._network)
            sent.rpc = self._network.call(
                self._events.process, target, "call", method, metadata, body, timeout, sent.end
            )
            to_leader.append(sent)
            return sent

        def over(call: Any) -> None:
            status = finished_status(call)
            on_end(status, to_leader[0].reply if status.code() is grpc.StatusCode.OK else None)

        with self._events.running():
            call = self.unary_unary(method, inner)(body, metadata=(header,), timeout=timeout_s)
        call.add_done_callback(over)
        return call


class _Sent:
    """What gRPC's call is to a path: one attempt at the leader."""

    def __init__(self, network: Network) -> None:
        self.rpc: Any = None
        self.reply: Any = None
        self._network = network
        self._status: Any = None
        self._callbacks: list[Callable[[Any], None]] = []

    def end(self, status: Any, reply: Any) -> None:
        """Take its answer."""
        self._status, self.reply = status, reply
        for each in self._callbacks:
            each(self)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at the end, which is not here yet."""
        self._callbacks.append(callback)

    def cancel(self) -> bool:
        """Give it up; its server goes on with it."""
        if self._status is not None:
            return False
        self._network.cancel(self.rpc)
        self.end(ATTEMPT_CANCELLED, None)
        return True

    def __getattr__(self, name: str) -> Any:
        """Return what asks for a part of its status, as a coroutine."""
        if name not in dir(FinalStatus):
            raise AttributeError(name)

        async def found() -> Any:
            return getattr(self._status, name)()

        return found


def _account(request: bytes) -> list[str]:
    return [decode(request).account]


def _elsewhere(request: bytes) -> list[str]:
    return ["elsewhere"]
