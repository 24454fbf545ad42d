"""Requests of the client's own to a group, for whose metadata ``connect(metadata=)`` is asked."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

import grpc

from rifl._client.own_metadata import MetadataFunction, aio_entries_for, entries_for, own_failure

# Gives a request, by its stub and its method, what its metadata is asked for by.
Own: TypeAlias = Callable[[Any, str], Any]
# So many threads ask at once. A function that hangs keeps its thread.
_MOST = 64


def plain(stub: Any, method: str) -> Any:
    """Return the stub itself: there is no function."""
    return stub


def sync_own(function: MetadataFunction | None) -> Own:
    """Return what gives requests of threads their metadata."""
    if function is None:
        return plain
    return lambda stub, method: SyncOwnRequest(stub, method, function)


def aio_own(function: MetadataFunction | None) -> Own:
    """Return what gives requests of an event loop theirs."""
    if function is None:
        return plain
    return lambda stub, method: AioOwnRequest(stub, method, function)


class _Asked(Future[Any]):
    """What the path asks of gRPC's future."""

    def code(self) -> grpc.StatusCode:
        """Return OK for an answer; else UNKNOWN, whatever it was."""
        return grpc.StatusCode.OK if self.exception() is None else grpc.StatusCode.UNKNOWN


class SyncOwnRequest:
    """Sends a request after it asked for its metadata, in a thread of its own. Any thread.

    Threads begin with an empty context, as all requests of the client's own have.
    """

    def __init__(self, stub: Any, method: str, function: MetadataFunction) -> None:
        self._stub = stub
        self._method = method
        self._function = function
        # One for each that may begin: taken and given back by C, in the middle of anything.
        self._room = deque([None] * _MOST)

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        """Send one, and wait for its reply; raises as gRPC's call, also what the function raised.

        That thread may hang: the caller waits no longer than ``timeout``.
        """
        try:
            return self.future(request, timeout).result(timeout)
        except (grpc.RpcError, ValueError):
            raise
        except Exception as error:
            raise own_failure(self._method, error) from error

    def future(self, request: Any, timeout: float | None = None) -> _Asked:
        """Begin one. ``timeout`` is of both."""
        asked = _Asked()
        try:
            self._room.pop()
        except IndexError:
            asked.set_exception(RuntimeError(f"{_MOST} requests wait for their metadata"))
            return asked
        end = None if timeout is None else time.monotonic() + timeout
        try:
            threading.Thread(
                target=self._send, args=(asked, request, end), name="curp-metadata", daemon=True
            ).start()
        except RuntimeError as error:
            # No more threads here.
            self._room.append(None)
            asked.set_exception(error)
        return asked

    def _send(self, asked: _Asked, request: Any, end: float | None) -> None:
        try:
            try:
                metadata = entries_for(self._function, self._method)
            finally:
                self._room.append(None)
            call = self._stub.future(request, timeout=_left_s(end), metadata=metadata)
        except BaseException as error:  # noqa: BLE001 - the application's, or the channel is closed
            asked.set_exception(error)
            return
        call.add_done_callback(lambda done: _pass_on(done, asked))


def _pass_on(call: Any, asked: _Asked) -> None:
    error = TimeoutError("cancelled") if call.cancelled() else call.exception()
    if error is None:
        asked.set_result(call.result())
    else:
        asked.set_exception(error)


class AioOwnRequest:
    """The same on an event loop."""

    def __init__(self, stub: Any, method: str, function: MetadataFunction) -> None:
        self._stub = stub
        self._method = method
        self._function = function

    async def __call__(self, request: Any, timeout: float | None = None) -> Any:
        """Send one, and return its reply; raises as gRPC's call, also what the function raised."""
        end = None if timeout is None else time.monotonic() + timeout
        asking = asyncio.get_running_loop().create_task(
            aio_entries_for(self._function, self._method), context=contextvars.Context()
        )
        try:
            async with asyncio.timeout(timeout):
                metadata = await asking
        except TimeoutError as error:
            raise own_failure(self._method, error) from error
        return await self._stub(request, timeout=_left_s(end), metadata=metadata)


def _left_s(end: float | None) -> float | None:
    # gRPC takes one that is over for what it is.
    return None if end is None else max(0.0, end - time.monotonic())
