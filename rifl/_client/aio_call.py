"""The call object of the aio channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.aio_exchange import AioExchange
from rifl._client.aio_status import at_hand, finished_status
from rifl._client.answers import REPLACED
from rifl._client.errors import CallError, plain_error
from rifl._client.routing import ROUTED_TO
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.identity import RpcId
from rifl.core._shared.invariant import invariant

# Makes the exchange that goes on with a call after its first attempt failed.
Recovery = Callable[[IssuedCall, Callable[[], None]], AioExchange]


class UnaryUnaryCall(grpc.aio.UnaryUnaryCall):  # type: ignore[type-arg]
    """A unary call: sent, and retried, whether or not it is awaited.

    Cancelling it, or the task that awaits it, leaves its outcome unknown;
    ``rpc_id`` then serves to resolve it. Used on its event loop only.
    """

    # The first attempt is an inner call of gRPC's with nothing around it; an
    # exchange takes over when it fails, or is there from the start.
    # What most calls leave unchanged is set on the class, not for every call.
    _issued: IssuedCall | None = None
    _sent_at = 0.0
    _inner: Any = None
    _observed: tuple[str, Any] | None = None
    _exchange: AioExchange | None = None
    _over = False
    _cancelled = False

    def __init__(
        self, client: AioClient, deadline: float | None, recovery: Recovery | None = None
    ) -> None:
        self._client = client
        self._deadline = deadline
        self._recovery = recovery
        self._callbacks: list[Callable[[Any], None]] = []

    def follow(self, inner: Any, issued: IssuedCall | None, sent_at: float) -> None:
        """Take the first attempt, just sent; ``issued`` is None where there is no other."""
        self._inner = inner
        self._issued = issued
        self._sent_at = sent_at
        inner.add_done_callback(self._inner_done)

    def observe(self, method: str, begun: Any) -> None:
        """Have the observer told of the end, should the first attempt be it."""
        self._observed = (method, begun)

    def run(self, exchange: AioExchange, fault: CallError | None = None) -> None:
        """Let an exchange do all of it, or end with ``fault``."""
        self._exchange = exchange
        exchange.begin(fault)

    def finish(self) -> None:
        """Note that the call has ended."""
        self._over = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _inner_done(self, inner: Any) -> None:
        try:
            self._ended(inner)
        except BaseException:
            # Maybe a signal's, which the loop raised here: leave no seq without a waiting caller.
            if self._issued is not None:
                self._client.interrupted(self._issued)
            raise

    def _ended(self, inner: Any) -> None:
        issued = self._issued
        if issued is None:
            if self._observed is not None:
                method, begun = self._observed
                self._client.tell_plain(method, self._sent_at, at_hand(inner.code()), begun)
            self.finish()
        elif at_hand(inner.code()) is grpc.StatusCode.OK:
            self._client.complete(issued, self._sent_at)
            self._tell(issued, "OK")
            self.finish()
        elif self._cancelled:
            with self._client.lock:
                self._client.session.abandon(issued, self._client.now())
            self._tell(issued, "CANCELLED")
            self.finish()
        else:
            invariant(self._recovery is not None, "a call with an identity can be recovered")
            self._exchange = self._recovery(issued, self.finish)  # type: ignore[misc]
            self._inner = None
            at = getattr(inner, ROUTED_TO, None)
            self._exchange.resume(self._sent_at, finished_status(inner), at=at)

    def _tell(self, issued: IssuedCall, code: str) -> None:
        if self._observed is not None:
            method, begun = self._observed
            self._client.tell_first(method, issued, self._sent_at, code, begun)

    def __await__(self) -> Generator[Any, None, Any]:
        if self._exchange is None:
            try:
                return (yield from self._inner.__await__())
            except grpc.aio.AioRpcError as error:
                # The recovery began before gRPC woke us.
                if self._exchange is None:
                    raise plain_error(error) from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    self.cancel()
                    raise
                if self._exchange is None:
                    if self._cancelled or not self._inner.done():
                        self.cancel()
                        raise
                    lost = self._client.as_lost(finished_status(self._inner))
                    if lost is not REPLACED:
                        raise
                    raise plain_error(lost) from None
                # It was not the waiter that was cancelled but gRPC's call, as its channel ended.
        return (yield from self._exchange.result().__await__())

    @property
    def rpc_id(self) -> RpcId | None:
        """The call's identity; None before it was sent, and where there is none."""
        if self._exchange is not None:
            return self._exchange.rpc_id
        return self._issued.rpc_id if self._issued is not None else None

    def cancel(self) -> bool:
        """Cancel the call; False if it has ended."""
        if self._over:
            return False
        self._cancelled = True
        if self._exchange is not None:
            return self._exchange.cancel()
        cancelled: bool = self._inner.cancel()
        return cancelled

    def cancelled(self) -> bool:
        """Return whether the call was cancelled, here or where its status says so."""
        if self._cancelled or not self._over:
            return self._cancelled
        if self._exchange is None:
            return bool(self._inner.cancelled())
        status = self._exchange.status
        return status is not None and status.code() is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._over

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline, None if there is none."""
        if self._deadline is None:
            return None
        return max(self._deadline - self._client.now(), 0.0)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback`` with this call at the end, or now if it has ended."""
        if self._over:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def initial_metadata(self) -> Any:
        """Wait for the end; return the answer's initial metadata."""
        status = await self._status()
        return status.initial_metadata() if status else await self._inner.initial_metadata()

    async def trailing_metadata(self) -> Any:
        """Wait for the end; return the answer's trailing metadata."""
        status = await self._status()
        return status.trailing_metadata() if status else await self._inner.trailing_metadata()

    async def code(self) -> grpc.StatusCode:
        """Wait for the end; return the status code."""
        status = await self._status()
        code: grpc.StatusCode = status.code() if status else await self._inner.code()
        return code

    async def details(self) -> str:
        """Wait for the end; return the status text."""
        status = await self._status()
        details: str = status.details() if status else await self._inner.details()
        return details

    async def debug_error_string(self) -> Any:
        """Wait for the end; return gRPC's own account of it."""
        status = await self._status()
        return status.debug_error_string() if status else await self._inner.debug_error_string()

    async def wait_for_connection(self) -> None:
        """Wait until the call reached a server; raises where none was reached."""
        if self._exchange is None:
            try:
                await self._inner.wait_for_connection()
            except grpc.aio.AioRpcError as error:
                if self._exchange is None:
                    raise plain_error(error) from None
        if self._exchange is not None:
            await self._exchange.connected()

    async def _status(self) -> Any:
        """Wait for the end; None where the first attempt, without us, is all there was."""
        if self._exchange is None:
            await self._inner.code()
        return await self._exchange.finished() if self._exchange is not None else None
