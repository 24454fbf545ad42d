"""The sync channel: existing stubs, with retries that are safe (DESIGN §3)."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Unpack

import grpc

from _rifl_ground.owned_lock import OwnedLock
from rifl._client.answers import CLOSED, CUT_OFF
from rifl._client.batch import BatchItem, BatchResult, BatchRun, Send
from rifl._client.errors import reentrant
from rifl._client.grpc_channels import (
    Connect,
    inner_method,
    likeness,
    open_sync,
    opening,
    over_targets,
    own_connection,
)
from rifl._client.plaintext import SecretGuard, guards
from rifl._client.settings import (
    ConnectKeywords,
    Settings,
    channel_options,
    make_settings,
    method_name,
    shows,
)
from rifl._client.sync_client import SyncClient
from rifl._client.sync_multicallable import UnaryUnaryMultiCallable
from rifl._client.sync_session import Session
from rifl._client.sync_streams import (
    BidirectionalMultiCallable,
    StreamUnaryMultiCallable,
    UnaryStreamMultiCallable,
)
from rifl._client.sync_targets import TargetsChannel

_IN_BACKGROUND = 16


class Batches:
    """Runs a channel's batches. Any thread."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._callables: dict[str, Any] = {}
        self._lock = OwnedLock(reentrant)
        self._pool: ThreadPoolExecutor | None = None

    def run(
        self, method: str, items: Iterable[BatchItem], timeout: float | None, metadata: Any
    ) -> list[BatchResult]:
        """Run a batch to its end in this thread."""
        begun, woken = self._begin(method, items, timeout, metadata)
        return self._drive(method, begun, woken)

    def submit(
        self, method: str, items: Iterable[BatchItem], timeout: float | None, metadata: Any
    ) -> Future[list[BatchResult]]:
        """Run a batch in a thread of the pool."""
        begun, woken = self._begin(method, items, timeout, metadata)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_IN_BACKGROUND, "rifl-batch")
            return self._pool.submit(self._drive, method, begun, woken)

    def close(self) -> None:
        """End the threads; batches in flight end, since the channel is closed."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False)

    def _begin(
        self, method: str, items: Iterable[BatchItem], timeout: float | None, metadata: Any
    ) -> tuple[BatchRun, threading.Event]:
        client, woken = self._client, threading.Event()
        run = BatchRun(client, method, items, timeout, metadata, woken.set)
        return run, woken

    def _drive(self, method: str, run: BatchRun, woken: threading.Event) -> list[BatchResult]:
        try:
            while (step := run.next()) is not None:
                if isinstance(step, Send):
                    self._send(method, run, step)
                    continue
                woken.wait(None if step.until is None else step.until - self._client.now())
                woken.clear()
        except BaseException:
            # Such as KeyboardInterrupt: what was sent may run.
            run.interrupted()
            raise
        return run.results()

    def _send(self, method: str, run: BatchRun, step: Send) -> None:
        inner = self._callables.get(method)
        if inner is None:
            inner = self._callables[method] = self._client.channel.unary_unary(method)
        with contextlib.nullcontext() if step.route is None else step.route:
            try:
                if step.cut_at is None:
                    reply = inner(step.body, step.timeout_s, step.metadata)
                else:
                    future = inner.future(step.body, step.timeout_s, step.metadata)
                    reply = self._reply(future, run, step.cut_at)
            except _CutOff:
                run.failed(CUT_OFF)
            except grpc.RpcError as error:
                run.failed(error)  # type: ignore[arg-type]  # gRPC's are calls, too
            except ValueError:
                # What gRPC raises on a closed channel.
                run.failed(CLOSED)
            else:
                run.replied(reply)

    def _reply(self, future: Any, run: BatchRun, cut_at: float) -> Any:
        """Wait for an RPC that may be cut; raises ``_CutOff`` if it was."""
        at: float | None = cut_at
        try:
            while at is not None:
                try:
                    return future.result(max(at - self._client.now(), 0.0))
                except grpc.FutureTimeoutError:
                    at = run.overdue()
        except BaseException:
            future.cancel()
            raise
        if future.cancel():
            raise _CutOff
        return future.result()


class _CutOff(Exception):
    """An RPC was not answered in its time, and another one is sent."""


@shows(ConnectKeywords)
def connect(
    target: str | Sequence[str],
    credentials: grpc.ChannelCredentials | None = None,
    **keywords: Unpack[ConnectKeywords],
) -> Channel:
    """Open a channel whose unary calls have their effect once.

    ``target``, ``credentials``, ``options`` and ``compression`` are what
    ``grpc.insecure_channel`` and ``grpc.secure_channel`` take. gRPC's own retries
    are off unless ``options`` turn them on; then a call refused for an expired
    lease is never sent again under a new id.

    ``target`` may be several, as a sequence or separated by commas: replicas over one
    store, or a group of which one leads. Those that say *yes* to a renewal of the lease
    are over its store, and take calls in turn; where there are no two, or one leads, or in a
    session, all calls go to one. Heartbeats always do. If a target cannot be reached, drains
    or does not lead, the next attempt goes to another with the same identity, and a hedge
    always does. The rules for what
    is sent again are those of one target. A server's hint of the leader is followed
    to the given targets only, unless ``follow_leaders``: then to any ``host:port`` it
    names (at most 16), with these credentials.

    Calls are retried by ``retry`` within the caller's deadline. After ``hedge_after``
    seconds without an answer (None: never), a second attempt of the same call is
    sent beside the first. At most ``window`` calls may be unacknowledged at
    once (the server may allow fewer); more wait. A call whose outcome stayed
    unknown can be resolved for ``unresolved_for`` seconds, the latest
    ``unresolved_limit`` of them. ``on_lease_lost`` is called with the client id
    when it expired with calls outstanding; it must not block.
    ``observer``, one or several, is told of each call that ends.
    ``interceptors`` run below: once for each attempt, on serialised requests.
    Interceptors that must see each call once go around the channel, by
    ``grpc.intercept_channel``.

    ``metadata``: what the client's own requests carry, for client ids, leases, sessions,
    resolutions, and a group's state: a function of the method's name (a coroutine function for
    ``rifl.aio``), which returns entries. Asked anew for each attempt, mostly in a thread of the
    client's, under no lock of rifl's. If it raises, the calls that need the request end with
    UNAUTHENTICATED.

    ``session`` names a session that outlives this process: all who open the name
    have the same client id, until the session is closed or unused for
    ``session_retention`` seconds (None: the server's default; at most 30 days). It takes calls
    with a key only (``rifl.key``); ``close`` leaves it open. If the server does not
    authenticate the channel, the session opens by ``secret``, 16 to 1024 bytes, which should
    be random. The first opener's secret is the session's; others are NOT_YOURS. Of several,
    ``[new, old]``, any opens it, and it opens by the first alone from then on. None
    uses the environment's: RIFL_SESSION_SECRET, or the file that
    RIFL_SESSION_SECRET_FILE names. Without ``credentials`` the secret goes only to a loopback
    address, ``localhost`` or a unix socket: else the session is not opened, and calls raise
    ``CallError``, not executed. If a mesh or a proxy encrypts the connection, allow it by
    ``plaintext_secrets``, or by RIFL_PLAINTEXT_SECRETS=1 in the environment.

    ``conflict_keys``: for replicated groups whose replicas find the conflict keys of a
    method by a callable: the same callable by full method name, so that such calls can
    take one round trip. A wrong one makes calls slower and never less safe. It runs in
    the caller's thread, on a message parsed from the request.

    ``group_path``: whether calls to a replicated group are recorded on its witnesses, which
    takes one round trip: "fast" always, "synced" never (then the group's leader appends
    before it answers), "adaptive" while measurements say that it is faster.

    A call that may have run is raised with FAILED_PRECONDITION, which retry loops around
    the channel do not repeat; ``keep_deadline_exceeded`` keeps DEADLINE_EXCEEDED, for
    applications that look for it.

    Nothing is sent before the first call. Raises ``ValueError`` for settings that
    make no sense. See ``Channel``.
    """
    return open_channel(target, credentials, keywords)


def open_channel(
    target: str | Sequence[str],
    credentials: grpc.ChannelCredentials | None,
    keywords: ConnectKeywords,
    writer: bytes = b"",
) -> Channel:
    """Do what ``connect`` says; ``writer``: of its session, whose calls that takes alone."""
    options, grpc_retries, max_response_bytes = channel_options(keywords.get("options"))
    settings = make_settings(
        keywords, grpc_retries=grpc_retries, max_response_bytes=max_response_bytes
    )
    if inspect.iscoroutinefunction(settings.metadata):
        raise ValueError("metadata is a coroutine function for rifl.aio.connect only")
    settings = replace(settings, session_writer=writer)
    interceptors = keywords.get("interceptors", ())

    def open_one(address: str, *, own: bool = False) -> grpc.Channel:
        having = own_connection(options, own)
        inner = open_sync(address, credentials, having, keywords.get("compression"))
        around = (*interceptors, *guards(SecretGuard, settings, address, credentials))
        return grpc.intercept_channel(inner, *around) if around else inner

    follow = keywords.get("follow_leaders", False)
    inner = over_targets(target, follow, open_one, TargetsChannel)
    if opening():
        # Called in place of gRPC's function, by another call of this one.
        return inner  # type: ignore[return-value]
    alike = None
    if not (interceptors or follow or settings.metadata):
        alike = likeness(grpc, target, credentials, options, keywords.get("compression"))
    return Channel(inner, settings, open_one, alike)


class Channel(grpc.Channel):
    """A ``grpc.Channel`` over another one; built by ``connect``.

    Calls of methods that the server deduplicates carry an identity and are retried:
    unary ones, those with a request stream (if it can be kept for another attempt)
    and those with a response stream (resumed at the point where it broke off). Other
    calls, and all bidirectional ones, are passed through and sent once.
    Failed unary calls raise ``CallError``. In a forked child every use raises
    ``rifl.core.ForkedProcess``, but for ``close``, which then does nothing.
    ``close`` cancels the calls in flight and takes at most a second. Any thread.
    """

    def __init__(
        self,
        inner: grpc.Channel,
        settings: Settings,
        connect: Connect[grpc.Channel] | None = None,
        alike: Hashable = None,
    ) -> None:
        self._inner = inner
        self._client = SyncClient(inner, settings, connect, alike)
        self._session = Session(self._client)
        self._batches = Batches(self._client)

    @property
    def session(self) -> Session:
        """The identities of this channel's calls."""
        return self._session

    def unary_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryUnaryMultiCallable:
        """Return a multicallable, as ``grpc.Channel.unary_unary`` does."""
        self._check_process()
        name, inner = inner_method(
            self._inner.unary_unary, method, response_deserializer, _registered_method
        )
        return UnaryUnaryMultiCallable(
            self._client, inner, name, request_serializer, response_deserializer
        )

    def unary_stream(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> UnaryStreamMultiCallable:
        """Return a multicallable, as ``grpc.Channel.unary_stream`` does."""
        self._check_process()
        name, inner = inner_method(
            self._inner.unary_stream, method, response_deserializer, _registered_method
        )
        return UnaryStreamMultiCallable(
            self._client, inner, name, request_serializer, response_deserializer
        )

    def stream_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> StreamUnaryMultiCallable:
        """Return a multicallable, as ``grpc.Channel.stream_unary`` does."""
        self._check_process()
        name, inner = inner_method(
            self._inner.stream_unary, method, response_deserializer, _registered_method
        )
        return StreamUnaryMultiCallable(
            self._client, inner, name, request_serializer, response_deserializer
        )

    def stream_stream(self, method: str | bytes, *args: Any, **kwargs: Any) -> Any:
        """Return a multicallable, as ``grpc.Channel.stream_stream`` does."""
        self._check_process()
        method = method_name(method)
        inner = self._inner.stream_stream(method, *args, **kwargs)
        return BidirectionalMultiCallable(self._client, inner, method)

    def batch(
        self,
        method: str,
        items: Iterable[BatchItem],
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> list[BatchResult]:
        """Make many calls of one unary method, in as few RPCs as they fit; blocks.

        ``method`` is its full name, ``/package.Service/Method``; ``items`` are read to their
        end before anything is sent. Each call has its own identity, runs once, and has its
        own result, in the order of ``items``; the failure of one call fails no other.
        Handlers of an RPC run in that order unless the server declares otherwise; a retried
        call may run after later ones. Calls without a final answer are sent again within
        ``timeout`` (seconds for all of it; None: as the retry policy says), with the same
        identities, as single calls are. Calls with an equal key and request happen once and
        get one answer.

        A call's failure is in its result and never raised. Raises ``ValueError`` for a closed
        channel, ``BadHeader`` for an invalid key, or one without a named session, and
        ``rifl.core.ForkedProcess``. Any thread; any number at once.
        """
        return self._batches.run(method, items, timeout, metadata)

    def batch_future(
        self,
        method: str,
        items: Iterable[BatchItem],
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> Future[list[BatchResult]]:
        """Do what ``batch`` does in the background.

        At most 16 such batches of a channel are in flight; more wait their turn, which
        counts towards ``timeout``. Only ``close`` cancels one that has begun.
        """
        return self._batches.submit(method, items, timeout, metadata)

    def subscribe(
        self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False
    ) -> None:
        """Watch the connectivity, as ``grpc.Channel.subscribe`` does."""
        self._check_process()
        self._inner.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """End a ``subscribe``, as ``grpc.Channel.unsubscribe`` does."""
        self._check_process()
        self._inner.unsubscribe(callback)

    def close(self) -> None:
        """Close: cancel the calls in flight and give an idle client id back."""
        if not self._client.forked:
            self._client.stop()
            self._inner.close()
            self._batches.close()

    def __enter__(self) -> Channel:
        self._check_process()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        if self._client.forked:
            self._client.check_usable()
