"""A thin client of etcd: calls that move on to the next node, tokens, streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import grpc

from _rifl_ground.owned_lock import OwnedLock
from sharedlog._core.errors import ReentrantUse
from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.calls import (
    AUTHENTICATE,
    WATCH,
    Method,
    may_be_better_elsewhere,
    read_refusal,
    wants_new_token,
)
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import Owner

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

_Metadata = tuple[tuple[str, str | bytes], ...]
_ROUND_PAUSE_S = 0.05
_OPTIONS = [
    # Nothing is sent twice on its own: a write whose reply was lost may have happened.
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A node that came back is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # So that a watch on a machine that vanished ends; etcd forbids less than 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
]


class Client:
    """One process's connections to a cluster. Any thread.

    One node is asked until it fails; then all ask the next one. Raises the owner's error
    that a failure means (see ``read_refusal``), ``stopped`` once closed.
    """

    def __init__(self, address: EtcdAddress, owner: Owner) -> None:
        self.owner = owner
        self.closing = threading.Event()
        self.address = address
        self._credentials = _credentials(address, owner)
        self._channels = [self._opened(host) for host in address.hosts]
        self._calls: dict[tuple[int, str], Any] = {}
        self._at = 0
        self._token = ""
        self._signing_in = OwnedLock(ReentrantUse)

    def call(
        self,
        method: Method[_Request, _Response],
        request: _Request,
        *,
        again: bool,
        writes: bool = False,
    ) -> _Response:
        """Ask a node and return its reply.

        ``again``: when it fails the next one is asked, until the address's
        ``timeout_s`` is over: for what does no harm twice, and late. Else it is asked
        once, and ``unavailable`` leaves open whether it happened. ``writes``: so does what
        refuses a later try, as an earlier one may have been done.
        """
        end = time.monotonic() + self.address.timeout_s
        failed = 0
        while True:
            node = self._at
            left_s = end - time.monotonic()
            try:
                return self._ask(node, method, request, min(left_s, self._try_s(again)))
            except self.owner.errors as error:
                cause = error.__cause__
                passing = (
                    isinstance(cause, grpc.RpcError)
                    and may_be_better_elsewhere(cause)
                    and not isinstance(error, self.owner.stopped)
                )
                if passing:
                    self.leave(node)
                failed += 1
                left_s = end - time.monotonic()
                if (
                    isinstance(error, self.owner.stopped)
                    or not (again and passing)
                    or left_s <= _ROUND_PAUSE_S
                ):
                    stopped = isinstance(error, self.owner.stopped)
                    if writes and failed > 1 and not (passing or stopped):
                        told = f"{error}; an earlier try may have been done"
                        raise self.owner.unavailable(told) from error
                    raise
                if failed % len(self._channels) == 0:
                    self.closing.wait(_ROUND_PAUSE_S)

    def call_at(
        self, node: int, method: Method[_Request, _Response], request: _Request, within_s: float
    ) -> _Response:
        """Ask one node, by its place in the address, once."""
        return self._ask(node, method, request, within_s)

    def leave(self, node: int) -> None:
        """Ask another node from now on, if that one is asked now."""
        if self._at == node:
            self._at = (node + 1) % len(self._channels)

    def watch(
        self, watched: Sequence[pb.WatchCreateRequest], ended: threading.Event
    ) -> tuple[int, Any]:
        """Watch keys at the node that is asked now; return that, and the stream.

        ``ended`` is set by the caller when it is done with the stream.
        """

        def requests() -> Iterator[pb.WatchRequest]:
            for each in watched:
                yield pb.WatchRequest(create=each)
            # What ends the requests ends the watch.
            ended.wait()

        self._require_open()
        node = self._at
        call = self._channels[node].stream_stream(
            WATCH.path,
            request_serializer=WATCH.request.SerializeToString,
            response_deserializer=WATCH.response.FromString,
        )
        return node, call(requests(), metadata=self._metadata(node, self.address.try_s))

    def close(self) -> None:
        """Close the connections; calls in flight fail. Idempotent."""
        if not self.closing.is_set():
            self.closing.set()
            for channel in self._channels:
                channel.close()

    def _try_s(self, again: bool) -> float:
        return self.address.try_s if again else self.address.timeout_s

    def _ask(
        self, node: int, method: Method[_Request, _Response], request: _Request, within_s: float
    ) -> _Response:
        for turn in range(2):
            token = self._token
            try:
                return self._send(node, method, request, within_s, self._metadata(node, within_s))
            except grpc.RpcError as error:
                if self.closing.is_set():
                    raise self.owner.stopped("the log engine was closed") from error
                if turn == 0 and self.address.username and wants_new_token(error):
                    self._sign_out(token)
                    continue
                raise read_refusal(error, self._named(node), self.owner) from error
        raise self.owner.unavailable(f"{self._named(node)} takes no token")

    def _send(
        self,
        node: int,
        method: Method[_Request, _Response],
        request: _Request,
        within_s: float,
        metadata: _Metadata,
    ) -> _Response:
        self._require_open()
        call = self._calls.get((node, method.path))
        if call is None:
            kinds: Any = method
            call = self._channels[node].unary_unary(
                method.path,
                request_serializer=kinds.request.SerializeToString,
                response_deserializer=kinds.response.FromString,
            )
            self._calls[node, method.path] = call
        try:
            reply: _Response = call(request, timeout=within_s, metadata=metadata)
        except ValueError as error:
            # Of a channel that was closed between the look and the call.
            raise self.owner.stopped("the log engine was closed") from error
        except grpc.RpcError:
            raise
        except BaseException:
            self._interrupted(node)
            raise
        return reply

    def _opened(self, host: str) -> grpc.Channel:
        if self._credentials:
            return grpc.secure_channel(host, self._credentials, _OPTIONS)
        return grpc.insecure_channel(host, _OPTIONS)

    def _interrupted(self, node: int) -> None:
        """Use another channel: a signal's exception may leave a lock of gRPC's taken."""
        if self.closing.is_set():
            return
        old, self._channels[node] = self._channels[node], self._opened(self.address.hosts[node])
        self._calls = {}
        # It may block: close it in a thread of its own, which no other thread joins.
        threading.Thread(target=old.close, name="log-etcd-close", daemon=True).start()

    def _metadata(self, node: int, within_s: float) -> _Metadata:
        if not self.address.username:
            return ()
        with self._signing_in:
            if not self._token:
                who = pb.AuthenticateRequest(
                    name=self.address.username, password=self.address.password
                )
                try:
                    self._token = self._send(node, AUTHENTICATE, who, within_s, ()).token
                except grpc.RpcError as error:
                    raise read_refusal(error, self._named(node), self.owner) from error
            return (("token", self._token),)

    def _sign_out(self, token: str) -> None:
        with self._signing_in:
            if self._token == token:
                self._token = ""

    def _named(self, node: int) -> str:
        return f"etcd {self.address.hosts[node]}"

    def _require_open(self) -> None:
        if self.closing.is_set():
            raise self.owner.stopped("the log engine is closed")


def _credentials(address: EtcdAddress, owner: Owner) -> grpc.ChannelCredentials | None:
    if not address.tls:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=address.read_file("ca", owner),
        private_key=address.read_file("key", owner),
        certificate_chain=address.read_file("cert", owner),
    )
