"""The multicallable of one method for threads: blocking, or as a future."""

from __future__ import annotations

import time
from typing import Any, Protocol

import grpc

from _rifl_ground.owned_lock import OwnedLock
from curp._core.group_call import AttemptStep
from curp.client._attempt import GroupAttempt, LeaderOnly, Path, begin
from curp.client._leader_call import SyncLeaderCall
from curp.client._messages import split_header
from curp.client._record import Record, give_up
from curp.client._sync_recorded_call import SyncRecordedCall, is_ok


class SendingPath(Path, Protocol):
    """The path, with its ways to the witnesses and for a sync request."""

    sync: Any
    attempts: OwnedLock

    def refuse_within(self) -> None:
        """Raise ``ReentrantCall`` in a thread that is in the middle of another call."""

    def record(self, address: str, request: bytes) -> Record:
        """Send a record."""

    def target(self) -> int:
        """Return where calls go now, by its place among the targets."""

    def begun(self, attempt: SyncRecordedCall | SyncLeaderCall) -> None:
        """Take note of an attempt in the background."""


class SyncMultiCallable:
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
        self._path.refuse_within()
        begun = begin(self._path, self._method, body, metadata, timeout)
        if begun is None:
            found: tuple[Any, Any] = self._inner.with_call(body, timeout, metadata, *rest)
            return found
        if isinstance(begun, LeaderOnly):
            answered = False
            try:
                found = self._inner.with_call(body, timeout, metadata, *rest)
                answered = True
            finally:
                begun.end(answered=answered)
            return found
        attempt, given = begun
        records = self._record(attempt)
        try:
            reply, call = self._inner.with_call(body, timeout, (*given, attempt.entry), *rest)
        except grpc.RpcError as error:
            self._finish(attempt, records, error)
            raise
        except BaseException:
            give_up(records)
            attempt.end(AttemptStep.AGAIN)
            raise
        self._finish(attempt, records, call)
        return reply, call

    def future(self, body: bytes, timeout: float | None, metadata: Any, *rest: Any) -> Any:
        """Send it in the background."""
        self._path.refuse_within()
        begun = begin(self._path, self._method, body, metadata, timeout)
        target = self._path.target()
        if begun is None or isinstance(begun, LeaderOnly):
            leader = self._inner.future(body, timeout, metadata, *rest)
            if begun is not None:
                leader.add_done_callback(lambda done: begun.end(answered=is_ok(done)))
            if split_header(metadata) is None:
                # It has no identity to be sent elsewhere with.
                return leader
            alone = SyncLeaderCall(leader, target, self._path.knowledge.number)
            self._path.begun(alone)
            return alone
        attempt, given = begun
        records = self._record(attempt)
        leader = self._inner.future(body, timeout, (*given, attempt.entry), *rest)
        future = SyncRecordedCall(
            attempt, records, leader, self._path.sync, target, self._path.attempts
        )
        self._path.begun(future)
        return future

    def _record(self, attempt: GroupAttempt) -> list[Record]:
        """Send the call to all witnesses."""
        request = attempt.record
        return [self._path.record(address, request) for address in attempt.view.witnesses]

    def _finish(self, attempt: GroupAttempt, records: list[Record], call: Any) -> None:
        """Wait until the leader's answer may stand; raise what ends the attempt otherwise."""
        waiting = []
        for address, record in zip(attempt.view.witnesses, records, strict=True):
            if record.done:
                attempt.recorded(address, record)
            else:
                waiting.append((address, record))
        step = attempt.leader_answered(call)
        until = 0.0
        for address, record in waiting:
            if step is not AttemptStep.WAIT:
                break
            until = until or time.monotonic() + attempt.patience_s()
            if record.wait(max(until - time.monotonic(), 0.0)):
                step = attempt.recorded(address, record)
            else:
                step = attempt.patience_over((address,))
        if step is AttemptStep.SYNC:
            request, left_s = attempt.ask()
            try:
                reply = self._path.sync(request, timeout=left_s)
            except (grpc.RpcError, ValueError):
                reply = None
            step = attempt.sync_answered(reply)
        give_up(records)
        attempt.end(step)
        error = attempt.error(step, call)
        if error is not None:
            raise error
