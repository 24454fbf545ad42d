"""Model of the world: the network between clients and servers, what a gRPC call meets.

TCP below gRPC orders and repeats bytes, so what a call can meet is: it arrives, late,
or not at all; its answer likewise; its caller is told by a broken connection, soon or
after a long silence; or not before its own deadline. A duplicate is what a proxy makes:
a copy that arrives later than the original, whose answer no caller gets. It makes none of a
call whose handler it has seen roll back, or say that nothing happened: such a copy could
still run. Nor does one run then that a server has, but has not begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

import grpc

from chaos.sim.faults import Coverage, Fault, Point
from chaos.sim.loop import Loop, Process, Timer
from rifl._client.answers import FinalStatus

__all__ = ["SILENCE_S", "Host", "Network", "Rpc", "Weather"]

_LOST = FinalStatus(grpc.StatusCode.UNAVAILABLE, "connection lost")
_REFUSED = FinalStatus(grpc.StatusCode.UNAVAILABLE, "connection refused")
# What tells that a connection was lost, or is not there.
NO_CONNECTION = frozenset({_LOST.details(), _REFUSED.details()})
_LATE = FinalStatus(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
# How long until a silent connection is given up by TCP or keepalive.
SILENCE_S = 15.0
_REMEMBERED = 20
# What a proxy sends elsewhere when a connection is lost.
_PROXIED = ("call", "batch")
_REPEATED = ("call", "batch", "request-stream", "response-stream")
# How the names of some clients end.
_SOME = ("1", "3", "5", "7", "9")
_CELLS = {
    "call": (Point.CALL, Point.ANSWER),
    "batch": (Point.BATCH, Point.BATCH_ANSWER),
    "request-stream": (Point.REQUEST_STREAM, Point.REQUEST_STREAM_ANSWER),
    "response-stream": (Point.RESPONSE_STREAM, Point.RESPONSE_STREAM_MESSAGE),
    "lease": (Point.LEASE, Point.LEASE_ANSWER),
    "resolve": (Point.RESOLVE, Point.RESOLVE_ANSWER),
    "session": (Point.SESSION, Point.SESSION_ANSWER),
    "witness": (Point.WITNESS, Point.WITNESS_ANSWER),
    "record": (Point.RECORDED, Point.RECORDED_ANSWER),
    "group": (Point.GROUP, Point.GROUP_ANSWER),
    "operator": (Point.OPERATOR, Point.OPERATOR_ANSWER),
}


class Host(Protocol):
    """A server process, as the network sees it."""

    process: Process
    rpcs: dict[Rpc, None]

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""


class Weather:
    """What a link is like for a time."""

    __slots__ = ("fault", "sends", "share", "some", "target", "until")

    def __init__(
        self,
        fault: Fault,
        target: int,
        until: float,
        share: float,
        *,
        some: bool = False,
        sends: bool = False,
    ) -> None:
        self.fault = fault
        self.target = target
        self.until = until
        self.share = share
        self.some = some
        self.sends = sends

    def meets(self, rpc: Rpc) -> bool:
        """Whether a call is on its way through it."""
        if self.sends:
            return rpc.source.name == f"server{self.target}"
        if self.target not in (-1, rpc.target):
            return False
        name = rpc.source.name
        return not self.some or (name.startswith("client") and name.endswith(_SOME))


class Rpc:
    """One attempt in flight, from its sender's side and its server's."""

    __slots__ = (
        "copy",
        "cut",
        "deadline_s",
        "ended",
        "host",
        "kind",
        "metadata",
        "method",
        "on_end",
        "original",
        "refused",
        "request",
        "source",
        "target",
        "timer",
    )

    def __init__(
        self,
        source: Process,
        target: int,
        kind: str,
        method: str,
        metadata: tuple[tuple[str, Any], ...],
        request: bytes,
        on_end: Callable[[Any, Any], None],
    ) -> None:
        self.source = source
        self.target = target
        self.kind = kind
        self.method = method
        self.metadata = metadata
        self.request = request
        self.on_end = on_end
        self.host: Host | None = None
        self.timer: Timer | None = None
        self.deadline_s: float | None = None
        self.ended = False
        self.copy = False
        self.original: Rpc | None = None
        # It was answered by a refusal that says that nothing, or not all of a batch, ran.
        self.refused = False
        # Nothing more arrives on its connection.
        self.cut = False

    def copied(self) -> Rpc:
        """Return what a proxy sends of it, whose answer no caller gets."""
        return Rpc(
            self.source,
            self.target,
            self.kind,
            self.method,
            self.metadata,
            self.request,
            _nobody,
        )

    # What only streams have to know.

    def opened(self, arrives_at: float) -> None:
        """Handle that it is on its way."""

    def lost(self, fault: Fault | None) -> None:
        """Handle that its connection is lost, of which neither side knows yet."""

    def left(self) -> None:
        """Handle that its sender no longer waits."""

    def in_order(self, when: float) -> float:
        """Return when what is sent to its sender arrives: not before what was sent before."""
        return when


class Network:
    """Carries calls between clients and ``hosts``, which come and go by their index."""

    def __init__(self, loop: Loop, random: Random, coverage: Coverage) -> None:
        self.hosts: dict[int, Host] = {}
        self.weather: list[Weather] = []
        self._loop = loop
        self._random = random.random
        self._coverage = coverage
        self.messages = 0
        # Copies on their way.
        self.copies = 0
        # How many hosts a proxy chooses among for what one of them lost; 0: there is none.
        self.proxied = 0
        # Calls that arrived not long ago.
        self._recent: deque[Rpc] = deque(maxlen=_REMEMBERED)

    # -- a client's side ------------------------------------------------------------

    def call(
        self,
        source: Process,
        target: int,
        kind: str,
        method: str,
        metadata: tuple[tuple[str, Any], ...],
        request: bytes,
        timeout_s: float | None,
        on_end: Callable[[Any, Any], None],
    ) -> Rpc:
        """Send a request; ``on_end(status, reply)`` is called once, unless cancelled."""
        rpc = Rpc(source, target, kind, method, metadata, request, on_end)
        self.begin(rpc, timeout_s)
        return rpc

    def begin(self, rpc: Rpc, timeout_s: float | None) -> None:
        """Send the request of an attempt."""
        if timeout_s is not None:
            rpc.deadline_s = rpc.source.clock() + timeout_s
            rpc.timer = rpc.source.after(timeout_s, self._late, rpc)
        delay = self.fate(rpc, to_server=True)
        if delay is not None:
            rpc.opened(self._loop.now + delay)
            self._loop.after(delay, self._arrive, rpc)
        self._maybe_copy(rpc, delay)

    def cancel(self, rpc: Rpc) -> None:
        """Give an attempt up; its server goes on with it."""
        rpc.ended = True
        if rpc.timer is not None:
            rpc.timer.cancel()
        rpc.left()

    # -- a server's side ------------------------------------------------------------

    def reply(self, rpc: Rpc, status: Any, reply: Any) -> None:
        """Send an answer."""
        host = rpc.host
        if host is not None:
            host.rpcs.pop(rpc, None)
        if rpc.ended or rpc.copy or rpc.cut:
            return
        delay = self.fate(rpc, to_server=False)
        if delay is not None:
            when = rpc.in_order(self._loop.now + delay)
            self._loop.at(when, rpc.source, self._end, rpc, status, reply)

    def send_again(self, target: int) -> None:
        """Have a proxy, whose connection is back, repeat calls that a host had already."""
        for rpc in self._recent:
            if rpc.target == target and self._random() < 0.5:
                self._coverage.hit(Fault.DUPLICATE, _CELLS[rpc.kind][0])
                self._repeat(rpc, 0.002 * self._random())

    def host_died(self, host: Host) -> None:
        """Break every connection of a host that is gone."""
        self.reset(host)

    def reset(self, host: Host, fault: Fault | None = None) -> None:
        """Break a host's connections: who waits is told, the host's work goes on."""
        for rpc in list(host.rpcs):
            if fault is not None:
                self._coverage.hit(fault, _CELLS[rpc.kind][1])
            if self.proxied and rpc.kind in _PROXIED and not rpc.copy and self._random() < 0.5:
                self._move(rpc)
                continue
            self._tell(rpc, _LOST, 0.001 + 0.02 * self._random())
            rpc.lost(fault)

    # --------------------------------------------------------------------------------

    def _arrive(self, rpc: Rpc) -> None:
        if rpc.copy:
            self.copies -= 1
        if rpc.original is not None and rpc.original.refused:
            return
        host = self.hosts.get(rpc.target)
        if host is None or not host.process.alive:
            self._tell(rpc, _REFUSED, 0.0005)
            return
        rpc.host = host
        host.rpcs[rpc] = None
        if rpc.kind in _REPEATED and not rpc.copy:
            self._recent.append(rpc)
        if host.process.stopped_until > self._loop.now:
            host.process.after(0.0, host.receive, rpc)
        else:
            host.receive(rpc)

    def _move(self, rpc: Rpc) -> None:
        """Have a proxy send an attempt unchanged to the next host, whose answer counts."""
        rpc.cut = True
        moved = rpc.copied()
        moved.target = (rpc.target + 1) % self.proxied
        moved.deadline_s = rpc.deadline_s
        moved.on_end = partial(self._end, rpc)
        self._coverage.hit(Fault.DUPLICATE, _CELLS[rpc.kind][0])
        self._loop.after(0.001 + 0.02 * self._random(), self._arrive, moved)

    def _tell(self, rpc: Rpc, status: FinalStatus, delay_s: float) -> None:
        if not (rpc.ended or rpc.copy):
            self._loop.at(self._loop.now + delay_s, rpc.source, self._end, rpc, status, None)

    def _late(self, rpc: Rpc) -> None:
        self._end(rpc, _LATE, None)
        rpc.left()

    def _end(self, rpc: Rpc, status: Any, reply: Any) -> None:
        if rpc.ended:
            return
        rpc.ended = True
        if rpc.timer is not None:
            rpc.timer.cancel()
        rpc.on_end(status, reply)

    def fate(self, rpc: Rpc, *, to_server: bool) -> float | None:
        """Return how long a message takes, None where it never arrives."""
        self.messages += 1
        random = self._random
        delay = 0.0002 + 0.0008 * random()
        if not self.weather:
            return delay
        now = self._loop.now
        cell = _CELLS[rpc.kind][0 if to_server else 1]
        for weather in self.weather:
            if weather.until <= now or not weather.meets(rpc):
                continue
            fault = weather.fault
            if fault is Fault.DELAY:
                self._coverage.hit(fault, cell)
                delay += weather.share * random()
            elif fault is Fault.LOSS:
                if random() < weather.share:
                    self._coverage.hit(fault, cell)
                    self._lost(rpc, fault)
                    return None
            elif (
                fault is Fault.PARTITION
                or (fault is Fault.PARTITION_TO and to_server)
                or (fault is Fault.PARTITION_FROM and not to_server)
            ):
                self._coverage.hit(fault, cell)
                if random() < weather.share:
                    self._lost(rpc, fault)
                    return None
                # TCP sends again until one side gives up.
                delay += weather.until - now + random() * 0.2
        return delay

    def _lost(self, rpc: Rpc, fault: Fault) -> None:
        random = self._random
        self._tell(rpc, _LOST, 0.2 * random() if random() < 0.7 else SILENCE_S * random())
        rpc.lost(fault)

    def _maybe_copy(self, rpc: Rpc, delay: float | None) -> None:
        if rpc.kind == "witness":
            # No proxy is between a leader and its witnesses.
            return
        for weather in self.weather:
            if weather.fault is not Fault.DUPLICATE or weather.until <= self._loop.now:
                continue
            if self._random() >= weather.share:
                continue
            self._coverage.hit(Fault.DUPLICATE, _CELLS[rpc.kind][0])
            # Mostly soon; now and then long after everything is over.
            late = self._random()
            later = 0.05 * late if self._random() < 0.7 else 25.0 * late * late
            self._repeat(rpc, (delay or 0.0) + later)

    def _repeat(self, rpc: Rpc, delay_s: float) -> None:
        self.copies += 1
        self._loop.after(delay_s, self._arrive, _copy(rpc))


def _copy(rpc: Rpc) -> Rpc:
    copy = rpc.copied()
    copy.copy = True
    copy.original = rpc
    return copy


def _nobody(status: Any, reply: Any) -> None:
    return None
