"""The calls to a served log: each one try, whose errors are the log's."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import grpc

from sharedlog._core.errors import LogError, LogStopped
from sharedlog._remote.address import Address
from sharedlog._wire.methods import MOST_REPLY_BYTES, SERVICE, STEPS, TOKEN_KEY, TOKEN_PREFIX
from sharedlog._wire.refusals import error_of
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1 import steps_pb2

_METHODS = {
    name: (SERVICE, each, pb)
    for name, each in pb.DESCRIPTOR.services_by_name["Log"].methods_by_name.items()
} | {
    f"Steps/{name}": (STEPS, each, steps_pb2)
    for name, each in steps_pb2.DESCRIPTOR.services_by_name["Steps"].methods_by_name.items()
}
_OPTIONS = (
    # What is sent again is sent again by us.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", MOST_REPLY_BYTES + (1 << 20)),
    ("grpc.max_send_message_length", -1),
    # A path that broke is noticed by who waits for messages.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Of gRPC's other pings, which one of these waits for.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # Another channel does not get the connection of one that was left.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that restarts is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
# Whatever becomes of these, nothing was appended by what asks for them. What is asked behind an
# append, GetProducer and GetNamed, is not among them.
_READING = (
    *("Describe", "ListStreams", "ListProducers", "ListHolds"),
    *("Steps/Get", "Steps/Scan", "Steps/Read", "Steps/Ends", "Steps/Wait"),
)


class _Using(NamedTuple):
    channel: grpc.Channel
    calls: dict[str, Any]


class LogChannel:
    """To one server. Any thread."""

    def __init__(self, address: Address) -> None:
        """Nothing is sent yet."""
        self._address = address
        self._using = self._opened()
        self._timeout_s = address.timeout_s
        self._metadata = ((TOKEN_KEY, TOKEN_PREFIX + address.token),) if address.token else ()
        self._closed = False

    def ask(self, method: str, request: Any) -> Any:
        """Return the one answer; raises ``LogError``."""
        used = self._using
        try:
            return self._call(method)(request, timeout=self._timeout_s, metadata=self._metadata)
        except (grpc.RpcError, ValueError) as error:
            self._leave(used, error)
            told = self.told(error)
            if method in _READING:
                told.appended = False
            raise told from error
        except BaseException:
            self._interrupted()
            raise

    def read_all(self, method: str, request: Any) -> list[Any]:
        """Return all answers of a stream that ends; raises ``LogError``."""
        used = self._using
        try:
            return list(
                self._call(method)(request, timeout=self._timeout_s, metadata=self._metadata)
            )
        except (grpc.RpcError, ValueError) as error:
            self._leave(used, error)
            told = self.told(error)
            told.appended = False
            raise told from error
        except BaseException:
            self._interrupted()
            raise

    def stream(self, method: str, request: Any) -> Any:
        """Return the call of a stream without an end."""
        try:
            return self._call(method)(request, metadata=self._metadata)
        except ValueError as error:
            raise self.told(error) from error
        except BaseException:
            self._interrupted()
            raise

    def told(self, error: Exception) -> LogError:
        """Return what a call's error is to the log's users."""
        if self._closed or not isinstance(error, grpc.RpcError):
            # A channel that was closed raises a ValueError.
            return LogStopped("the log was closed")
        return error_of(error)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._closed = True
        self._using.channel.close()

    def _opened(self) -> _Using:
        address = self._address
        if address.credentials is None:
            return _Using(grpc.insecure_channel(address.target, _OPTIONS), {})
        return _Using(grpc.secure_channel(address.target, address.credentials, _OPTIONS), {})

    def _leave(self, used: _Using, error: Exception) -> None:
        """Ask on another connection after a try without an answer: this one may be forgotten.

        What else goes on there ends by itself, or by pings.
        """
        late = isinstance(error, grpc.RpcError) and error.code() is _LATE
        if late and self._using is used and not self._closed:
            self._using = self._opened()

    def _interrupted(self) -> None:
        """Use another channel: a signal's exception may leave a lock of gRPC's taken."""
        if self._closed:
            return
        old, self._using = self._using, self._opened()
        # It may block: close it in a thread of its own, which no other thread joins.
        threading.Thread(target=old.channel.close, name="sharedlog-close", daemon=True).start()

    def _call(self, method: str) -> Any:
        channel, calls = self._using
        found = calls.get(method)
        if found is None:
            service, described, module = _METHODS[method]
            make = channel.unary_stream if described.server_streaming else channel.unary_unary
            found = calls[method] = make(
                f"/{service}/{described.name}",
                request_serializer=_serialized,
                response_deserializer=getattr(module, described.output_type.name).FromString,
            )
        return found


def _serialized(request: Any) -> bytes:
    data: bytes = request.SerializeToString()
    return data
