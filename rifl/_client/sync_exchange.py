"""The exchange on threads, the caller's own or the background's: sends a flow's attempts."""

from __future__ import annotations

import queue
import sys
import threading
from _thread import LockType, allocate_lock
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import grpc

from rifl._client.answers import FinalStatus
from rifl._client.errors import CallError
from rifl._client.exchange import Exchange
from rifl._client.state import forked_error
from rifl._client.sync_client import SyncClient
from rifl.core._calling.call_flow import CallFlow
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall

# Sends one attempt: its header entry and its timeout; returns gRPC's future.
Sender = Callable[[tuple[str, bytes] | None, float | None], Any]


class _SyncExchange(Exchange):
    def __init__(
        self,
        client: SyncClient,
        invocation: Invocation,
        send: Sender,
        call: IssuedCall | None = None,
    ) -> None:
        super().__init__(client, invocation, call)
        self._client = client
        self._send = send
        self._attempts: dict[int, Any] = {}

    def launch(
        self, number: int, header: tuple[str, bytes] | None, timeout_s: float | None
    ) -> None:
        try:
            future = self._send(header, timeout_s)
        except Exception as error:  # noqa: BLE001 - such as metadata of other types
            # The thread may be anybody's: it is the caller's error.
            self.fail(error)
            return
        self._attempts[number] = future
        future.add_done_callback(lambda done: self._attempt_done(number, done))

    def _attempt_done(self, number: int, future: Any) -> None:
        if future.code() is grpc.StatusCode.OK:
            self.attempt_ended(number, future, future.result())
            return
        if not hasattr(future, "debug_error_string"):
            # What gRPC makes of an exception in an application's interceptor.
            error = future.exception()
            if not isinstance(error, grpc.RpcError):
                self.fail(error)
                return
        self.attempt_ended(number, future, None)

    def cancel_attempt(self, number: int) -> None:
        future = self._attempts.get(number)
        if future is not None:
            future.cancel()


class BlockingExchange(_SyncExchange):
    """A call that its caller's thread waits for, and drives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timer_at: float | None = None
        self._over = False

    def post(self, event: Callable[[], None]) -> None:
        """Keep an event for the caller's thread."""
        self._inbox.put(event)

    def set_timer(self, at: float | None) -> None:
        """Bound the wait of the caller's thread."""
        self._timer_at = at

    def ended(self) -> None:
        """Let ``run`` return."""
        self._over = True

    def step(self) -> None:
        """Wait for one event, or for the time that was set, and handle it."""
        at = self._timer_at
        timeout_s = None if at is None else at - self.state.now()
        try:
            if timeout_s is not None and timeout_s <= 0:
                event = self._inbox.get_nowait()
            else:
                event = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            self.set_timer(None)
            self.wake()
            return
        self.handle(event)

    def run(self) -> Any:
        """Handle events until the end; return the reply or raise ``CallError``.

        Interrupted (KeyboardInterrupt), the call is cancelled: its outcome is
        unknown, and it can be resolved.
        """
        try:
            while not self._over:
                self.step()
        except BaseException:
            self.handle(lambda: self._give_up("interrupted"))
            raise
        if self.error is not None:
            raise self.error
        return self.reply


