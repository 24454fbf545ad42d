"""The state of a client, sync or aio: its session, the calls that wait, the observer."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import grpc

from lease_server.v1 import lease_server_pb2 as lease_pb
from rifl._client.answers import FinalStatus, read_answer
from rifl._client.errors import ANOTHER_STORE, CallError, ForkedProcessError, Status
from rifl._client.keys import take_key
from rifl._client.paths import open_path
from rifl._client.routing import Router
from rifl._client.settings import Settings
from rifl._client.shared_renewals import Renewals
from rifl._grpc.status import rich_status
from rifl._log import get_logger
from rifl._wire.header import HEADER_KEY
from rifl._wire.packed_header import encode_batch_header, encode_header
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_rpc import BatchLimits, BatchRpc
from rifl.core._calling.client_lease import ClientLease, Grant
from rifl.core._calling.client_session import ClientSession, LeaseStep
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._shared.errors import StoreMismatch
from rifl.core._shared.observer import EndedCall, Observers
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.reasons import LOST_REASONS

_log = get_logger("rifl.client")

_time_ns = time.time_ns
# Its own: an application that seeds the shared one would have all its processes send the same
# seeds, and repeat at the same moments.
_dice = random.Random()  # noqa: S311 - no secret
_getrandbits = _dice.getrandbits


class Waiter(Protocol):
    """A call that waits for a lease or for room in the window."""

    @property
    def ends_at(self) -> float | None:
        """When it waits no longer; None if it waits for ever."""

    def wake(self) -> None:
        """Look again. Any thread, at any time; never blocks."""

    def refuse(self, status: Status, answer: AttemptAnswer) -> None:
        """There will be no lease. Any thread; never blocks."""

    def close(self) -> None:
        """The channel was closed. Any thread; never blocks."""


class ClientState:
    """One client: its session under one lock, and the calls that wait for it.

    ``lease`` mirrors the session's while calls may be issued; None is the hot
    path's one sign that something else has to be looked at first. The lock is
    held for short computations only: never while sending, waiting or calling
    out. Any thread.
    """

    channel: Any

    def __init__(
        self,
        settings: Settings,
        router: Router | None = None,
        connect: Callable[[str], Any] | None = None,
    ) -> None:
        self.settings = settings
        # Opens a channel to another server, with the options of this one.
        self._connect = connect
        # What calls are sent by where the server named a path; set once, if at all.
        self.path: Any = None
        # Where there are several targets.
        self.router = router
        self.observer = Observers.of(settings.observer, _observer_failed)
        self._max_response_bytes = settings.max_response_bytes
        self.lock = threading.Lock()
        self.batch_limits = BatchLimits()
        self.lease: ClientLease | None = None
        # Up to which form the server knows the message that ends a request stream; 0: none.
        self.end_marker = 0
        self.closed = False
        # Nothing new is taken, what is under way goes on.
        self.closing = False
        self.forked = False
        self.session = ClientSession(
            window=settings.window,
            retry=settings.retry,
            unresolved_s=settings.unresolved_s,
            unresolved_limit=settings.unresolved_limit,
            grpc_retries=settings.grpc_retries,
            named=settings.session_name is not None,
        )
        # Ordered sets: who came first is served first.
        self.lease_waiters: dict[Waiter, None] = {}
        self.window_waiters: dict[Waiter, None] = {}
        # Why there is no lease yet, for calls that run out of time.
        self.lease_status: Status | None = None
        # Whether it was logged that the server cannot be reached, since it last was.
        self._told_away = False
        # With whose renewals this one's may travel; None: with nobody's.
        self.renewals: Renewals | None = None
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

    def look_at_lease(self) -> None:
        """Have whoever keeps the lease look at it now. Never blocks."""
        raise NotImplementedError

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

    def complete(self, call: IssuedCall, sent_at: float | None) -> None:
        """Acknowledge a call and let the next one in."""
        with self.lock:
            self.session.complete(call, sent_at)
            waiter = self.next_waiter()
        if waiter is not None:
            waiter.wake()

    def next_waiter(self) -> Waiter | None:
        """Under the lock: take the call that waited longest for the window."""
        for waiter in self.window_waiters:
            del self.window_waiters[waiter]
            return waiter
        return None

    def forget(self, waiter: Waiter) -> None:
        """Under the lock: a call waits no longer."""
        self.lease_waiters.pop(waiter, None)
        self.window_waiters.pop(waiter, None)

    # The lease.

    def lease_step(self) -> tuple[LeaseStep, float | None]:
        """Ask the session what to do for the lease."""
        with self.lock:
            # Who came first is, mostly, the first to run out of time.
            first = next(iter(self.lease_waiters), None)
            ends_at = None if first is None else first.ends_at
            return self.session.lease_step(self.now(), wanted=first is not None, ends_at=ends_at)

    def granted(self, reply: Any, sent_at: float) -> None:
        """Take a ``GrantReply`` or ``OpenSessionReply``; wakes all who waited for it."""
        session = self.settings.session_name is not None
        if not reply.client_id:
            # A generic handler for every method, in front of ours.
            self.grant_failed(
                FinalStatus(
                    grpc.StatusCode.UNIMPLEMENTED, "what answered is no lease service of ours"
                )
            )
            return
        grant = Grant(
            client_id=reply.client_id,
            token=reply.token,
            # An earlier release says a session's retention only.
            term_s=(reply.term_ms or (reply.retention_ms if session else 0)) / 1000,
            deduplicated=tuple(reply.deduplicated),
            not_deduplicated=tuple(reply.not_deduplicated),
            window=reply.window,
            streams=reply.heartbeat == lease_pb.HEARTBEAT_STREAM,
            store=reply.store,
            also_at_most=reply.also_at_most,
        )
        with self.lock:
            before = self.session.store
            takes = self.session.may_take(grant)
        if before not in (0, grant.store):
            _log.warning("another_store", hint=ANOTHER_STORE, client_id=grant.client_id)
        if not takes:
            self.grant_failed(_another_session())
            return
        self.end_marker = reply.end_marker
        if reply.path and self.path is None and self._connect is not None:
            self.path = open_path(
                reply.path,
                self.channel,
                self._connect,
                self.settings.conflict_keys,
                self.settings.group_path,
            )
            if self.path is not None and self.settings.default_retry:
                self.session.retry = self.path.retry
        with self.lock:
            lease = self.session.granted(grant, sent_at)
            woken = self._lease_is_back(lease)
        _log.info("client_id_granted", client_id=grant.client_id, term_s=grant.term_s)
        for waiter in woken:
            waiter.wake()

    def renewed(self, lease: ClientLease, reply: Any, sent_at: float) -> None:
        """Take a ``RenewReply``, refusals on a stream included."""
        if reply.refused:
            self.lease_lost(lease, reply.refused)
            return
        # What the server that answers now can do: it may be of another version than the one before.
        self.end_marker = reply.end_marker
        with self.lock:
            self.session.renewed(
                lease, reply.term_ms / 1000, reply.token, sent_at, reply.also_at_most
            )
            woken = self._lease_is_back(lease) if lease is self.session.lease else []
        for waiter in woken:
            waiter.wake()

    def not_accompanied(self, lease: ClientLease) -> None:
        """Take that another channel's request did not renew this lease: ask for ourselves."""
        with self.lock:
            self.session.not_accompanied(lease, self.now(), self.jitter())
        self.look_at_lease()

    def renewal_failed(self, lease: ClientLease, status: Status) -> None:
        """Take the error of a renewal."""
        answer = read_answer(status)
        now = self.now()
        # Other refusals say nothing about the lease; but past its end there is
        # nothing to keep.
        if answer.reason in LOST_REASONS or (not answer.transient and now >= lease.expires_at):
            self.lease_lost(lease, answer.reason or answer.code)
            return
        self.lease_status = status
        self._tell_away(status)
        with self.lock:
            self.session.lease_failed(now, self.jitter())

    def grant_failed(self, status: Status) -> None:
        """Take the error of a Grant: final for all who wait, or to be repeated."""
        answer = read_answer(status)
        self.lease_status = status
        if answer.transient:
            self._tell_away(status)
        with self.lock:
            self.session.lease_failed(self.now(), self.jitter())
            refused = [] if answer.transient else list(self.lease_waiters)
            for waiter in refused:
                del self.lease_waiters[waiter]
        for waiter in refused:
            waiter.refuse(status, answer)

    def _tell_away(self, status: Status) -> None:
        # Once, however often it is tried: calls wait and say so themselves when time is up.
        if not self._told_away and not self.closed:
            self._told_away = True
            _log.warning(
                "lease_server_not_reached", code=status.code().name, details=status.details()
            )

    def session_ended(self) -> None:
        """Take that the named session is closed: the server refuses whoever opens it again."""
        lease = self.session.lease
        if lease is not None:
            self.lease_lost(lease, "closed")

    def lease_lost(self, lease: ClientLease, why: str) -> None:
        """Give a lease up."""
        with self.lock:
            self.session.lost(lease)
        _log.info("client_id_lost", client_id=lease.client_id, reason=why)
        self.tell_losses()

    def tell_losses(self) -> None:
        """Tell the application of lost leases; not under the lock."""
        with self.lock:
            losses = self.session.take_losses()
            if self.session.lease is None:
                self.lease = None
        for loss in losses:
            _log.warning(
                "lease_lost_with_calls_outstanding",
                client_id=loss.client_id,
                outstanding=loss.outstanding,
            )
            if self.settings.on_lease_lost is not None:
                try:
                    self.settings.on_lease_lost(loss.client_id)
                except Exception:  # noqa: BLE001 - the application's own
                    _log.exception("on_lease_lost_raised", client_id=loss.client_id)

    def _lease_is_back(self, lease: ClientLease) -> list[Waiter]:
        self._told_away = False
        self.lease_status = None
        if not (self.closed or self.closing or self.forked):
            self.lease = lease
        # A new client id has a window of its own.
        woken = [*self.lease_waiters, *self.window_waiters]
        self.lease_waiters.clear()
        self.window_waiters.clear()
        return woken

    def close_waiters(self) -> ClientLease | None:
        """Begin to close; return the lease to release, if nothing hangs on it."""
        with self.lock:
            self.closed = True
            self.lease = None
            waiters = [*self.lease_waiters, *self.window_waiters]
            self.lease_waiters.clear()
            self.window_waiters.clear()
            idle = self.session.idle and self.settings.session_name is None
            release = self.session.lease if idle else None
        for waiter in waiters:
            waiter.close()
        return release


def _observer_failed(method: str, error: Exception) -> None:
    _log.error("observer_failed", method=method, error=repr(error))


def _another_session() -> Status:
    code = grpc.StatusCode[StoreMismatch.code]
    text = f"{ANOTHER_STORE}; connect again to take the session as it is there"
    status = rich_status(code, StoreMismatch.reason, text)
    return FinalStatus(status.code, status.details, (), status.trailing_metadata)


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
