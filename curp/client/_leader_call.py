"""Calls that are sent to the leader only, and can be left (DESIGN §7, the client path).

Without records there is no rule of a group in them: they are gRPC's own calls, but for
their end where another replica leads by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import grpc
import grpc.aio

from curp.client._attempt_ends import AttemptError, lost_answer

_WHY = "another replica leads by now"


class _LeaderCall:
    """``leader``: gRPC's call; ``target``: the place of the one that it was sent to.

    ``number``: of the configuration that was known then, 0 for none.
    """

    __slots__ = ("__weakref__", "_leader", "_left", "_number", "_target")

    def __init__(self, leader: Any, target: int, number: int) -> None:
        self._leader = leader
        self._target = target
        self._number = number
        self._left: AttemptError | None = None

    def leave(self, leader: int, number: int) -> None:
        """Give it up if it went to another replica than ``leader``, under ``number`` or before."""
        if leader != self._target and number >= self._number and not self._leader.done():
            self._left = lost_answer(_WHY)
            self._leader.cancel()

    def cancel(self) -> bool:
        """Give the call up: its outcome is unknown."""
        cancelled: bool = self._leader.cancel()
        return cancelled

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at the end; now if it is over."""
        self._leader.add_done_callback(lambda _: callback(self))

    def _ended(self) -> Any:
        """Whose status its own is. An answer that came before it was left stands."""
        left = self._left
        return left if left is not None and self._leader.cancelled() else self._leader


class SyncLeaderCall(_LeaderCall):
    """What gRPC's future is to a rifl channel, which is all that uses it."""

    __slots__ = ()

    def code(self) -> grpc.StatusCode:
        """Return its code."""
        code: grpc.StatusCode = self._ended().code()
        return code

    def details(self) -> Any:
        """Return its text."""
        return self._ended().details()

    def initial_metadata(self) -> Any:
        """Return what came in front of the answer."""
        return self._ended().initial_metadata()

    def trailing_metadata(self) -> Any:
        """Return what came behind it."""
        return self._ended().trailing_metadata()

    def debug_error_string(self) -> Any:
        """Return gRPC's text."""
        return self._ended().debug_error_string()

    def result(self) -> Any:
        """Return the answer."""
        return self._leader.result()

    def exception(self) -> Any:
        """Return what it ended with, None for an answer."""
        ended = self._ended()
        return ended if isinstance(ended, AttemptError) else self._leader.exception()


class AioLeaderCall(_LeaderCall):
    """What gRPC's call is to a rifl channel, which is all that uses it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._leader.__await__())
        except asyncio.CancelledError:
            ended = self._ended()
            task = asyncio.current_task()
            if ended is self._leader or (task is not None and task.cancelling()):
                raise
            raise aio_error(ended) from None

    def done(self) -> bool:
        """Whether it is over."""
        done: bool = self._leader.done()
        return done

    def cancelled(self) -> bool:
        """Whether it was cancelled by who sent it."""
        return self._left is None and bool(self._leader.cancelled())

    async def wait_for_connection(self) -> None:
        """Wait until the leader is reached."""
        await self._leader.wait_for_connection()

    async def code(self) -> Any:
        """Return its code, at the end."""
        return await self._of("code")

    async def details(self) -> Any:
        """Return its text."""
        return await self._of("details")

    async def initial_metadata(self) -> Any:
        """Return what came in front of the answer."""
        return await self._of("initial_metadata")

    async def trailing_metadata(self) -> Any:
        """Return what came behind it."""
        return await self._of("trailing_metadata")

    async def debug_error_string(self) -> Any:
        """Return gRPC's text."""
        return await self._of("debug_error_string")

    async def _of(self, name: str) -> Any:
        of_leader = await getattr(self._leader, name)()
        ended = self._ended()
        return of_leader if ended is self._leader else getattr(ended, name)()


def aio_error(error: AttemptError) -> grpc.aio.AioRpcError:
    """Return it as what a call of ``grpc.aio``'s raises."""
    return grpc.aio.AioRpcError(
        error.code(),
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*error.trailing_metadata()),
        error.details(),
    )
