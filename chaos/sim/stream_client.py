"""Driver of the product's ``KeptRequests`` and ``ReceivedResponses``: a stream of a client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from chaos.sim.faults import Fault
from chaos.sim.loop import Process
from chaos.sim.planned import PlannedCall
from chaos.sim.service import REQUEST_STREAMS, Operation, encode
from chaos.sim.stream_network import StreamRpc
from chaos.sim.world import World
from rifl._client.answers import FinalStatus
from rifl._client.errors import call_error
from rifl._client.resending import resumed
from rifl.core._calling.stream_attempts import Incomplete, KeptRequests, ReceivedResponses
from rifl.core._shared.stream_end import end_marker

__all__ = ["ClientStream"]

# So that a long stream can be sent once only.
_RESEND_BYTES = 250
_BROKEN = FinalStatus(grpc.StatusCode.UNKNOWN, "Exception iterating requests!")


class ClientStream:
    """The stream of one call, over all its attempts; ``messages`` are the application's."""

    def __init__(self, world: World, process: Process, planned: PlannedCall) -> None:
        self.sends = planned.method in REQUEST_STREAMS
        self.messages: list[list[int]] = []
        self._world = world
        self._process = process
        self._planned = planned
        self._kept = KeptRequests(_RESEND_BYTES)
        self._received = ReceivedResponses()
        self._source = iter(_parts(planned) if self.sends else ())
        self._rpcs: list[StreamRpc] = []

    def launch(
        self,
        target: int,
        header: tuple[str, bytes] | None,
        timeout_s: float | None,
        over: Callable[[Any, Any], None],
    ) -> StreamRpc:
        """Send an attempt; raises ``CallError`` where there can be none any more."""
        world, planned = self._world, self._planned
        if not self._kept.resendable:
            raise call_error(
                grpc.StatusCode.UNAVAILABLE,
                "the request stream is too long to be sent again",
                rpc_id=None,
                outcome=Outcome.UNKNOWN,
            )
        header = resumed(header, self._received.asked_after())
        request = b"" if self.sends else encode(_operation(planned, planned.amount))
        rpc = StreamRpc(
            world.loop,
            world.network,
            world.random,
            self._process,
            target,
            "request-stream" if self.sends else "response-stream",
            planned.method,
            () if header is None else (header,),
            request,
            over,
            self._take,
            planned.number,
        )
        self._rpcs.append(rpc)
        world.network.begin(rpc, timeout_s)
        if self.sends:
            self._send(rpc, 0)
        return rpc

    def die(self) -> None:
        """Take the death of its process, whose connections end."""
        for rpc in self._rpcs:
            if not rpc.ended:
                rpc.ended = True
                rpc.left(Fault.CLIENT_CRASH)

    @property
    def value(self) -> list[int] | None:
        """What a response stream tells of its account."""
        return self.messages[-1][1:] if self.messages else None

    def _take(self, data: bytes) -> None:
        self._received.take()
        self.messages.append([int(each) for each in data.split()])

    def _send(self, rpc: StreamRpc, at: int) -> None:
        kept = self._kept
        while not rpc.ended:
            try:
                message = kept.take(at)
            except Incomplete:
                # gRPC cancels an attempt whose iterator raises.
                over = rpc.on_end
                self._world.network.cancel(rpc)
                self._process.after(0.0, over, _BROKEN, None)
                return
            if message is not None:
                rpc.send(message)
                at += 1
            elif kept.ended:
                rpc.send(end_marker(at))
                rpc.close()
                return
            elif at and self._planned.pace_s:
                self._process.after(self._planned.pace_s, self._read, rpc, at)
                return
            else:
                self._next(at)

    def _read(self, rpc: StreamRpc, at: int) -> None:
        self._next(at)
        self._send(rpc, at)

    def _next(self, at: int) -> None:
        kept = self._kept
        # Another attempt may have read it meanwhile.
        if kept.has(at) or kept.ended:
            return
        message = next(self._source, None)
        if message is None:
            kept.end()
        else:
            kept.add(message)


def _operation(planned: PlannedCall, amount: int) -> Operation:
    return Operation(planned.number, planned.account, amount, planned.behaviour)


def _parts(planned: PlannedCall) -> list[bytes]:
    """Return the messages of a request stream; their amounts are the call's together."""
    share, rest = divmod(planned.amount, planned.messages)
    if planned.behaviour == "early":
        share, rest = 0, planned.amount
    amounts = [share + rest, *[share] * (planned.messages - 1)]
    return [encode(_operation(planned, amount)) for amount in amounts]
