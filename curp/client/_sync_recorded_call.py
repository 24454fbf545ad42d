"""A recorded call of threads, in the background: one attempt, at leader and witnesses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.owned_lock import OwnedLock
from curp._core.group_call import AttemptStep
from curp.client._attempt import OVER, GroupAttempt
from curp.client._attempt_ends import AttemptError
from curp.client._record import Record, give_up


class SyncRecordedCall:
    """What gRPC's future is to a rifl channel, which is all that uses it.

    ``sync``: asks the leader that a call be in the log. ``target``: the place of the one that
    it was sent to. ``lock``: that of all attempts of the path.
    """

    def __init__(
        self,
        attempt: GroupAttempt,
        records: list[Record],
        leader: Any,
        sync: Any,
        target: int,
        lock: OwnedLock,
    ) -> None:
        self._target = target
        self._attempt = attempt
        self._records = records
        self._leader = leader
        self._sync = sync
        self._lock = lock
        self._asked = False
        self._over = False
        # Whose status the attempt's is: set at its end.
        self._status: Any = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._timer: threading.Timer | None = None
        self._unheard = set(attempt.view.witnesses)
        for address, record in zip(attempt.view.witnesses, records, strict=True):
            record.on_end(lambda done, at=address: self._recorded(at, done))  # type: ignore[misc]
        leader.add_done_callback(self._leader_done)

    # Events, on gRPC's threads.

    def _recorded(self, address: str, record: Record) -> None:
        with self._lock:
            if self._status is not None:
                return
            self._unheard.discard(address)
            step = self._attempt.recorded(address, record)
        self._attempt.look()
        self._take(step)

    def _leader_done(self, leader: Any) -> None:
        if leader.cancelled():
            with self._lock:
                if self._status is not None:
                    return
                self._status = leader
            self._end(AttemptStep.AGAIN)
            return
        with self._lock:
            if self._status is not None:
                return
            step = self._attempt.leader_answered(leader)
        if step is AttemptStep.WAIT:
            timer = self._timer = threading.Timer(self._attempt.patience_s(), self._patience_over)
            timer.daemon = True
            timer.start()
        self._take(step)

    def _patience_over(self) -> None:
        with self._lock:
            if self._status is not None:
                return
            step = self._attempt.patience_over(self._unheard)
        self._take(step)

    def _synced(self, asked: Any) -> None:
        self._sync_answered(asked.result() if is_ok(asked) else None)

    def _sync_answered(self, reply: Any) -> None:
        with self._lock:
            step = self._attempt.sync_answered(reply)
        self._take(step)

    def _take(self, step: AttemptStep) -> None:
        if step is AttemptStep.SYNC:
            self._ask()
        elif step in OVER:
            with self._lock:
                if self._status is not None:
                    return
                self._status = self._attempt.error(step, self._leader) or self._leader
            self._end(step)

    def _ask(self) -> None:
        with self._lock:
            if self._asked:
                return
            self._asked = True
            request, left_s = self._attempt.ask()
        try:
            asked = self._sync.future(request, timeout=left_s)
        except ValueError:
            # The channel is closed.
            self._sync_answered(None)
            return
        asked.add_done_callback(self._synced)

    def _end(self, step: AttemptStep) -> None:
        if self._timer is not None:
            self._timer.cancel()
        give_up(self._records)
        self._attempt.end(step)
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            self._over = True
        for callback in callbacks:
            callback(self)

    # What the exchange asks of a future. At the end only, but for the first two.

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at the end; now if it is over."""
        with self._lock:
            if not self._over:
                self._callbacks.append(callback)
                return
        callback(self)

    def cancel(self) -> bool:
        """Give the call up: its outcome is unknown."""
        cancelled: bool = self._leader.cancel()
        if not cancelled:
            # Its answer is here, but nothing else is any more.
            self._take(AttemptStep.AGAIN)
        return cancelled

    def leave(self, leader: int, number: int) -> None:
        """Give it up if it went to another replica than ``leader``, under ``number`` or before."""
        if leader != self._target and number >= self._attempt.view.number:
            self._take(AttemptStep.AGAIN)
            self._leader.cancel()

    def code(self) -> grpc.StatusCode:
        """Return its code."""
        code: grpc.StatusCode = self._status.code()
        return code

    def details(self) -> Any:
        """Return its text."""
        return self._status.details()

    def initial_metadata(self) -> Any:
        """Return what came in front of the answer."""
        return self._status.initial_metadata()

    def trailing_metadata(self) -> Any:
        """Return what came behind it."""
        return self._status.trailing_metadata()

    def debug_error_string(self) -> Any:
        """Return gRPC's text."""
        return self._status.debug_error_string()

    def result(self) -> Any:
        """Return the answer."""
        return self._leader.result()

    def exception(self) -> Any:
        """Return what it ended with, None for an answer."""
        return self._status if isinstance(self._status, AttemptError) else self._leader.exception()


def is_ok(call: Any) -> bool:
    """Whether gRPC's future ended with OK."""
    return not call.cancelled() and call.code() is grpc.StatusCode.OK
