"""Exceptions that are no ``Exception``, of the application's code around an attempt or a lease."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl.aio
from rifl._client.sync_client import Timers
from tests.calls.services import Kinds, serving

UNARY, COUNT = "/t.Kinds/Unary", "/t.Kinds/Count"


class _Odd(BaseException):
    """No ``Exception``."""


class _Raises:
    """Raises at the first attempt of a method."""

    def __init__(self, method: str, error: BaseException) -> None:
        self._method = method
        self._error: BaseException | None = error
        self.seen = 0

    async def _look(self, details: Any) -> None:
        name = details.method if isinstance(details.method, str) else details.method.decode()
        if name.endswith(self._method):
            self.seen += 1
            error, self._error = self._error, None
            if error is not None:
                raise error


class _UnaryRaisesOnce(_Raises, grpc.aio.UnaryUnaryClientInterceptor):
    """Of unary calls."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        await self._look(details)
        return await continuation(details, request)


class _StreamRaisesOnce(_Raises, grpc.aio.UnaryStreamClientInterceptor):
    """Of response streams."""

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        await self._look(details)
        return await continuation(details, request)


@pytest.mark.parametrize("error", [_Odd(), asyncio.CancelledError()])
@pytest.mark.parametrize("method", ["/Grant", "/Renew"])
async def test_the_lease_is_kept_after_an_interceptor_raised_it(
    method: str, error: BaseException
) -> None:
    """The request is repeated, as after an ``Exception`` (DESIGN §5)."""
    raises = _UnaryRaisesOnce(method, error)
    with serving("sync", Kinds(), term_s=1.0) as service:
        async with rifl.aio.connect(service.address, interceptors=[raises]) as channel:
            call = channel.unary_unary(UNARY)
            async with asyncio.timeout(60):
                await call(b"a", timeout=60)
                while raises.seen < 2:
                    await asyncio.sleep(0.01)
                await call(b"b", timeout=60)


async def _called(channel: rifl.aio.Channel, path: str) -> None:
    if path == UNARY:
        await channel.unary_unary(UNARY)(b"a", timeout=60)
    else:
        [_ async for _ in channel.unary_stream(COUNT)(b"3", timeout=60)]


@pytest.mark.parametrize("path", [UNARY, COUNT])
async def test_a_caller_on_a_loop_gets_what_its_interceptor_raised(path: str) -> None:
    """At once: the call does not wait for an attempt that has ended (DESIGN §3)."""
    error = _Odd()
    raises = (_UnaryRaisesOnce if path == UNARY else _StreamRaisesOnce)(path, error)
    with serving("aio", Kinds()) as service:
        async with rifl.aio.connect(service.address, interceptors=[raises]) as channel:
            await channel.session.open(60)
            with pytest.raises(_Odd) as caught:
                await asyncio.wait_for(_called(channel, path), 60)
            assert caught.value is error
            async with asyncio.timeout(60):
                await channel.unary_unary(UNARY)(b"b", timeout=60)


def test_timers_go_on_after_a_callback_raised_it() -> None:
    """Retries, hedges and deadlines of all of a client's calls depend on their thread."""
    timers, called = Timers(), threading.Event()

    def raises() -> None:
        raise _Odd

    now = time.monotonic()
    timers.call_at(now, raises)
    timers.call_at(now, called.set)
    assert called.wait(60)
