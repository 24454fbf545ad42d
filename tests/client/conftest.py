"""One set of tests for both clients: calls through a sync channel or an aio one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rifl
import rifl.aio
from rifl.core._calling.retry import RetryPolicy

FAST = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
Connect = Callable[..., "Caller"]


class Caller:
    """A connected channel; the aio one lives on a loop in a thread of its own."""

    def __init__(self, kind: str, target: str | list[str], **settings: Any) -> None:
        settings.setdefault("retry", FAST)
        self.kind = kind
        if kind == "sync":
            self.channel: Any = rifl.connect(target, **settings)
            return
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

        async def connect() -> Any:
            return rifl.aio.connect(target, **settings)

        self.channel = self.on_loop(connect())

    def on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def call(self, request: bytes, method: str = "/test.Service/Echo", **options: Any) -> Any:
        """Call and wait."""
        if self.kind == "sync":
            return self.channel.unary_unary(method)(request, **options)

        async def call() -> Any:
            return await self.channel.unary_unary(method)(request, **options)

        return self.on_loop(call())

    def start(self, request: bytes, method: str = "/test.Service/Echo", **options: Any) -> Any:
        """Send without waiting; return the call object."""
        if self.kind == "sync":
            return self.channel.unary_unary(method).future(request, **options)

        async def start() -> Any:
            return self.channel.unary_unary(method)(request, **options)

        return self.on_loop(start())

    def result(self, call: Any) -> Any:
        if self.kind == "sync":
            return call.result(30)

        async def result() -> Any:
            return await call

        return self.on_loop(result())

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the channel, session or call object, await what is to be awaited."""
        if self.kind == "sync":
            return function(*args, **kwargs)

        async def do() -> Any:
            found = function(*args, **kwargs)
            return await found if asyncio.iscoroutine(found) else found

        return self.on_loop(do())

    @property
    def session(self) -> Any:
        return self.channel.session

    def close(self) -> None:
        self.do(self.channel.close)
        if self.kind == "aio":
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    callers: list[Caller] = []

    def make(target: str | list[str], **settings: Any) -> Caller:
        callers.append(Caller(request.param, target, **settings))
        return callers[-1]

    yield make
    for caller in callers:
        caller.close()
