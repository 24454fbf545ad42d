"""A TCP path between a client and a server that breaks when told to.

The faults are real ones, made with the socket: a reset is a TCP RST
(``SO_LINGER`` of zero), a dropped answer is bytes of the server that never reach
the client before the connection is reset. Nothing here looks into the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar, cast

__all__ = ["FaultyPath"]

_T = TypeVar("_T")

_LINGER_ZERO = struct.pack("ii", 1, 0)
_ANSWER_TIMEOUT_S = 1.0


class FaultyPath:
    """A proxy on a free port of 127.0.0.1, running on a thread of its own.

    All methods may be called from any thread. Without an upstream, or while the
    upstream refuses, connections are accepted and reset at once.
    """

    def __init__(self) -> None:
        self.port = 0
        # Set while answers are dropped.
        self.swallowing = threading.Event()
        self._upstream: int | None = None
        self._silent = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-path")

    def __enter__(self) -> Self:
        """Start listening; ``port`` is known from here on."""
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        """Reset every connection and stop listening."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def target(self) -> str:
        """What a client connects to."""
        return f"127.0.0.1:{self.port}"

    def lead_to(self, port: int | None) -> None:
        """Lead new connections to this port of 127.0.0.1, or nowhere."""
        self._upstream = port

    def reset(self) -> int:
        """Reset every connection, both ways; returns how many there were."""
        return self._run(self._reset())

    def drop_answers(self, seconds: float) -> int:
        """Swallow what the server sends for this long, then reset.

        Requests still pass, so handlers run whose answers no client gets. If the
        server said nothing in that time, waits up to a second for it to say
        something. Returns the number of bytes swallowed.
        """
        return self._run(self._drop_answers(seconds))

    def fall_silent(self) -> None:
        """Swallow what the server sends, also to who connects from now on, until ``speak``.

        Nothing is refused and no side is told, as when a firewall drops packets one way.
        """
        self._run(self._fall_silent())

    def speak(self) -> None:
        """Let answers pass again; the connections that missed some are reset."""
        self._run(self._speak())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _ClientEnd(_Link(self._links, self._silent), self), "127.0.0.1", 0
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        await self._reset()

    async def _reset(self) -> int:
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    async def _drop_answers(self, seconds: float) -> int:
        links = list(self._links)
        for link in links:
            link.swallowing = True
        self.swallowing.set()
        await asyncio.sleep(seconds)
        swallowed = [link.heard.wait() for link in links]
        if swallowed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await asyncio.gather(*swallowed)
        for link in links:
            link.reset()
        self.swallowing.clear()
        return sum(link.swallowed_bytes for link in links)

    async def _fall_silent(self) -> None:
        self._silent = True
        for link in self._links:
            link.swallowing = True

    async def _speak(self) -> None:
        self._silent = False
        await self._reset()

    async def connect_upstream(self, end: _ServerEnd) -> None:
        """Give a new client connection its other half; for this module only."""
        if self._upstream is None:
            raise ConnectionRefusedError
        await self._loop.create_connection(lambda: end, "127.0.0.1", self._upstream)


class _Link:
    """One client connection, its connection to the server, and its faults."""

    def __init__(self, links: set[_Link], silent: bool) -> None:
        self._links = links
        self._ends: list[_End] = []
        self.swallowing = silent
        self.swallowed_bytes = 0
        self.heard = asyncio.Event()

    def join(self, end: _End) -> None:
        self._ends.append(end)
        self._links.add(self)

    def reset(self) -> None:
        self._links.discard(self)
        self.heard.set()
        for end in self._ends:
            end.reset()

    def end_lost(self, error: Exception | None) -> None:
        """What happened to one half happens to the other: a reset, or a close."""
        if error is not None:
            self.reset()
            return
        self._links.discard(self)
        self.heard.set()
        for end in self._ends:
            end.transport.close()


class _End(asyncio.Protocol):
    """One half of a link; bytes received go out of the other half."""

    transport: asyncio.Transport
    peer: _End | None = None

    def __init__(self, link: _Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.get_extra_info("socket").setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )
        self._link.join(self)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.end_lost(exc)

    def reset(self) -> None:
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO
            )
        self.transport.abort()


class _ClientEnd(_End):
    def __init__(self, link: _Link, path: FaultyPath) -> None:
        super().__init__(link)
        self._path = path

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Nothing is read before there is somewhere to send it.
        self.transport.pause_reading()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        end = _ServerEnd(self._link)
        try:
            await self._path.connect_upstream(end)
        except OSError:
            self._link.reset()
            return
        if self.transport.is_closing():  # the client was reset meanwhile
            end.reset()
            return
        self.peer, end.peer = end, self
        self.transport.resume_reading()


class _ServerEnd(_End):
    def data_received(self, data: bytes) -> None:
        if self._link.swallowing:
            self._link.swallowed_bytes += len(data)
            self._link.heard.set()
            return
        super().data_received(data)
