"""The sync client: one client id's owner, and the thread that keeps its lease (DESIGN §5)."""

from __future__ import annotations

import contextvars
import heapq
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import grpc

from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OwnedLock
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import NO_STATUS, FinalStatus
from rifl._client.errors import Status, reentrant
from rifl._client.grpc_channels import Connect, connectivity
from rifl._client.lease_requests import (
    REPLIES,
    LeaseRequest,
    TrialRequest,
    broken,
    check_of,
    due_trials,
    earliest,
    failed,
    next_request,
    replied,
    says_something,
    tried,
    unsent,
)
from rifl._client.own_metadata import MetadataFunction, entries_for, own_failure
from rifl._client.routing import LEASE_SERVICE, Router
from rifl._client.settings import Settings
from rifl._client.shared_renewals import share_renewals
from rifl._client.state import ClientState
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.silence import ConnectionWatch, SilenceCheck, SilenceStep

_log = get_logger("rifl.client")
# How long closing waits for an id to be given back.
_RELEASE_S = 1.0


class Timer:
    """A callback that is due; ``cancel`` it from any thread."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the callback; it may be running already."""
        self.callback = None


class Timers:
    """Timers of one client, for calls that no thread waits in.

    The daemon thread starts with the first timer and ends with the last one, so
    nothing is left behind by a client that is dropped. Any thread. A callback
    must not block; what it raises is logged.
    """

    def __init__(self) -> None:
        # Taken and given back by C: a signal's exception may leave a condition's own taken.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._running = False

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        """Call back when ``time.monotonic()`` reaches ``at``."""
        timer = Timer(callback)
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._order), timer))
            if not self._running:
                threading.Thread(target=self._run, name="rifl-timers", daemon=True).start()
                # It waits for this lock. An interrupt before that leaves one too many.
                self._running = True
            elif self._heap[0][2] is timer:
                self._condition.notify()
        return timer

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._heap and self._heap[0][2].callback is None:
                    heapq.heappop(self._heap)
                if not self._heap:
                    self._running = False
                    return
                remaining = self._heap[0][0] - time.monotonic()
                if remaining > 0:
                    self._condition.wait(remaining)
                    continue
                callback = heapq.heappop(self._heap)[2].callback
            if callback is not None:
                try:
                    callback()
                except BaseException:  # noqa: BLE001 - one callback must not end the others
                    _log.exception("timer_raised")


_Wakeup = queue.SimpleQueue[Callable[[], None] | None]


class SyncClient(ClientState):
    """One client id's owner on a sync channel; shared by all that was made of it.

    Stubs keep it alive, as gRPC's keep their channel. Any thread.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        settings: Settings,
        connect: Connect[grpc.Channel] | None = None,
        alike: Hashable = None,
    ) -> None:
        """``alike``: equal for channels that may renew each other's leases; None: no other's."""
        super().__init__(settings, getattr(channel, "router", None), connect)
        self.alike = alike
        self.channel = channel
        self.timers = Timers()
        if hasattr(channel, "replace") and settings.retry.silence_s is not None:
            self.watch = ConnectionWatch(settings.retry.silence_s)
        self._keeper = LeaseKeeper(channel, settings.metadata)

    def connectivity(self, index: int) -> grpc.ChannelConnectivity | None:
        """See ``ClientState``."""
        at = getattr(self.channel, "at", None)
        return None if at is None or self.closed else connectivity(at(index))

    def waits(self) -> object:
        """Return what says, while it is kept, that a call waits for a connection."""
        waits = _Waits()
        self.patient.add(waits)
        return waits

    def look_at_lease(self) -> None:
        """Have the lease looked after now."""
        self._keeper.look(self)

    def stop(self) -> None:
        """End: waiting calls are cancelled, an idle client id is given back."""
        if not self.closed and not self.forked:
            self._keeper.stop(self.close_waiters())
            if self.path is not None:
                self.path.close()

    def leave(self, work: Callable[[], None]) -> None:
        """Have ``work`` done soon, by a thread of the client's. Finalizers call this.

        It takes no lock: a collection may come while this thread holds any. ``work``
        must not block, nor raise.
        """
        # The timers' thread may run callbacks of the application's; heartbeats may not
        # wait for those.
        self._keeper.leave(lambda: self._soon(work))

    def _soon(self, work: Callable[[], None]) -> None:
        self.timers.call_at(self.now(), work)

    @staticmethod
    def call_back(callback: Callable[[], None]) -> None:
        """Run an application's callback; what it raises is logged, as gRPC does."""
        try:
            callback()
        except Exception:  # noqa: BLE001 - the application's own
            _log.exception("callback_raised")


class _Waits:
    """See ``SyncClient.waits``."""