class CallFuture(_SyncExchange, grpc.Call, grpc.Future):  # type: ignore[type-arg]
    """A call in the background: what ``future`` returns.

    Callbacks run on a thread of gRPC's or of this library's and must not block.
    ``rpc_id`` names the call once it was sent, so that a cancelled one can be
    resolved. Any thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        # Without the lock: a signal's handler may wait there for another call, whose end comes
        # behind that of this one on gRPC's thread.
        self._callbacks: list[Callable[[], None]] = []
        self._waiters: list[LockType] = []
        self._timer: Any = None
        self._over = False
        self._cancelled = False

    def adopt(self, flow: CallFlow, number: int, attempt: Any) -> None:
        """Go on with a call whose first attempt is in flight."""
        self.flow = flow
        self._attempts[number] = attempt
        self.set_timer(flow.wake_at)
        attempt.add_done_callback(lambda done: self._attempt_done(number, done))

    # The exchange's shell.

    def set_timer(self, at: float | None) -> None:
        """See ``Exchange``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._client.timers.call_at(at, self.wake)

    def attempt_ended(self, number: int, status: Any, reply: Any) -> None:
        """See ``Exchange``."""
        if status.code() is grpc.StatusCode.OK or isinstance(status, FinalStatus | CallError):
            super().attempt_ended(number, status, reply)
            return

        # gRPC reports an error on the thread that must deliver its metadata: a callback
        # that asked for them there would deadlock, and the channel with it.
        def told() -> None:
            super(CallFuture, self).attempt_ended(number, status, reply)

        self._client.timers.call_at(self.state.now(), told)

    def ended(self) -> None:
        """See ``Exchange``."""
        with self._lock:
            self._over = True
            self._condition.notify_all()
        for waiter in self._waiters:
            waiter.release()
        with suppress(IndexError):
            while True:
                self._client.call_back(self._callbacks.pop(0))

    # grpc.Future.

    def cancel(self) -> bool:
        """Cancel the call; its outcome is unknown unless it was never sent."""
        with self._lock:
            if self._over:
                return self._cancelled
            self._cancelled = True
        self.give_up()
        return True

    def cancelled(self) -> bool:
        """Return whether the call was cancelled here."""
        return self._cancelled

    def running(self) -> bool:
        """Return whether the call is in flight."""
        return not self._over

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._over

    def result(self, timeout: float | None = None) -> Any:
        """Return the reply; raises ``CallError``, or as ``grpc.Future`` does."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.reply

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Return the ``CallError``, None for a reply; raises as ``grpc.Future`` does."""
        self._wait(timeout)
        if self._cancelled:
            raise grpc.FutureCancelledError
        error: Exception | None = self.error
        return error

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        """Return a traceback of the error, None for a reply."""
        error = self.exception(timeout)
        if error is None:
            return None
        try:
            raise error
        except grpc.RpcError:
            return sys.exc_info()[2]

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        """Call ``fn`` with this future at the end, or now if it has ended."""
        if not self.add_callback(lambda: fn(self)):
            fn(self)

    # grpc.Call. What an answer brings is there at the end.

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` at the end; return False if that is past."""
        self._callbacks.append(callback)
        if self._over:
            # Unless the end has taken it.
            with suppress(ValueError):
                self._callbacks.remove(callback)
                return False
        return True

    def is_active(self) -> bool:
        """Return whether the call is in flight."""
        return not self._over

    def time_remaining(self) -> Any:
        """Return the seconds to the deadline, None if there is none."""
        deadline = self.invocation.deadline
        return None if deadline is None else max(deadline - self.state.now(), 0.0)

    def initial_metadata(self) -> Any:
        """Wait for the end; return the answer's initial metadata."""
        return self._final().initial_metadata()

    def trailing_metadata(self) -> Any:
        """Wait for the end; return the answer's trailing metadata."""
        return self._final().trailing_metadata()

    def code(self) -> Any:
        """Wait for the end; return the status code."""
        return self._final().code()

    def details(self) -> Any:
        """Wait for the end; return the status text."""
        return self._final().details()

    def debug_error_string(self) -> Any:
        """Wait for the end; return gRPC's own account of it."""
        return self._final().debug_error_string()

    def _final(self) -> Any:
        self._wait(None)
        return self.status

    def _wait(self, timeout: float | None) -> None:
        if self.state.forked:
            # Its end would be told in the parent.
            raise forked_error()
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        longest_s = -1 if timeout is None else max(timeout, 0)
        if not self._over and not waiter.acquire(timeout=longest_s):
            raise grpc.FutureTimeoutError
