"""How a method's attempts are sent by threads: blocking, or as a future."""

from __future__ import annotations

import time
from typing import Any, Protocol

import grpc

from curp.client.attempt import GroupAttempt, Path, begin
from curp.client.sync_future import SyncFuture
from curp.client.sync_witness import cancel_all, record_done
from curp.core.group_call import Step

__all__ = ["SendingPath", "SyncUnary"]


class SendingPath(Path, Protocol):
    """The path, with its ways to the witnesses and for a sync request."""

    sync: Any

    def record(self, address: str, request: bytes, timeout_s: float) -> Any:
        """Send a record; the future of its verdict."""

    def target(self) -> int:
        """Return where calls go now, by its place among the targets."""

    def begun(self, attempt: SyncFuture) -> None:
        """Take note of an attempt in the background."""


class SyncUnary:
    """One method: as gRPC's multicallable below a rifl channel, which is all that uses it."""

    def __init__(self, path: SendingPath, method: str, inner: Any) -> None:
        self._path = path
        self._method = method
        self._inner = inner

    def __call__(self, body: bytes, timeout: float | None, metadata: Any, *rest: Any) -> Any:
        """Send it, and wait; the reply."""
        return self.with_call(body, timeout, metadata, *rest)[0]

    def with_call(
        self, body: bytes, timeout: float | None, metadata: Any, *rest: Any
    ) -> tuple[Any, Any]:
        """Send it, and wait; the reply, and its call."""
        begun = begin(self._path, self._method, body, metadata, timeout)
        if begun is None:
            found: tuple[Any, Any] = self._inner.with_call(body, timeout, metadata, *rest)
            return found
        attempt, given = begun
        records = self._record(attempt)
        try:
            reply, call = self._inner.with_call(body, timeout, (*given, attempt.entry), *rest)
        except grpc.RpcError as error:
            self._finish(attempt, records, error)
            raise
        except BaseException:
            cancel_all(records)
            attempt.end(Step.AGAIN)
            raise
        self._finish(attempt, records, call)
        return reply, call

    def future(self, body: bytes, timeout: float | None, metadata: Any, *rest: Any) -> Any:
        """Send it in the background."""
        begun = begin(self._path, self._method, body, metadata, timeout)
        if begun is None:
            return self._inner.future(body, timeout, metadata, *rest)
        attempt, given = begun
        records = self._record(attempt)
        target = self._path.target()
        leader = self._inner.future(body, timeout, (*given, attempt.entry), *rest)
        future = SyncFuture(attempt, records, leader, self._path.sync, target)
        self._path.begun(future)
        return future

    def _record(self, attempt: GroupAttempt) -> list[Any]:
        """Send the call to all witnesses."""
        timeout_s = attempt.record_timeout_s
        return [
            self._path.record(address, attempt.record, timeout_s)
            for address in attempt.view.witnesses
        ]

    def _finish(self, attempt: GroupAttempt, records: list[Any], call: Any) -> None:
        """Wait until the leader's answer may stand; raise what ends the attempt otherwise."""
        waiting = []
        for address, record in zip(attempt.view.witnesses, records, strict=True):
            if record.done():
                record_done(attempt, address, record)
            else:
                waiting.append((address, record))
        step = attempt.leader_answered(call)
        until = 0.0
        for address, record in waiting:
            if step is not Step.WAIT:
                break
            until = until or time.monotonic() + attempt.patience_s()
            try:
                record.exception(timeout=max(until - time.monotonic(), 0.0))
            except grpc.FutureTimeoutError:
                step = attempt.patience_over((address,))
            except grpc.FutureCancelledError:
                step = attempt.not_recorded()
            else:
                step = record_done(attempt, address, record)
        if step is Step.SYNC:
            request, left_s = attempt.ask()
            try:
                reply = self._path.sync(request, timeout=left_s)
            except (grpc.RpcError, ValueError):
                reply = None
            step = attempt.sync_answered(reply)
        cancel_all(records)
        attempt.end(step)
        error = attempt.error(step, call)
        if error is not None:
            raise error