class LeaseKeeper:
    """Grants and heartbeats of one client, on a daemon thread of its own.

    The thread starts when the first call wants a lease. Many calls that want one
    share one Grant. An idle client renews after a third of the term; calls that
    are accepted renew too, so a busy client sends no heartbeat. The thread holds
    the client weakly while it waits and ends with it. It also does what finalizers
    leave to it, which may take no lock: see ``leave``.
    """

    def __init__(self, channel: Any, metadata: MetadataFunction | None) -> None:
        self._channel = channel
        self._metadata = metadata
        self._stubs = {name: _stub(channel, name, reply) for name, reply in REPLIES.items()}
        self._release = _stub(channel, "Release", pb.ReleaseReply)
        self._stream = _Stream(channel, metadata)
        # What the thread is to do besides the lease; None: look again. A SimpleQueue,
        # since finalizers put into it, in the middle of anything: an Event has a lock.
        self._wakeup: _Wakeup = queue.SimpleQueue()
        self._start_lock = OwnedLock(reentrant)
        self._thread: threading.Thread | None = None

    def look(self, state: SyncClient) -> None:
        """Wake the thread to look for work now. Any thread; never blocks."""
        thread = self._thread
        # An interrupt may have left one that did not begin.
        if thread is None or thread.ident is None:
            with self._start_lock:
                self._start(state)
        self._wakeup.put(None)

    def _start(self, state: SyncClient) -> None:
        if self._thread is None:
            if state.alike is not None and state.renewals is None:
                state.renewals = share_renewals(state, state.alike)
            weakref.finalize(state, self._wakeup.put, None)
            self._thread = threading.Thread(
                target=_keep,
                args=(weakref.ref(state), self, self._wakeup),
                name="rifl-lease",
                daemon=True,
            )
        if self._thread.ident is None:
            self._thread.start()

    def leave(self, work: Callable[[], None]) -> None:
        """Have ``work`` done by the thread, soon. For finalizers: takes no lock."""
        self._wakeup.put(work)

    def stop(self, release: ClientLease | None) -> None:
        """Stop, and give ``release`` back if the server answers within a second."""
        self._wakeup.put(None)
        self._stream.close()
        if release is None:
            return
        if self._metadata is None:
            self._give_back(release)
            return
        # The application's function may take its time, and closing may not.
        giving = threading.Thread(
            target=self._give_back, args=(release,), name="rifl-release", daemon=True
        )
        giving.start()
        giving.join(_RELEASE_S)

    def _give_back(self, release: ClientLease) -> None:
        request = pb.ReleaseRequest(client_id=release.client_id, token=release.token)
        try:
            metadata = entries_for(self._metadata, LEASE_SERVICE + "Release")
            contextvars.Context().run(self._release, request, timeout=_RELEASE_S, metadata=metadata)
        except (grpc.RpcError, ValueError):
            # It expires by itself; a channel closed under us raises ValueError.
            return

    def ask(self, state: ClientState, request: LeaseRequest) -> None:
        """Send a request, and wait for its answer."""
        try:
            reply, status = state.keeping.run(self._answer, state, request)
        except ValueError:
            # The channel was closed.
            unsent(request)
            raise
        except BaseException as error:  # noqa: BLE001 - the application's: this thread is ours
            broken(state, request, error)
        else:
            if reply is not None:
                replied(state, request, reply)
            else:
                failed(state, request, status)

    def rest(self, state: ClientState) -> float | None:
        """Have channels stop connecting that no call waits for; return when to look again."""
        stopped, look_at = state.to_stop()
        for index in stopped:
            if index == state.target:
                self._stream.close()
            self._channel.stop(index)
        if stopped:
            state.replaced()
        return look_at

    def try_targets(self, state: ClientState) -> float | None:
        """Send the trials that are due; return when to look again."""
        if state.router is None:
            return None
        for trial in due_trials(state):
            try:
                name = LEASE_SERVICE + "Renew"
                metadata = state.keeping.run(entries_for, self._metadata, name)
            except BaseException as error:  # noqa: BLE001 - the application's: this thread is ours
                status = own_failure(LEASE_SERVICE + "Renew", error)
                tried(state, trial.target, trial.lease, None, status)
                continue
            stub = _stub(self._channel.at(trial.target), "Renew", pb.RenewReply)
            asked = stub.future(trial.message, timeout=trial.timeout_s, metadata=metadata)
            asked.add_done_callback(partial(self._tried, weakref.ref(state), trial))
        return state.router.due_at()

    def _tried(self, reference: weakref.ref[ClientState], trial: TrialRequest, asked: Any) -> None:
        # Not on gRPC's thread, which may have to deliver what is asked for here.
        def tell() -> None:
            state = reference()
            if state is not None and not asked.cancelled():
                reply = asked.result() if asked.code() is grpc.StatusCode.OK else None
                tried(state, trial.target, trial.lease, reply, asked)

        self.leave(tell)

    def _answer(self, state: ClientState, request: LeaseRequest) -> tuple[Any, Status]:
        """Return the reply, None for an error, and the status then."""
        at = 0 if state.watch is None else self._channel.current
        at = at if request.target is None else request.target
        status: Status = NO_STATUS
        try:
            if request.probes:
                # As a call would be sent, and no sign for who chooses targets.
                return self._on(self._channel.at(at), request, request.timeout_s), status
            if request.streamed:
                return self._stream.renew(request.message, request.timeout_s), status
            metadata = entries_for(self._metadata, LEASE_SERVICE + request.method)
            ask = self._stubs[request.method]
            return ask(request.message, timeout=request.timeout_s, metadata=metadata), status
        except grpc.RpcError as error:
            status = error  # type: ignore[assignment]
        check = check_of(state, request, status)
        return (None, status) if check is None else self._check(state, request, at, check, status)

    def _check(
        self,
        state: ClientState,
        request: LeaseRequest,
        at: int,
        check: SilenceCheck,
        status: Status,
    ) -> tuple[Any, Status]:
        """Look whether a connection is silent; return what another one answered, if that did."""
        channel, reply = self._channel, None
        left = silent = channel.at(at)
        try:
            while check.step in (SilenceStep.ANOTHER, SilenceStep.AGAIN):
                asked = silent
                if check.step is SilenceStep.ANOTHER:
                    left = asked = channel.another(at)
                answered = True
                try:
                    reply = self._on(asked, request, check.timeout_s)
                except grpc.RpcError as error:
                    answered = says_something(error)  # type: ignore[arg-type]
                    status = error if answered else status  # type: ignore[assignment]
                check.told(state.now(), answered=answered)
            if check.step is SilenceStep.REPLACE:
                left, silent = channel.replace(at, left), left
                self._stream.close()
                state.moved(channel.address(at))
        finally:
            if left is not silent:
                left.close()
        return reply, status

    def _on(self, channel: grpc.Channel, request: LeaseRequest, timeout_s: float) -> Any:
        metadata = entries_for(self._metadata, LEASE_SERVICE + request.method)
        return _stub(channel, request.method, REPLIES[request.method])(
            request.message, timeout=timeout_s, metadata=metadata
        )


