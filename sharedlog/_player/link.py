"""The link to one target: a channel, and the calls of the service Target."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from _rifl_ground.texts import one_line
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    NoSuchStream,
    NotAllowed,
    OtherStore,
)
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._player.declared import Target
from sharedlog._wire.refusals import error_of
from sharedlog.v1 import target_pb2
from sharedlog.v1.target_pb2_grpc import TargetStub

_OPTIONS = (
    # What is sent again is sent again by us.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A path that broke is noticed by what is sent on it and not acknowledged (TCP's user timeout),
    # else now and then: servers hang up on who pings them, without data, more often than each five
    # minutes, so that an idle target, or one with a slow handler, would be cut off again and again.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A connection that nothing is sent on stays: that it has ended says that its target has.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    # Another link does not get the connection that this one was left for.
    ("grpc.use_local_subchannel_pool", 1),
    # A target that restarts is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
# gRPC takes a deadline that is too far away for one that is over.
_LONGEST_S = 30 * 86_400.0


class Link:
    """To one target, of one event loop."""

    def __init__(self, target: Target) -> None:
        """Nothing is sent yet; raises ``InvalidRequest`` for files that are not there."""
        credentials = target.credentials()
        self._metadata = target.metadata()
        self._patience_s = min(target.patience.total_seconds(), _LONGEST_S)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target.address, _OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target.address, credentials, _OPTIONS)
        self._stub = TargetStub(self._channel)

    async def connect(self, request: target_pb2.ConnectRequest) -> target_pb2.ConnectReply:
        """Ask where it is; raises ``LogError``."""
        found: target_pb2.ConnectReply = await self._asked(self._stub.Connect, request)
        return found

    async def batch(self, request: target_pb2.Deliveries) -> target_pb2.DeliveryAnswers:
        """Deliver a batch; raises ``LogError``."""
        found: target_pb2.DeliveryAnswers = await self._asked(self._stub.DeliverBatch, request)
        return found

    def stream(self) -> Any:
        """Return a call that takes deliveries, and answers."""
        return self._stub.Deliver(metadata=self._metadata)

    @property
    def connected(self) -> bool:
        """Whether it has a connection, as it last knew."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def _asked(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._patience_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise told(error) from error

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)


class Late(LogError):
    """No answer came in time."""


def why(error: LogError) -> Trouble:
    """Return what a target is cut off for by an error."""
    said = one_line(str(error))
    match error:
        case Late():
            return Trouble(Cause.LATE, details=said)
        case OtherStore():
            return Trouble(Cause.OTHER_STORE, details=said)
        case NotAllowed():
            return Trouble(Cause.NOT_ALLOWED, details=said)
        case InvalidRequest() | NoSuchStream():
            return Trouble(Cause.CONFIG, details=said)
    return Trouble(Cause.BROKEN, details=f"{type(error).__name__}: {said}")


def told(error: grpc.aio.AioRpcError) -> LogError:
    """Return what a call's error is."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Late(f"{error.code().name}: {error.details()}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidRequest(f"it is no target: {error.details()}")
    return error_of(error)
