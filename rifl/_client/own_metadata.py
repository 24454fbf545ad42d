"""``connect(metadata=)``: what the application adds to the client's own requests (DESIGN §5)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import grpc

from _rifl_ground.refusals import Outcome
from rifl._client.errors import CallError, call_error
from rifl._client.keys import invalid_metadata

Entries: TypeAlias = Iterable[tuple[str, str | bytes]] | None
MetadataFunction: TypeAlias = Callable[[str], Entries | Awaitable[Entries]]
# What asyncio raises out of a loop's run, too, which may go on: Ctrl-C in a notebook.
INTERRUPTS = (KeyboardInterrupt, SystemExit)


def entries_for(function: MetadataFunction | None, method: str) -> Any:
    """Ask the application for the metadata of one attempt; None without a function.

    Under no lock: it may block. Raises ``CallError`` for an exception of it, and for what gRPC
    cannot send, which the thread that keeps the lease would take for a closed channel.
    """
    if function is None:
        return None
    try:
        return _checked(function(method))
    except INTERRUPTS:
        raise
    except BaseException as error:
        raise own_failure(method, error) from error


async def aio_entries_for(function: MetadataFunction | None, method: str) -> Any:
    """The same on an event loop, of a coroutine function or a plain one."""
    if function is None:
        return None
    try:
        found = function(method)
        return _checked(await found if inspect.isawaitable(found) else found)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise own_failure(method, error) from error
    except (*INTERRUPTS, GeneratorExit):
        raise
    except BaseException as error:
        raise own_failure(method, error) from error


def _checked(found: Any) -> Any:
    entries = tuple((name, value) for name, value in found or ())
    for name, value in entries:
        if not isinstance(name, str | bytes) or not isinstance(value, str | bytes):
            raise TypeError(f"metadata has texts or bytes: {name!r}")
    if (wrong := invalid_metadata(entries)) is not None:
        raise wrong
    return entries


def own_failure(method: str, error: BaseException) -> CallError:
    """Return the error of an attempt for which the application's function raised."""
    return call_error(
        grpc.StatusCode.UNAUTHENTICATED,
        f"{method} was not sent: connect(metadata=) raised {error!r}",
        rpc_id=None,
        outcome=Outcome.NOT_EXECUTED,
    )
