"""The state of a client, sync or aio: its session, the lease, the calls, the observer."""

from __future__ import annotations

import os
import random
import time
import weakref
from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.log import get_logger
from rifl._client.errors import CallError, ForkedProcessError
from rifl._client.keys import take_key
from rifl._client.lease_state import LeaseState
from rifl._client.routing import Router
from rifl._client.settings import Settings
from rifl._wire.header import HEADER_KEY
from rifl._wire.packed_header import encode_batch_header, encode_header
from rifl.core._calling.batch_rpc import BatchLimits, BatchRpc
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.observer import EndedCall, Observers
from rifl.core._shared.outcome import Outcome

_log = get_logger("rifl.client")

_time_ns = time.time_ns
# Its own: an application that seeds the shared one would have all its processes send the same
# seeds, and repeat at the same moments.
_dice = random.Random()  # noqa: S311 - no secret
_getrandbits = _dice.getrandbits


class ClientState(LeaseState):
    """One client: its session under one lock, and the calls that wait for it.

    ``lease`` mirrors the session's while calls may be issued; None is the hot
    path's one sign that something else has to be looked at first. The lock is
    held for short computations only: never while sending, waiting or calling
    out. Any thread.
    """

    def __init__(
        self,
        settings: Settings,
        router: Router | None = None,
        connect: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(settings, connect)
        # Where there are several targets.
        self.router = router
        self.observer = Observers.of(settings.observer, _observer_failed)
        self.batch_limits = BatchLimits()
        self._max_response_bytes = settings.max_response_bytes
        _states.add(self)

    # Clock and dice, in one place.

    now = staticmethod(time.monotonic)
    jitter = staticmethod(_dice.random)

    @staticmethod
    def stamp() -> tuple[int, int]:
        """Return a call's stamp: time in microseconds and a random seed."""
        return _time_ns() // 1000, _getrandbits(64)

    def header(self, call: IssuedCall) -> tuple[str, bytes]:
        """Return the metadata entry of a call's current attempt."""
        return (HEADER_KEY, encode_header(call, self._max_response_bytes))

    def batch_header(self, rpc: BatchRpc) -> tuple[str, bytes]:
        """Return the metadata entry of one RPC of a batch."""
        return (HEADER_KEY, encode_batch_header(rpc, self._max_response_bytes))

    def check_usable(self) -> None:
        """Raise ``ForkedProcessError`` in a child of the channel's process."""
        if self.forked:
            raise forked_error()
        if self.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")

    def invoked(
        self,
        method: str,
        metadata: Any,
        timeout_s: float | None,
        *,
        decode: Any = None,
        stream: bool = False,
        hedges: bool = True,
    ) -> tuple[Invocation, tuple[Any, ...]]:
        """Take a call from its caller; return it, and the metadata that its attempts carry.

        Raises ``BadHeaderError`` for two keys. From here on the observer waits for its end.
        """
        now = self.now()
        key, metadata = take_key(metadata)
        begun = None
        if self.observer is not None:
            metadata, begun = self.observer.call_begins(method, metadata)
        deadline = None if timeout_s is None else now + timeout_s
        hedge_after_s = self.settings.hedge_after_s if hedges else None
        invocation = Invocation(
            method, now, deadline, key, stream, hedge_after_s, self.stamp(), decode, begun
        )
        return invocation, tuple(metadata or ())

    def tell_first(
        self, method: str, call: IssuedCall, sent_at: float, code: str, begun: Any
    ) -> None:
        """Tell the observer, of which there is one, of a call that took one attempt."""
        outcome = Outcome.EXECUTED if code == "OK" else Outcome.UNKNOWN
        ended = EndedCall(method, call.rpc_id, 1, outcome, "", code, self.now() - sent_at)
        self.observer.call_ended(ended, begun)  # type: ignore[union-attr]

    def tell_plain(self, method: str, sent_at: float, code: grpc.StatusCode, begun: Any) -> None:
        """Tell the observer, of which there is one, of a call that was passed through."""
        outcome = Outcome.EXECUTED if code is grpc.StatusCode.OK else Outcome.UNKNOWN
        ended = EndedCall(method, None, 1, outcome, "", code.name, self.now() - sent_at)
        self.observer.call_ended(ended, begun)  # type: ignore[union-attr]


def _observer_failed(method: str, error: Exception) -> None:
    _log.error("observer_failed", method=method, error=repr(error))


def forked_error() -> CallError:
    """Build what a forked child's use of its parent's channel raises."""
    return ForkedProcessError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "this channel belongs to the parent process; connect again after the fork "
        "(gunicorn: in post_fork)",
        outcome=Outcome.NOT_EXECUTED,
        reason=ForkedProcessError.reason,
    )


_states: weakref.WeakSet[ClientState] = weakref.WeakSet()


def _mark_forked() -> None:
    # Else parent and child would draw the same.
    _dice.seed()
    # A thread of the parent may have held any lock, for ever now: take none.
    for state in list(_states):
        state.forked = True
        state.lease = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
