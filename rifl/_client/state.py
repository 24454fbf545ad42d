"""The state of a client, sync or aio: its session, the lease, the calls, the observer."""

from __future__ import annotations

import contextvars
import itertools
import math
import random
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import grpc

from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OwnedLock, OwnedWork
from _rifl_ground.refusals import Outcome
from _rifl_ground.system import at_forks
from lease_server.v1 import lease_server_pb2 as lease_pb
from rifl._client.answers import ENDED_BY_CHANNEL, REPLACED, FinalStatus, read_answer
from rifl._client.errors import (
    ANOTHER_STORE,
    ANOTHER_WRITER,
    NOT_HOSTED,
    CallError,
    Status,
    call_error,
    explained,
    reentrant,
)
from rifl._client.grpc_channels import Connect
from rifl._client.keys import take_key
from rifl._client.own_metadata import MetadataFunction
from rifl._client.routing import LEASE_SERVICE, Router
from rifl._client.settings import Settings
from rifl._client.shared_renewals import Renewals
from rifl._grpc.status import rich_status
from rifl._wire.header import HEADER_KEY
from rifl._wire.packed_header import encode_batch_header, encode_header
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_rpc import BatchLimits, BatchRpc
from rifl.core._calling.client_lease import ClientLease, LeaseGrant
from rifl.core._calling.client_session import ClientSession, LeaseStep
from rifl.core._calling.invocation import Invocation
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import in_ms
from rifl.core._calling.silence import ConnectionWatch, FailingConnection, TargetWatch
from rifl.core._shared.errors import (
    ForkedProcess,
    NotDeduplicated,
    ReentrantCall,
    RiflError,
    SessionClosed,
    StoreMismatch,
)
from rifl.core._shared.observer import EndedCall, Observers
from rifl.core._shared.reasons import LOST_REASONS

_log = get_logger("rifl.client")
_GROUP = "rifl.paths"

# So long after an end without an answer the state of the connection is looked at once more.
LAG_S = 0.005

_FAILING = grpc.ChannelConnectivity.TRANSIENT_FAILURE
# A channel that was closed meanwhile says nothing.
_CONNECTED = (None, grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.SHUTDOWN)

# To a call that waits for the lease, and is made by what the lease waits for.
_WITHIN_REQUEST = (
    "the channel's request for a client id waits for what made this call, the function of "
    "connect(metadata=) or an interceptor, and this call for the client id. Nothing of it was "
    "sent: make it on another channel"
)

_time_ns = time.time_ns
# Its own: an application that seeds the shared one would have all its processes send the same
# seeds, and repeat at the same moments.
_dice = random.Random()  # noqa: S311 - no secret
_getrandbits = _dice.getrandbits


def open_path(
    name: str,
    channel: Any,
    connect: Connect[Any],
    conflict_keys: Mapping[str, Callable[[Any], Any]],
    group_path: str,
    metadata: MetadataFunction | None,
) -> Any:
    """Return the path of that name over a channel, None if it is not installed or fails.

    The entry point is called with ``channel``, sync or aio, which reaches the server
    that named the path, ``connect``, which opens such a channel to any ``host:port`` (see
    ``Connect``), and ``conflict_keys``, ``group_path`` and ``metadata`` as the application gave
    them.
    What it returns has ``unary_unary(method, inner)``, which gives a multicallable to
    send attempts by in the place of ``inner``, ``close()``, and ``retry``: the policy for
    applications that gave none. A call sent by ``inner`` instead is as safe, but may take
    longer.
    """
    # Not above: it takes a tenth of what a client imports, and few calls travel by a path.
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=name):
        try:
            return entry.load()(channel, connect, conflict_keys, group_path, metadata)
        except Exception:  # noqa: BLE001 - another package's, and calls go on without it
            _log.exception("path_failed", path=name)
            return None
    _log.warning("path_not_installed", path=name)
    return None


class Waiter(Protocol):
    """A call that waits for a lease or for room in the window."""

    @property
    def ends_at(self) -> float | None:
        """When it stops waiting; None: never."""

    def wake(self) -> None:
        """Look again. Any thread, at any time; never blocks."""

    def refuse(self, status: Status, answer: AttemptAnswer) -> None:
        """There will be no lease. Any thread; never blocks."""

    def close(self) -> None:
        """The channel was closed. Any thread; never blocks."""


