"""A server of a log, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import sharedlog
from sharedlog._service.server import LogServer, Options

T = TypeVar("T")
LISTEN = "127.0.0.1:0"


class Served:
    """One server, which can be stopped and started."""

    def __init__(self, log: sharedlog.Log, options: Options) -> None:
        self._log = log
        self.options = options
        self.loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.address = ""
        self.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Have the loop do it."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(30)

    def start(self) -> None:
        """Listen; again at the same port."""
        options = self.options._replace(listen=self.address or self.options.listen)

        async def made() -> LogServer:
            server = LogServer(self._log, self._log._place, options)
            await server.start()
            return server

        self.server = self.run(made())
        self.address = self.server.address

    def stop(self, grace_s: float = 0.0) -> None:
        """Stop listening."""
        self.run(self.server.stop(grace_s))

    def close(self) -> None:
        """Stop, for good."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@contextmanager
def served(log: sharedlog.Log, **options: Any) -> Iterator[Served]:
    """Serve a log that is open."""
    server = Served(log, Options(LISTEN, **options))
    try:
        yield server
    finally:
        server.close()
