"""The aio channel: existing stubs, with retries that are safe (DESIGN §3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Unpack

import grpc
import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.aio_multicallable import AioUnaryUnaryMultiCallable
from rifl._client.aio_session import AioSession
from rifl._client.aio_streams import (
    AioBidirectionalMultiCallable,
    AioStreamUnaryMultiCallable,
    AioUnaryStreamMultiCallable,
)
from rifl._client.aio_targets import AioTargetsChannel
from rifl._client.answers import ATTEMPT_CANCELLED, CLOSED, CUT_OFF
from rifl._client.batch import BatchItem, BatchResult, BatchRun, Send
from rifl._client.grpc_channels import (
    Connect,
    inner_method,
    likeness,
    open_aio,
    opening,
    over_targets,
    own_connection,
)
from rifl._client.plaintext import AioSecretGuard, guards
from rifl._client.settings import (
    ConnectKeywords,
    Settings,
    channel_options,
    make_settings,
    method_name,
    shows,
)


async def run_batch(
    client: AioClient,
    channel: grpc.aio.Channel,
    method: str,
    items: Iterable[BatchItem],
    timeout: float | None,
    metadata: Any,
) -> list[BatchResult]:
    """Run a batch to its end."""
    woken = asyncio.Event()
    run = BatchRun(client, method, items, timeout, metadata, woken.set)
    inner: Any = channel.unary_unary(method)
    try:
        while (step := run.next()) is not None:
            if isinstance(step, Send):
                await _send(client, inner, run, step)
                continue
            limit_s = None if step.until is None else step.until - client.now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await woken.wait()
            woken.clear()
    except BaseException:
        run.interrupted()
        raise
    return run.results()


async def _send(client: AioClient, inner: Any, run: BatchRun, step: Send) -> None:
    timer: asyncio.TimerHandle | None = None
    cut = False

    def look(at: float | None) -> None:
        nonlocal timer, cut
        if at is not None:
            delay_s = max(at - client.now(), 0.0)
            timer = asyncio.get_running_loop().call_later(delay_s, lambda: look(run.overdue()))
            return
        cut = True
        call.cancel()

    try:
        with contextlib.nullcontext() if step.route is None else step.route:
            call = inner(step.body, timeout=step.timeout_s, metadata=step.metadata)
        if step.cut_at is not None:
            look(step.cut_at)
        reply = await call
    except grpc.aio.AioRpcError as error:
        run.failed(error)
    except grpc.aio.UsageError:
        run.failed(CLOSED)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        run.failed(CUT_OFF if cut else ATTEMPT_CANCELLED)
    else:
        run.replied(reply)
    finally:
        if timer is not None:
            timer.cancel()


@shows(ConnectKeywords)
def connect(
    target: str | Sequence[str],
    credentials: grpc.ChannelCredentials | None = None,
    **keywords: Unpack[ConnectKeywords],
) -> AioChannel:
    """Open an aio channel whose unary calls have their effect once.

    As ``rifl._client.connect``, for ``grpc.aio``. ``interceptors`` run below: once
    for each attempt, on serialised requests; they cost each call a task.
    """
    options, grpc_retries, max_response_bytes = channel_options(keywords.get("options"))
    settings = make_settings(
        keywords, grpc_retries=grpc_retries, max_response_bytes=max_response_bytes
    )
    around = list(keywords.get("interceptors", ()))

    def open_one(address: str, *, own: bool = False) -> grpc.aio.Channel:
        having = own_connection(options, own)
        inside = [*around, *guards(AioSecretGuard, settings, address, credentials)]
        return open_aio(address, credentials, having, keywords.get("compression"), inside)

    follow = keywords.get("follow_leaders", False)
    inner = over_targets(target, follow, open_one, AioTargetsChannel)
    if opening():
        # Called in place of gRPC's function, by another call of this one.
        return inner  # type: ignore[return-value]
    alike = None
    if not (around or follow or settings.metadata):
        alike = likeness(grpc.aio, target, credentials, options, keywords.get("compression"))
    channel = AioChannel(inner, settings, open_one, intercepted=bool(around), alike=alike)
    channel._client.insecure = credentials is None
    return channel


class AioChannel(grpc.aio.Channel):
    """A ``grpc.aio.Channel`` over another one; built by ``rifl.aio.connect``.

    As ``rifl._client.Channel``; used on its event loop only. ``close(grace)`` lets
    calls in flight go on for ``grace`` seconds, also calls that still wait for a client
    id or between two attempts.
    """

    def __init__(
        self,
        inner: grpc.aio.Channel,
        settings: Settings,
        connect: Connect[grpc.aio.Channel] | None = None,
        *,
        intercepted: bool = False,
        alike: Hashable = None,
    ) -> None:
        self._inner = inner
        self._client = AioClient(inner, settings, connect, alike)
        self._session = AioSession(self._client)
        self._direct = (
            settings.hedge_after_s is None and settings.session_name is None and not intercepted
        )

    @property
    def session(self) -> AioSession:
        """The identities of this channel's calls."""
        return self._session

    def unary_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> AioUnaryUnaryMultiCallable:
        """Return a multicallable, as ``grpc.aio.Channel.unary_unary`` does."""
        self._check_process()
        name, inner = inner_method(
            self._inner.unary_unary, method, response_deserializer, _registered_method
        )
        return AioUnaryUnaryMultiCallable(
            self._client,
            inner,
            name,
            request_serializer,
            response_deserializer,
            direct=self._direct,
        )

    def unary_stream(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> AioUnaryStreamMultiCallable:
        """Return a multicallable, as ``grpc.aio.Channel.unary_stream`` does."""
        self._check_process()
        name, inner = inner_method(
            self._inner.unary_stream, method, response_deserializer, _registered_method
        )
        return AioUnaryStreamMultiCallable(
            self._client, inner, name, request_serializer, response_deserializer
        )

    def stream_unary(
        self,
        method: str | bytes,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        _registered_method: bool | None = False,
    ) -> AioStreamUnaryMultiCallable:
        """Return a multicallable, as ``grpc.aio.Channel.stream_unary`` does."""
        self._check_process()
        name, inner = inner_method(
            self._inner.stream_unary, method, response_deserializer, _registered_method
        )
        return AioStreamUnaryMultiCallable(
            self._client, inner, name, request_serializer, response_deserializer
        )

    def stream_stream(self, method: str | bytes, *args: Any, **kwargs: Any) -> Any:
        """Return a multicallable, as ``grpc.aio.Channel.stream_stream`` does."""
        self._check_process()
        method = method_name(method)
        inner = self._inner.stream_stream(method, *args, **kwargs)
        return AioBidirectionalMultiCallable(self._client, inner, method)

    async def batch(
        self,
        method: str,
        items: Iterable[BatchItem],
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> list[BatchResult]:
        """Make many calls of one unary method, as ``rifl.Channel.batch`` does.

        Cancellation cancels its RPC; the outcome of its calls is unknown then.
        """
        self._check_process()
        return await run_batch(self._client, self._inner, method, items, timeout, metadata)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the connectivity, as ``grpc.aio.Channel.get_state`` does."""
        self._check_process()
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait for another connectivity than the given one, as gRPC's method does."""
        self._check_process()
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the channel is connected, as gRPC's method does."""
        self._check_process()
        await self._inner.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close: cancel the calls in flight and give an idle client id back."""
        if not self._client.forked:
            if grace:
                until = self._client.now() + grace
                await self._client.rest(grace)
                grace = max(until - self._client.now(), 0.0)
            await self._client.stop()
            await self._inner.close(grace)

    async def __aenter__(self) -> AioChannel:
        self._check_process()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_process(self) -> None:
        if self._client.forked:
            self._client.check_usable()