class Stub(Protocol):
    """What calls by a multicallable of one connection's."""

    def look_beneath(self) -> None:
        """Take another one before the next call. Any thread; never blocks."""


class ClientState:
    """One client: its session under one lock, and the calls that wait for it.

    ``lease`` mirrors the session's while calls may be issued; None is the hot
    path's one sign that something else must be looked at first. The lock is
    held for short computations only: never while sending, waiting or calling
    out. Any thread.
    """

    channel: Any = None

    def __init__(
        self,
        settings: Settings,
        router: Router | None = None,
        connect: Connect[Any] | None = None,
    ) -> None:
        self.settings = settings
        # Opens a channel to another server, with the options of this one.
        self._connect = connect
        # What calls are sent by where the server named a path; set once, if at all.
        self.path: Any = None
        self.lock = OwnedLock(reentrant)
        self.lease: ClientLease | None = None
        self.closed = False
        # New calls are refused; those in flight go on.
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
        # Those that no longer wait there, until they are told.
        self._to_be_told: dict[Waiter, None] = {}
        # Why there is no lease yet, for calls that run out of time.
        self.lease_status: Status | None = None
        # Whether it was logged that the server cannot be reached, since it last was.
        self._told_away = False
        # The renewals that this one's may travel with; None: it travels alone.
        self.renewals: Renewals | None = None
        # None where connections cannot be replaced: the application's own channel.
        self.watch: ConnectionWatch | None = None
        # Those of targets that take calls in turn, by their indices.
        self.watches: dict[int, TargetWatch] = {}
        self._replaced = False
        # What waits for an answer; not first attempts that no rifl object wraps.
        self.waiting: weakref.WeakSet[Any] = weakref.WeakSet()
        # What keeps a connection's multicallables.
        self.stubs: weakref.WeakSet[Stub] = weakref.WeakSet()
        # What is passed through, and waits for a connection however long.
        self.patient: weakref.WeakSet[Any] = weakref.WeakSet()
        self.failing = FailingConnection()
        # When a target was last seen without a connection, by its index.
        self._lost_at: dict[int, float] = {}
        # Where there are several targets.
        self.router = router
        # What asks for the lease runs the application's code: ``connect(metadata=)``, interceptors.
        self.keeping = OwnedWork()
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

    def tried_ms(self, timeout_s: float | None) -> int:
        """Return for how long a call that begins now may be tried, in milliseconds."""
        return in_ms(self.session.retry.max_elapsed_s if timeout_s is None else timeout_s)

    def batch_header(self, rpc: BatchRpc) -> tuple[str, bytes]:
        """Return the metadata entry of one RPC of a batch."""
        return (HEADER_KEY, encode_batch_header(rpc, self._max_response_bytes))

    def check_usable(self) -> None:
        """Raise ``rifl.core.ForkedProcess`` in a child of the channel's process."""
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

        Raises ``rifl.core.BadHeader`` for two keys. From here on the observer waits for its end.
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

    @property
    def target(self) -> int:
        """The index of the target that calls go to."""
        return 0 if self.router is None else self.router.targets.current

    @property
    def in_turn(self) -> Sequence[int]:
        """The indices of the targets over one store that take calls in turn; none: no turns."""
        return () if self.router is None else self.router.targets.one_store.used

    def calls_made(self) -> int:
        """Return a count that grows while calls are made."""
        lease, router = self.session.lease, self.router
        answers = 0 if router is None else sum([each.answers for each in router.awaited])
        return answers + (0 if lease is None else lease.tracker.following)

    def foreign(self, index: int, answer: AttemptAnswer, lease: ClientLease) -> bool:
        """Whether a target that is over another store refused; then it is left out.

        Not unless several are known to be over the lease's: a refusal speaks of the lease then.
        """
        router, reason = self.router, answer.reason
        if router is None or reason not in LOST_REASONS or not lease.store:
            return False
        mismatch = reason == StoreMismatch.reason
        if not mismatch and answer.store in (0, lease.store):
            return False
        of_store = router.targets.one_store.store == lease.store
        return of_store and router.refused(index, reason)

    def connectivity(self, index: int) -> grpc.ChannelConnectivity | None:
        """Return the state of the connection to a target, by its index; None: not known."""
        return None

    def connected(self, index: int) -> bool:
        """Whether there is a connection to a target, by its index; True where it is not known."""
        return self.connectivity(index) in _CONNECTED

    def lost(self, index: int, sent_at: float) -> bool:
        """Whether an attempt that reached no server had no connection, or lost it.

        gRPC tells of a call's end a while (``LAG_S``) before its channel's state changes, and may
        be connected again by the next look. What one call saw holds for all that were sent before.
        """
        if not self.connected(index):
            self._lost_at[index] = self.now()
        return sent_at <= self._lost_at.get(index, -math.inf)

    def call_failed(self) -> None:
        """Note that a call ended without an answer of its handler's."""
        if self.connectivity(self.target) is _FAILING:
            self.failing.called(self.now())
            self.look_at_lease()

    def to_stop(self) -> tuple[list[int], float | None]:
        """Return the targets whose channels stop connecting now, and when to look again."""
        count = getattr(self.channel, "unwatched", 0)
        if not count or self.closed:
            return [], None
        with self.lock:
            waiting = bool(self.waiting or self.patient or self.lease_waiters)
            in_flight = self.session.in_flight
        now, stopped, look_at = self.now(), [], None
        for index in range(count):
            current = index == self.target or index in self.in_turn
            at = self.failing.ends_at(waiting=waiting, in_flight=in_flight, current=current)
            if at is None or self.connectivity(index) is not _FAILING:
                continue
            if now >= at:
                stopped.append(index)
            else:
                look_at = at
        return stopped, look_at

    def tell_held(self) -> None:
        """Tell of attempts that wait for a token; not under the lock."""
        with self.lock:
            held = self.session.take_held()
        for each in held:
            if each.first:
                address = getattr(self.channel, "address", None)
                target = "" if address is None else address(each.target)
                if each.hedge:
                    _log.warning("hedges_held_back", target=target, method=each.method)
                else:
                    _log.warning("retries_held_back", target=target, method=each.method)
            if self.observer is not None:
                self.observer.attempt_held_back(each.method, hedge=each.hedge)

    def beginner(self) -> Callable[[tuple[int, int], float], IssuedCall | None]:
        """Return what issues a call whose first attempt has no exchange: under the lock.

        If the policy cuts that attempt off, the call is issued only if it would find a token then.
        """
        session = self.session
        if session.retry.attempt_timeout_s is None:
            return session.try_begin
        return lambda stamp, now: (
            session.try_begin(stamp, now) if session.may_cut(self.target) else None
        )

    # The lease, and the calls that wait for it.

    def look_at_lease(self) -> None:
        """Wake the thread or task that keeps the lease. Never blocks."""
        raise NotImplementedError

    def ask_for(self, waiter: Waiter, context: contextvars.Context) -> None:
        """Have the lease asked for that a call waits for, which was made in that context.

        Refuse a call of what is run in order to ask: it would wait for itself.
        """
        if not context.run(lambda: self.keeping.within):
            self.look_at_lease()
            return
        with self.lock:
            self.forget(waiter)
        status = _refusal(ReentrantCall, _WITHIN_REQUEST)
        waiter.refuse(status, read_answer(status))

    def complete(self, call: IssuedCall, sent_at: float | None) -> None:
        """Acknowledge a call and let the next one in."""
        with self.lock:
            self.session.complete(call, sent_at)
            woken = self.next_waiters()
        self.wake(woken)

    def interrupted(self, call: IssuedCall) -> None:
        """Set a call aside whose caller was interrupted, unless it has ended."""
        with self.lock:
            self.session.interrupted(call, self.now())
            woken = self.next_waiters()
        self.wake(woken)

    def next_waiters(self, most: int = 1) -> Sequence[Waiter]:
        """Under the lock: take the calls that waited longest for the window, for ``wake``.

        With them those that an interrupt kept from being told: a wake too many does no harm. But
        not one whose deadline has passed, which ends by its own timer: it would pass the room on to
        the next one, and so would hundreds, each within the other.
        """
        if not (self.window_waiters or self._to_be_told):
            return ()
        now = self.now()
        waits = (
            waiter
            for waiter in self.window_waiters
            if (ends_at := waiter.ends_at) is None or now < ends_at
        )
        for waiter in list(itertools.islice(waits, most)):
            self._to_be_told[waiter] = None
            del self.window_waiters[waiter]
        return list(self._to_be_told)

    def forget(self, waiter: Waiter) -> None:
        """Under the lock: a call waits no longer."""
        self.lease_waiters.pop(waiter, None)
        self.window_waiters.pop(waiter, None)

    def lease_step(self) -> tuple[LeaseStep, float | None]:
        """Ask the session what to do for the lease."""
        with self.lock:
            # Who came first is, mostly, the first to run out of time.
            first = next(iter(self.lease_waiters), None)
            ends_at = None if first is None else first.ends_at
            return self.session.lease_step(
                self.now(),
                wanted=first is not None,
                ends_at=ends_at,
                watch=None if self.in_turn else self.watch,
                in_flight=bool(self.waiting) or self.session.in_flight,
            )

    def granted(self, reply: Any, sent_at: float) -> None:
        """Take a ``GrantReply`` or ``OpenSessionReply``; wakes all who waited for it."""
        if not reply.client_id:
            # A generic handler for every method, in front of rifl's.
            self.grant_failed(
                FinalStatus(
                    grpc.StatusCode.UNIMPLEMENTED, "the server has no lease service of rifl's"
                )
            )
            return
        if not reply.token:
            self.grant_failed(_refusal(SessionClosed, ANOTHER_WRITER))
            return
        grant = LeaseGrant(
            client_id=reply.client_id,
            token=reply.token,
            term_s=reply.term_ms / 1000,
            deduplicated=tuple(reply.deduplicated),
            not_deduplicated=tuple(reply.not_deduplicated),
            window=reply.window,
            streams=reply.heartbeat == lease_pb.HEARTBEAT_STREAM,
            store=reply.store,
        )
        with self.lock:
            before = self.session.store
            takes = self.session.may_take(grant)
        if before not in (0, grant.store):
            _log.warning("another_store", hint=ANOTHER_STORE, client_id=grant.client_id)
        if not takes:
            self.grant_failed(
                _refusal(
                    StoreMismatch,
                    f"{ANOTHER_STORE}; connect again to use the session of that store",
                )
            )
            return
        if reply.path and self.path is None and self._connect is not None:
            self.path = open_path(
                reply.path,
                self.channel,
                self._connect,
                self.settings.conflict_keys,
                self.settings.group_path,
                self.settings.metadata,
            )
            if self.path is not None and self.settings.default_retry:
                self.session.use(self.path.retry)
        with self.lock:
            lease = self.session.granted(grant, sent_at, self.jitter())
            if self.router is not None:
                # Keys are of one store for as long as a session lives, and a path has a leader.
                takes_turns = self.settings.session_name is None and not reply.path
                store = grant.store if takes_turns else 0
                self.router.granted(store, self.jitter() if store else 0.0)
            woken = self._lease_is_back(lease)
        _log.info("client_id_granted", client_id=grant.client_id, term_s=grant.term_s)
        self.wake(woken)

    def moved(self, target: str) -> None:
        """Note that another connection to a target replaced the last one."""
        _log.warning("connection_replaced", target=target)
        self.replaced()

    def replaced(self) -> None:
        """Have stubs use the channel that has taken another one's place."""
        self._replaced = True
        with self.lock:
            stubs = list(self.stubs)
        for stub in stubs:
            stub.look_beneath()

    def as_lost(self, status: Status) -> Status:
        """Return an attempt's status; as of a lost connection if it ended as one was replaced."""
        if not self._replaced or self.closed or status.code() is not grpc.StatusCode.CANCELLED:
            return status
        details = status.details() or ""
        # An answer has metadata, whatever its text.
        here = not status.trailing_metadata() and any(text in details for text in ENDED_BY_CHANNEL)
        return REPLACED if here else status

    def renewed(self, lease: ClientLease, reply: Any, sent_at: float) -> None:
        """Take a ``RenewReply``, refusals on a stream included."""
        if reply.refused:
            self.lease_lost(lease, reply.refused)
            return
        with self.lock:
            term_s, jitter = reply.term_ms / 1000, self.jitter()
            self.session.renewed(lease, term_s, reply.token, sent_at, jitter)
            woken = self._lease_is_back(lease) if lease is self.session.lease else []
        self.wake(woken)

    def not_accompanied(self, lease: ClientLease) -> None:
        """Note that another channel's request did not renew this lease: send an own one."""
        with self.lock:
            self.session.not_accompanied(lease, self.now(), self.jitter())
        self.look_at_lease()

    def renewal_failed(self, lease: ClientLease, status: Status, *, soon: bool = False) -> None:
        """Take the error of a renewal; ``soon``: another way is there to ask by."""
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
            self.session.lease_failed(now, self.jitter(), soon=soon)

    def grant_failed(self, status: Status) -> None:
        """Take the error of a Grant: final for all who wait, or to be repeated."""
        answer = read_answer(status)
        self.lease_status = status
        if answer.transient:
            self._tell_away(status)
        with self.lock:
            self.session.lease_failed(self.now(), self.jitter())
            refused = [] if answer.transient else list(self.lease_waiters)
            self._to_be_told.update(dict.fromkeys(refused))
            for waiter in refused:
                del self.lease_waiters[waiter]
        if refused:
            status = _told(status, answer, self.settings.session_name is not None)
        for waiter in refused:
            waiter.refuse(status, answer)
            self._to_be_told.pop(waiter, None)

    def _tell_away(self, status: Status) -> None:
        # Once, however often it is tried: calls wait and say so themselves when time is up.
        if not self._told_away and not self.closed:
            self._told_away = True
            _log.warning(
                "lease_server_not_reached", code=status.code().name, details=status.details()
            )

    def session_ended(self) -> None:
        """Note that the named session is closed: the server refuses to open it again."""
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
        return self._all_waiters()

    def _all_waiters(self) -> list[Waiter]:
        """Under the lock: take all that wait, who must be told."""
        woken = [*self.lease_waiters, *self.window_waiters]
        self._to_be_told.update(dict.fromkeys(woken))
        self.lease_waiters.clear()
        self.window_waiters.clear()
        return woken

    def wake(self, woken: Iterable[Waiter]) -> None:
        """Tell those that were taken to look again; not under the lock."""
        for waiter in woken:
            waiter.wake()
            self._to_be_told.pop(waiter, None)

    def look_again(self) -> None:
        """Have all that wait look again: an interrupt came while they were told of a lease."""
        with self.lock:
            self._all_waiters()
            woken = list(self._to_be_told)
        self.wake(woken)

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


