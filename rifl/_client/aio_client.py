"""The aio client: its state, and the task that keeps its lease (DESIGN §5)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from collections.abc import Hashable
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.loops import tell_loop
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import NO_STATUS, USAGE_CLOSED, FinalStatus
from rifl._client.errors import Status
from rifl._client.grpc_channels import Connect
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
from rifl._client.own_metadata import INTERRUPTS, MetadataFunction, aio_entries_for
from rifl._client.routing import LEASE_SERVICE, Router
from rifl._client.settings import Settings
from rifl._client.shared_renewals import share_renewals
from rifl._client.state import ClientState
from rifl._grpc.codes import NO_STREAM
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.silence import ConnectionWatch, SilenceCheck, SilenceStep


class AioClient(ClientState):
    """One client id's owner on an aio channel; shared by all that was made of it.

    Used on the channel's event loop only.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        settings: Settings,
        connect: Connect[grpc.aio.Channel] | None = None,
        alike: Hashable = None,
    ) -> None:
        """``alike``: equal for channels that may renew each other's leases; None: no other's."""
        super().__init__(settings, getattr(channel, "router", None), connect)
        self.alike = alike
        self.channel = channel
        if hasattr(channel, "replace") and settings.retry.silence_s is not None:
            self.watch = ConnectionWatch(settings.retry.silence_s)
        self._keeper = LeaseKeeper(channel, settings.metadata)
        # Whether it is known to be.
        self.insecure = False
        # What ``rest`` waits for. Calls whose first attempt is gRPC's own are not in it.
        self.under_way: weakref.WeakSet[Any] = weakref.WeakSet()

    def check_usable(self, credentials: grpc.CallCredentials | None = None) -> None:
        """See ``ClientState``; here misuse is a ``grpc.aio.UsageError``, as gRPC's."""
        if self.closed or self.closing:
            raise _ClosedChannel(USAGE_CLOSED)
        if credentials is not None and self.insecure:
            raise grpc.aio.UsageError("Call credentials are only valid on secure channels")
        super().check_usable()

    async def rest(self, grace_s: float) -> None:
        """Refuse new calls, and let those in flight go on for ``grace_s``."""
        self.closing = True
        self.lease = None
        ends = [asyncio.ensure_future(exchange.finished()) for exchange in self.under_way]
        if ends:
            _, late = await asyncio.wait(ends, timeout=grace_s)
            for end in late:
                end.cancel()

    def connectivity(self, index: int) -> grpc.ChannelConnectivity | None:
        """See ``ClientState``."""
        at = getattr(self.channel, "at", None)
        if at is None or self.closed:
            return None
        found: grpc.ChannelConnectivity = at(index).get_state()
        return found

    def look_at_lease(self) -> None:
        """Have the lease looked after now."""
        self._keeper.look(self)

    async def stop(self) -> None:
        """End: waiting calls are cancelled, an idle client id is given back."""
        if not self.closed and not self.forked:
            await self._keeper.stop(self.close_waiters())
            if self.path is not None:
                await self.path.close()


class _ClosedChannel(grpc.aio.UsageError, ValueError):
    """The channel was closed; ``ValueError`` is what the sync one raises."""


def interrupted(task: asyncio.Task[None]) -> bool:
    """Whether an interrupt ended a task, which others may wait for."""
    return not task.cancelled() and isinstance(task.exception(), INTERRUPTS)


