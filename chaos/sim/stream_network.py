"""Model of the world: streams on the network, in order until the connection is lost.

A lost message is a lost connection: what was sent before it arrives, what is sent after it
does not, and each side is told by itself, soon or after a long silence. A server is told
of a request stream that broke off by what looks like its end; that its caller is gone it
learns a moment later, as gRPC has it, now and then too late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from chaos.sim.faults import Fault
from chaos.sim.loop import Loop, Process
from chaos.sim.network import SILENCE_S, Network, Rpc

__all__ = ["Listener", "StreamRpc"]

# Until a stream is looked at again whose request is not taken yet.
_AGAIN_S = 0.001
# How often a server learns late that its caller is gone: long after what looks like an end.
_LATE = 0.4


class Listener(Protocol):
    """What a server does with the messages of an attempt."""

    def message(self, data: bytes) -> None:
        """Take a message of a request stream."""

    def end(self) -> None:
        """Take the end of a request stream, or what looks like it."""

    def gone(self) -> None:
        """Handle that the caller is gone."""


class StreamRpc(Rpc):
    """One attempt of a call with a stream on one side.

    ``number`` is the simulation's own for the call, ``sent`` what left its sender.
    """

    __slots__ = (
        "_answered",
        "_down",
        "_down_at",
        "_down_burst",
        "_loop",
        "_network",
        "_on_message",
        "_over",
        "_random",
        "_up",
        "_up_at",
        "_up_burst",
        "broken_by",
        "first",
        "listener",
        "number",
        "sent",
    )

    def __init__(
        self,
        loop: Loop,
        network: Network,
        random: Random,
        source: Process,
        target: int,
        kind: str,
        method: str,
        metadata: tuple[tuple[str, Any], ...],
        request: bytes,
        on_end: Callable[[Any, Any], None],
        on_message: Callable[[bytes], None],
        number: int,
    ) -> None:
        super().__init__(source, target, kind, method, metadata, request, self._ended)
        self._over = on_end
        self._loop = loop
        self._network = network
        self._random = random
        self._on_message = on_message
        self.number = number
        self._up_at = self._down_at = 0.0
        # What is in flight, in its order: a process that is suspended twice gets its events
        # in another.
        self._up: deque[list[bytes | None]] = deque()
        self._down: deque[list[bytes]] = deque()
        self._answered = False
        # What was sent last, which what is sent at the same time travels with; and when.
        self._up_burst: tuple[float, list[bytes | None]] = (-1.0, [])
        self._down_burst: tuple[float, list[bytes]] = (-1.0, [])
        # What arrives with its opening.
        self.first: list[bytes | None] = []
        self.listener: Listener | None = None
        self.sent: list[bytes] = []
        self.broken_by: Fault | None = None

    # -- a client's side ------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send a message of a request stream."""
        self.sent.append(data)
        self._send(data)

    def close(self) -> None:
        """End a request stream."""
        self._send(None)

    def left(self, fault: Fault | None = None) -> None:
        """Have the server told that the caller waits no more, unless it has answered."""
        host = self.host
        if self.cut or (host is not None and self not in host.rpcs):
            return
        delay = self._network.fate(self, to_server=True)
        if delay is not None:
            self.cut, self.broken_by = True, fault
            self._tell_server(delay)

    # -- a server's side ------------------------------------------------------------

    def reply(self, data: bytes) -> None:
        """Send a message of a response stream."""
        if self.ended or self.copy or self.cut:
            return
        now = self._loop.now
        if self._down_burst[0] == now and not self._network.weather:
            self._down_burst[1].append(data)
            return
        delay = self._network.fate(self, to_server=False)
        if delay is not None:
            self._down_burst = now, [data]
            self._down.append(self._down_burst[1])
            self._down_at = max(self._down_at, now + delay)
            self._loop.at(self._down_at, self.source, self._received)

    # -- the network's --------------------------------------------------------------

    def copied(self) -> Rpc:
        """See ``Rpc``; who takes it reads what the original has sent by then."""
        return StreamRpc(
            self._loop,
            self._network,
            self._random,
            self.source,
            self.target,
            self.kind,
            self.method,
            self.metadata,
            self.request,
            _nobody,
            _nothing,
            self.number,
        )

    def opened(self, arrives_at: float) -> None:
        """See ``Rpc``."""
        self._up_at = arrives_at
        self._up_burst = self._loop.now, self.first

    def lost(self, fault: Fault | None) -> None:
        """See ``Rpc``."""
        if not self.cut:
            random = self._random.random
            self.cut, self.broken_by = True, fault
            self._tell_server(0.2 * random() if random() < 0.7 else SILENCE_S * random())

    def in_order(self, when: float) -> float:
        """See ``Rpc``."""
        self._answered = True
        self._down_at = max(self._down_at, when)
        return self._down_at

    def _send(self, data: bytes | None) -> None:
        if self.cut or self.ended:
            return
        now = self._loop.now
        if self._up_burst[0] == now and not self._network.weather:
            self._up_burst[1].append(data)
            return
        delay = self._network.fate(self, to_server=True)
        if delay is not None:
            self._up_at = max(self._up_at, now + delay)
            self._up_burst = now, [data]
            self._loop.at(self._up_at, None, self._arrive, self._up_burst[1])

    def _arrive(self, burst: list[bytes | None]) -> None:
        host = self.host
        if host is None or self not in host.rpcs:
            return
        self._up.append(burst)
        if host.process.stopped_until > self._loop.now:
            host.process.after(0.0, self._taken)
        else:
            self._taken()

    def _taken(self) -> None:
        listener, host = self.listener, self.host
        if host is None or self not in host.rpcs:
            return
        if listener is None:
            # The request is still to be taken: not at once, where a process was suspended.
            host.process.after(_AGAIN_S, self._taken)
            return
        for data in self._up.popleft():
            if data is None:
                listener.end()
            else:
                listener.message(data)

    def _received(self) -> None:
        if self.ended or not self._down:
            return
        for data in self._down.popleft():
            if not self.ended:
                self._on_message(data)

    def _ended(self, status: Any, reply: Any) -> None:
        while self._answered and self._down:
            # The answer came behind them.
            for data in self._down.popleft():
                self._on_message(data)
        self._over(status, reply)

    def _tell_server(self, delay_s: float) -> None:
        self._loop.at(max(self._up_at, self._loop.now + delay_s), None, self._break)

    def _break(self) -> None:
        host = self.host
        if host is None or self not in host.rpcs:
            return
        random = self._random.random
        lag = 0.001 * random() if random() >= _LATE else 0.01 * (0.5 + 3 * random())
        self._up.append([None])
        host.process.after(0.0, self._taken)
        host.process.after(lag, self._gone)

    def _gone(self) -> None:
        if self.listener is not None:
            self.listener.gone()


def _nobody(status: Any, reply: Any) -> None:
    return None


def _nothing(data: bytes) -> None:
    return None
