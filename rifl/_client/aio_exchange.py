"""The exchange on an event loop: sends the attempts that a call's flow asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.answers import ATTEMPT_CANCELLED, CLOSED, USAGE_CLOSED, FinalStatus
from rifl._client.errors import CallError, Status
from rifl._client.exchange import Exchange
from rifl._client.own_metadata import INTERRUPTS
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall

# Sends one attempt: its header entry and its timeout; returns gRPC's call.
AioSender = Callable[[tuple[str, bytes] | None, float | None], Awaitable[Any]]


class AioExchange(Exchange):
    """A call in the background of its event loop, awaited or not."""

    def __init__(
        self,
        client: AioClient,
        invocation: Invocation,
        send: AioSender,
        call: IssuedCall | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(client, invocation, call)
        self._client = client
        self._send = send
        self.on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[int, Any] = {}
        self._cancelled = False
        self.inner: Any = None
        # Set where another attempt is sent, and at the end.
        self._moved = asyncio.Event()
        client.under_way.add(self)

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        """See ``Exchange``."""
        attempt = self._loop.create_task(self._attempt(number, header, timeout_s))
        attempt.add_done_callback(self._attempt_over)
        self._attempts[number] = attempt

    def _attempt_over(self, attempt: asyncio.Task[None]) -> None:
        if attempt.cancelled():
            return
        error = attempt.exception()
        if isinstance(error, INTERRUPTS):
            # An interrupt of the loop's run ended it, and the loop goes on.
            self.post(lambda: self._give_up("interrupted"))
        elif error is not None:
            # An interceptor's, of no ``Exception``: the caller gets it.
            self.fail(error)

    def cancel_attempt(self, number: int) -> None:
        """See ``Exchange``."""
        task = self._attempts.get(number)
        if task is not None:
            task.cancel()

    def cut_attempt(self, number: int) -> None:
        """See ``Exchange``. The task goes on: messages that it received are kept."""
        call = self._calls.get(number)
        if call is not None:
            call.cancel()

    def set_timer(self, at: float | None) -> None:
        """See ``Exchange``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_later(max(at - self.state.now(), 0.0), self.wake)

    def ended(self) -> None:
        """See ``Exchange``."""
        if not self._over.done():
            self._over.set_result(None)
        self._moved.set()
        self._client.under_way.discard(self)
        if self.error is not None:
            # Its frames will hold this; gRPC's call would hold the connection then.
            self.inner = None
        if self.on_end is not None:
            self.on_end()
            self.on_end = None

    async def finished(self) -> Any:
        """Wait for the end; return the final status."""
        if not self._over.done():
            await asyncio.shield(self._over)
        return self.status

    async def result(self) -> Any:
        """Wait for the end; return the reply or raise ``CallError``.

        Cancelling the waiter cancels the call, as gRPC has it. Of a call that was cancelled
        itself, or by the end of its channel, it raises ``asyncio.CancelledError``, as gRPC
        has it too; the ``CallError`` that tells the outcome is its ``__cause__``.
        """
        try:
            await self.finished()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.given_up:
            raise asyncio.CancelledError from self.error
        if self.error is not None:
            raise self.error
        return self.reply

    def cancel(self) -> bool:
        """Cancel the call; False if it has ended."""
        if self._over.done():
            return False
        self._cancelled = True
        self.give_up()
        return True

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled here."""
        return self._cancelled

    async def connected(self) -> None:
        """Wait until an attempt has reached a server; raises what the call ends with instead."""
        while not self._over.done():
            self._moved.clear()
            inner = self.inner
            if inner is not None:
                try:
                    await inner.wait_for_connection()
                except grpc.aio.AioRpcError:
                    # Another attempt may follow.
                    pass
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                else:
                    return
            if inner is self.inner and not self._over.done():
                await self._moved.wait()
        await self.result()

    async def receive(self, inner: Any) -> Any:
        """Wait for what an attempt answers."""
        return await inner

    async def _attempt(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        status: Status
        reply: Any = None
        try:
            try:
                inner = self.inner = self._calls[number] = await self._send(header, timeout_s)
                if number in self._cut:
                    inner.cancel()
            except CallError as error:
                # No server's word, though it looks like one: there is nothing to send.
                self.fail(error)
                return
            self._moved.set()
            reply = await self.receive(inner)
            status = FinalStatus(
                grpc.StatusCode.OK,
                await inner.details(),
                await inner.initial_metadata(),
                await inner.trailing_metadata(),
                await inner.debug_error_string(),
            )
        except grpc.aio.AioRpcError as error:
            # Frames hold gRPC's call, and that the connection, also of a channel that was closed.
            status = error.with_traceback(None)
        except grpc.aio.UsageError as error:
            if not self.state.closed and str(error) != USAGE_CLOSED:
                # Such as credentials for a call on a channel without them.
                self.fail(error)
                return
            status = CLOSED
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # We cancel it at the end of the call, or the end of the loop does.
                self.give_up()
                raise
            status = ATTEMPT_CANCELLED
        except Exception as error:  # noqa: BLE001 - an interceptor's; the caller gets it
            self.fail(error)
            return
        finally:
            self._calls.pop(number, None)
        self.attempt_ended(number, status, reply)