class LeaseKeeper:
    """As the sync client's, on a task."""

    def __init__(self, channel: Any, metadata: MetadataFunction | None) -> None:
        self._channel = channel
        self._metadata = metadata
        self._stubs = {name: _stub(channel, name, reply) for name, reply in REPLIES.items()}
        self._release = _stub(channel, "Release", pb.ReleaseReply)
        self._open_stream: Any = channel.stream_stream(
            LEASE_SERVICE + "KeepAlive",
            request_serializer=pb.RenewRequest.SerializeToString,
            response_deserializer=pb.RenewReply.FromString,
        )
        self._router: Router | None = getattr(channel, "router", None)
        self._at = 0
        self._stream: Any = None
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trials: set[asyncio.Future[None]] = set()

    def look(self, state: AioClient) -> None:
        if self._task is None:
            loop = asyncio.get_running_loop()
            if state.alike is not None:
                # Of this loop: what wakes another one's waiters is not of this thread.
                state.renewals = share_renewals(state, (state.alike, loop))
            # Collection may happen on any thread, and after the loop's end.
            weakref.finalize(state, tell_loop, loop, self._wakeup.set).atexit = False
            self._begin(weakref.ref(state), loop)
        self._wakeup.set()

    def _begin(self, reference: weakref.ref[ClientState], loop: asyncio.AbstractEventLoop) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            # Others' calls wait for the lease.
            if interrupted(task):
                self._begin(reference, loop)
                if (state := reference()) is not None:
                    state.look_again()

        # Not in the context of the caller that is first: interceptors would take its token for all.
        keep = _keep(reference, self, self._wakeup)
        self._task = loop.create_task(keep, context=contextvars.Context())
        self._task.add_done_callback(ended)

    async def stop(self, release: ClientLease | None) -> None:
        self._wakeup.set()
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            self._task.cancel()
            for trial in self._trials:
                trial.cancel()
            await asyncio.wait((self._task, *self._trials), timeout=1.0)
        self._end_stream()
        if release is not None:
            request = pb.ReleaseRequest(client_id=release.client_id, token=release.token)
            # It expires by itself.
            with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError, TimeoutError):
                async with asyncio.timeout(1.0):
                    metadata = await aio_entries_for(self._metadata, LEASE_SERVICE + "Release")
                await contextvars.Context().run(
                    self._release, request, timeout=1.0, metadata=metadata
                )

    async def ask(self, state: ClientState, request: LeaseRequest) -> None:
        try:
            # Tasks that it begins are within it, too.
            state.keeping.begin()
            try:
                reply, status = await self._answer(state, request)
            finally:
                state.keeping.end()
        except (grpc.aio.UsageError, *INTERRUPTS, GeneratorExit):
            # The channel was closed.
            unsent(request)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if state.closed or task is None or task.cancelling():
                unsent(request)
                raise
            # What an interceptor awaits was cancelled.
            broken(state, request, error)
        except BaseException as error:  # noqa: BLE001 - an interceptor's of the application
            broken(state, request, error)
        else:
            if reply is not None:
                replied(state, request, reply)
            else:
                failed(state, request, status)

    async def rest(self, state: ClientState) -> float | None:
        """As the sync client's."""
        stopped, look_at = state.to_stop()
        for index in stopped:
            if index == state.target:
                self._end_stream()
            # No call is sent on it from here on, so that nothing is lost where closing it waits.
            before = self._channel.stop(index)
            state.replaced()
            await before.close(None)
        return look_at

    def try_targets(self, state: ClientState) -> float | None:
        """As the sync client's, by tasks."""
        if state.router is None:
            return None
        for trial in due_trials(state):
            task = asyncio.ensure_future(self._try(weakref.ref(state), trial))
            self._trials.add(task)
            task.add_done_callback(self._trials.discard)
        return state.router.due_at()

    async def _try(self, reference: weakref.ref[ClientState], trial: TrialRequest) -> None:
        reply: Any = None
        status: Status = NO_STATUS
        try:
            metadata = await aio_entries_for(self._metadata, LEASE_SERVICE + "Renew")
            stub = _stub(self._channel.at(trial.target), "Renew", pb.RenewReply)
            reply = await stub(trial.message, timeout=trial.timeout_s, metadata=metadata)
        except grpc.aio.UsageError:
            # The channel was closed.
            return
        except grpc.RpcError as error:
            status = error.with_traceback(None)  # type: ignore[assignment]
        except Exception as error:  # noqa: BLE001 - an interceptor's of the application
            status = FinalStatus(grpc.StatusCode.UNKNOWN, repr(error))
        state = reference()
        if state is not None:
            tried(state, trial.target, trial.lease, reply, status)
            self._wakeup.set()

    async def _answer(self, state: ClientState, request: LeaseRequest) -> tuple[Any, Status]:
        """Return the reply, None for an error, and the status then."""
        at = 0 if state.watch is None else self._channel.current
        at = at if request.target is None else request.target
        status: Status = NO_STATUS
        said_nothing = False
        try:
            if request.probes:
                # As a call would be sent, and no sign for who chooses targets.
                return await self._on(self._channel.at(at), request, request.timeout_s), status
            if request.lease is not None and request.streamed:
                return await self._renew_on_stream(request.lease, request), status
            metadata = await aio_entries_for(self._metadata, LEASE_SERVICE + request.method)
            ask = self._stubs[request.method]
            return await ask(request.message, timeout=request.timeout_s, metadata=metadata), status
        except grpc.RpcError as error:
            # Frames hold gRPC's call, and that the connection, also of a channel that was closed.
            status = error.with_traceback(None)  # type: ignore[assignment]
        except (TimeoutError, EOFError) as error:
            text = f"the heartbeat stream broke: {error!r}"
            status = FinalStatus(grpc.StatusCode.UNAVAILABLE, text)
            said_nothing = isinstance(error, TimeoutError)
        check = check_of(state, request, None if said_nothing else status)
        if check is None:
            return None, status
        return await self._check(state, request, at, check, status)

    async def _check(
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
                    reply = await self._on(asked, request, check.timeout_s)
                except grpc.RpcError as error:
                    answered = says_something(error)  # type: ignore[arg-type]
                    if answered:
                        status = error.with_traceback(None)  # type: ignore[assignment]
                check.told(state.now(), answered=answered)
            if check.step is SilenceStep.REPLACE and not state.closed:
                left, silent = channel.replace(at, left), left
                self._end_stream()
                state.moved(channel.address(at))
        finally:
            if left is not silent:
                await left.close(None)
        return reply, status

    async def _on(self, channel: grpc.aio.Channel, request: LeaseRequest, timeout_s: float) -> Any:
        metadata = await aio_entries_for(self._metadata, LEASE_SERVICE + request.method)
        return await _stub(channel, request.method, REPLIES[request.method])(
            request.message, timeout=timeout_s, metadata=metadata
        )

    async def _renew_on_stream(self, lease: ClientLease, request: LeaseRequest) -> pb.RenewReply:
        timeout_s = request.timeout_s
        if self._router is not None and self._at != self._router.targets.current:
            self._end_stream()
            self._at = self._router.targets.current
        if self._stream is None:
            metadata = await aio_entries_for(self._metadata, LEASE_SERVICE + "KeepAlive")
            self._stream = self._open_stream(metadata=metadata)
        stream = self._stream
        try:
            async with asyncio.timeout(timeout_s):
                await stream.write(request.message)
                reply = await stream.read()
            if reply is grpc.aio.EOF:
                raise EOFError
        except (asyncio.InvalidStateError, EOFError) as error:
            self._stream = None
            # It has ended: what for is what a unary call would have raised.
            async with asyncio.timeout(timeout_s):
                code = await stream.code()
            if code in NO_STREAM:
                lease.streams = False
            raise EOFError(code.name) from error
        except BaseException:
            self._end_stream()
            raise
        answer: pb.RenewReply = reply
        if answer.refused:
            # The server ends a stream whose first renewal was refused.
            self._end_stream()
        return answer

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()


async def _keep(
    reference: weakref.ref[ClientState], keeper: LeaseKeeper, wakeup: asyncio.Event
) -> None:
    while True:
        wakeup.clear()
        state = reference()
        if state is None or state.closed:
            return
        due = next_request(state)
        if isinstance(due, LeaseRequest):
            await keeper.ask(state, due)
        else:
            due = earliest(earliest(due, await keeper.rest(state)), keeper.try_targets(state))
            timeout_s = None if due is None else max(due - state.now(), 0.0)
            # Nothing here may keep the client alive while this task waits.
            del state
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await wakeup.wait()


def _stub(channel: grpc.aio.Channel, method: str, reply: Any) -> Any:
    return channel.unary_unary(
        LEASE_SERVICE + method,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=reply.FromString,
    )