def _told(status: Status, answer: AttemptAnswer, named: bool) -> FinalStatus:
    """Return what calls are told that wait for a client id: what the server answered."""
    code = status.code()
    method = LEASE_SERVICE + ("OpenSession" if named else "Grant")
    details = f"no client id: {code.name}: {explained(status, answer.reason, method)}"
    if code is grpc.StatusCode.UNIMPLEMENTED and not answer.reason:
        code, details = grpc.StatusCode[NotDeduplicated.code_name], f"{details}. {NOT_HOSTED}"
    return FinalStatus(code, details, (), status.trailing_metadata())


def _refusal(kind: type[RiflError], text: str) -> Status:
    """Return the status by which a server refuses."""
    status = rich_status(grpc.StatusCode[kind.code_name], kind.reason, text)
    return FinalStatus(status.code, status.details, (), status.trailing_metadata)


def forked_error() -> CallError:
    """Build what a forked child's use of its parent's channel raises."""
    return call_error(
        grpc.StatusCode.FAILED_PRECONDITION,
        "this channel belongs to the parent process; connect again after the fork "
        "(gunicorn: in post_fork)",
        rpc_id=None,
        outcome=Outcome.NOT_EXECUTED,
        reason=ForkedProcess.reason,
    )


_states: weakref.WeakSet[ClientState] = weakref.WeakSet()


def _mark_forked() -> None:
    # Else parent and child would draw the same.
    _dice.seed()
    # A thread of the parent may have held any lock, which now stays held: take none.
    for state in list(_states):
        state.forked = True
        state.lease = None


at_forks(after_in_child=_mark_forked)
