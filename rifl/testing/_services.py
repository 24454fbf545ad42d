"""Servers for tests: in this process, on a real port, killed and restarted at will."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_channel import AioChannel
from rifl._client.aio_channel import connect as aio_connect
from rifl._client.sync_channel import Channel, connect
from rifl._server.deduplicator import Deduplicator
from rifl.testing._faults import AioFaultInterceptor, Faults, FaultyStore, SyncFaultInterceptor

_ADDRESS = "127.0.0.1"
_RESTART_TIMEOUT_S = 20.0

Add = Callable[[Any], object]


class _Base:
    """What sync and aio have in common: one deduplicator after the other."""

    def __init__(self, add: tuple[Add, ...], url: str, options: dict[str, Any]) -> None:
        self._add = add
        self._url = url
        self._options = {"drain_s": 0.0, **options}
        self._port = 0
        self.faults = Faults()
        self.dedup: Deduplicator
        self.restarts = 0

    @property
    def address(self) -> str:
        """Where the server listens; the same after a restart."""
        return f"{_ADDRESS}:{self._port}"

    def _open(self, kill: Callable[[], None]) -> Deduplicator:
        dedup = self.dedup = Deduplicator(self._url, **self._options)
        self.faults.policies = dedup._policies
        # Behaviors take the store from the engine when the first call arrives.
        dedup._engine.store = FaultyStore(
            dedup._engine.store,
            self.faults,
            kill,
        )
        return dedup

    def _serve_on(self, server: Any) -> None:
        for add in self._add:
            add(server)
        self.dedup.add_to_server(server)
        self._port = server.add_insecure_port(f"{_ADDRESS}:{self._port}")


class Service(_Base):
    """A running ``grpc.server``; made by ``serve``. Any thread."""

    def __init__(self, add: tuple[Add, ...], url: str, threads: int, options: Any) -> None:
        super().__init__(add, url, options)
        self._threads = threads
        self._up = threading.Event()
        self._start()
        self.channel: Channel = connect(self.address)

    def connect(self, **options: Any) -> Channel:
        """Return another channel to it, with an identity of its own; close it yourself."""
        return connect(self.address, **options)

    def plain_channel(self) -> grpc.Channel:
        """Return a channel without rifl, for callers that have only the header."""
        return grpc.insecure_channel(self.address)

    def kill(self) -> None:
        """Crash the server and restart it: calls break off, memory is lost.

        The durable state of the store stays. Returns when the new one serves.
        """
        self._restart()

    def close(self) -> None:
        """Stop for good."""
        self._up.wait(_RESTART_TIMEOUT_S)
        self.channel.close()
        self._stop()

    def _start(self) -> None:
        dedup = self._open(self._die)
        self._pool = ThreadPoolExecutor(self._threads)
        self._server = grpc.server(
            self._pool,
            interceptors=[SyncFaultInterceptor(self.faults, self._die), dedup.interceptor()],
        )
        self._serve_on(self._server)
        self._server.start()
        self._up.set()

    def _stop(self) -> None:
        self._server.stop(None).wait()
        self.dedup.close()
        self._pool.shutdown(wait=False)

    def _die(self) -> None:
        # From a call's own thread: another thread has to restart the server.
        self._up.clear()
        threading.Thread(target=self._restart, name="rifl-testing-restart").start()

    def _restart(self) -> None:
        self._up.clear()
        self._server.stop(None).wait()
        self.dedup._die()
        self._pool.shutdown(wait=False)
        self.restarts += 1
        self._start()


class AioService(_Base):
    """A running ``grpc.aio.server``; made by ``aio_serve``. On its loop only."""

    channel: AioChannel

    def connect(self, **options: Any) -> AioChannel:
        """Return another channel to it, with an identity of its own; close it yourself."""
        return aio_connect(self.address, **options)

    def plain_channel(self) -> grpc.aio.Channel:
        """Return a channel without rifl, for callers that have only the header."""
        return grpc.aio.insecure_channel(self.address)

    async def kill(self) -> None:
        """Crash the server and restart it, as ``Service.kill`` does."""
        await self._restart()

    async def start(self) -> None:
        """Serve."""
        dedup = self._open(self._die)
        self._server = grpc.aio.server(
            interceptors=[AioFaultInterceptor(self.faults, self._die), dedup.aio_interceptor()]
        )
        self._serve_on(self._server)
        await self._server.start()

    async def stop(self) -> None:
        """Stop, and cancel the calls in flight."""
        await self._server.stop(None)
        await self.dedup.aclose()

    async def settled(self) -> None:
        """Wait for a restart in progress."""
        if self._restarting is not None:
            await self._restarting

    _restarting: asyncio.Task[None] | None = None

    def _die(self) -> None:
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        await self._server.stop(None)
        self.dedup._die()
        self.restarts += 1
        await self.start()


@contextlib.contextmanager
def serve(*add: Add, url: str = "memory:", threads: int = 8, **options: Any) -> Iterator[Service]:
    """Serve in this process, and stop at the end.

    ``add``: what adds your servicers to a server, such as
    ``lambda server: add_BankServicer_to_server(Bank(), server)``; called again
    after each restart. ``url`` and ``options`` are ``rifl.Deduplicator``'s; give
    it a ``FakeClock`` as ``clock``. ``threads``: the server's pool.
    """
    service = Service(add, url, threads, options)
    try:
        yield service
    finally:
        service.close()


@contextlib.asynccontextmanager
async def aio_serve(*add: Add, url: str = "memory:", **options: Any) -> AsyncIterator[AioService]:
    """Serve on this event loop, and stop at the end. As ``serve``."""
    service = AioService(add, url, options)
    await service.start()
    service.channel = aio_connect(service.address)
    try:
        yield service
    finally:
        await service.settled()
        await service.channel.close()
        await service.stop()