def _keep(reference: weakref.ref[ClientState], keeper: LeaseKeeper, wakeup: _Wakeup) -> None:
    while True:
        state = reference()
        if state is None or state.closed:
            _work(wakeup, 0.0)
            return
        due = next_request(state)
        try:
            if isinstance(due, LeaseRequest):
                keeper.ask(state, due)
            else:
                due = earliest(earliest(due, keeper.rest(state)), keeper.try_targets(state))
                timeout_s = None if due is None else max(due - state.now(), 0.0)
                # Nothing here may keep the client alive while this thread waits.
                state = None
                _work(wakeup, timeout_s)
        except ValueError:
            # The channel was closed under us.
            if state is not None:
                _channel_gone(state)
            return


def _work(wakeup: _Wakeup, timeout_s: float | None) -> None:
    """Wait until there is something to do, for so long; do all there is."""
    try:
        work = wakeup.get(timeout=timeout_s)
        while True:
            if work is not None:
                work()
            work = wakeup.get_nowait()
    except queue.Empty:
        return


def _channel_gone(state: ClientState) -> None:
    status: Status = FinalStatus(grpc.StatusCode.FAILED_PRECONDITION, "channel closed")
    state.grant_failed(status)


class _Stream:
    """The KeepAlive stream: opened when first needed, again after it broke."""

    def __init__(self, channel: grpc.Channel, metadata: MetadataFunction | None) -> None:
        self._router: Router | None = getattr(channel, "router", None)
        self._metadata = metadata
        self._at = 0
        self._open = channel.stream_stream(
            LEASE_SERVICE + "KeepAlive",
            request_serializer=pb.RenewRequest.SerializeToString,
            response_deserializer=pb.RenewReply.FromString,
        )
        self._requests: queue.SimpleQueue[pb.RenewRequest | None] = queue.SimpleQueue()
        self._call: Any = None

    def renew(self, request: pb.RenewRequest, timeout_s: float) -> pb.RenewReply:
        """Send one renewal and wait for its answer; raises ``grpc.RpcError``."""
        if self._router is not None and self._at != self._router.targets.current:
            self.close()
            self._at = self._router.targets.current
        if self._call is None:
            metadata = entries_for(self._metadata, LEASE_SERVICE + "KeepAlive")
            self._requests = queue.SimpleQueue()
            self._call = self._open(iter(self._requests.get, None), metadata=metadata)
        call = self._call
        # A stream has no deadline for one answer: this is it.
        timer = threading.Timer(timeout_s, call.cancel)
        timer.daemon = True
        timer.start()
        self._requests.put(request)
        try:
            reply: pb.RenewReply = next(call)
        except StopIteration:
            self.close()
            raise _StreamEnded from None
        except grpc.RpcError:
            self.close()
            raise
        finally:
            timer.cancel()
        if reply.refused:
            # The server ends a stream whose first renewal was refused.
            self.close()
        return reply

    def close(self) -> None:
        """End the stream; the next renewal opens another one."""
        call, self._call = self._call, None
        # gRPC reads requests on a thread of its own, which waits in this queue.
        self._requests.put(None)
        if call is not None:
            call.cancel()


class _StreamEnded(grpc.RpcError):
    """The server ended the stream: as good as unavailable."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "the heartbeat stream ended"

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def debug_error_string(self) -> str:
        return ""


def _stub(channel: grpc.Channel, method: str, reply: Any) -> Any:
    return channel.unary_unary(
        LEASE_SERVICE + method,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=reply.FromString,
    )
