"""The methods that a target's streams may call, and a message as their handlers are told of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sharedlog._core.envelope import unpack
from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat
from sharedlog._core.position import Position
from sharedlog._core.sealing import Seals, is_sealed, opened
from sharedlog._core.streams import check_name, stream_of
from sharedlog._core.target_delivery import Delivery
from sharedlog._core.target_steps import (
    FAILED_PRECONDITION,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    Called,
    HandlerKind,
    MethodRefused,
)
from sharedlog.v1 import sharedlog_pb2 as pb

_METHOD = re.compile(r"/[A-Za-z0-9_.]+/[A-Za-z0-9_]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Delivered:
    """What is known of the message that a handler is called with: ``sharedlog.delivery(context)``.

    It does not change. ``redelivered``: it is known that it was tried before. False is no promise
    that it was not: if each effect must be there once, declare the method ``atomic``.
    """

    __slots__ = ("_content", "_delivery", "method", "redelivered")

    def __init__(
        self, delivery: Delivery, content: pb.Envelope, method: str, redelivered: bool
    ) -> None:
        self._delivery = delivery
        self._content = content
        self.method = method
        self.redelivered = redelivered

    @property
    def log(self) -> str:
        """The ``log_name`` of its players."""
        return self._delivery.feed.log

    @property
    def position(self) -> Position:
        """The position of the message."""
        return self._delivery.place

    @property
    def stream(self) -> str:
        """The stream of the message."""
        return stream_of(self._delivery.tag)

    @property
    def substream(self) -> int:
        """Its substream's number."""
        return self._delivery.place.substream

    @property
    def key(self) -> bytes | None:
        """The key that chose the substream; None: it had none."""
        return self._content.key if self._content.HasField("key") else None

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers of the message, by name."""
        return {each.name: each.value for each in self._content.headers}

    @property
    def causation_id(self) -> str:
        """The id of its cause, which its publisher gave."""
        return self._content.causation_id

    @property
    def trace_parent(self) -> str:
        """The W3C trace context of who published it; empty where there was none."""
        return self._content.trace_parent

    @property
    def trace_state(self) -> str:
        """The rest of that context."""
        return self._content.trace_state

    @property
    def append_time(self) -> datetime:
        """When it was appended, by the log's time."""
        try:
            return _EPOCH + timedelta(microseconds=self._delivery.append_time_us)
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)

    def __repr__(self) -> str:
        """Its place, and its method."""
        return f"<Delivered {self._delivery.tag} at {self.position} to {self.method}>"


class Methods:
    """The allow-list of a target: which methods the messages of each stream may call."""

    def __init__(
        self,
        streams: Mapping[str, str | Sequence[str]],
        kind_of: Callable[[str], HandlerKind | None],
        seals: Seals | None = None,
    ) -> None:
        """``kind_of``: how a method is declared; None: it may not be called by players."""
        if not streams:
            raise InvalidRequest("a target names at least one stream, and the methods it may call")
        self.streams: dict[str, tuple[str, ...]] = {}
        for stream, given in streams.items():
            check_name(stream)
            methods = (given,) if isinstance(given, str) else tuple(given)
            for method in methods:
                if not isinstance(method, str) or not _METHOD.fullmatch(method):
                    raise InvalidRequest(f"{method!r} is no method: /package.Service/Method")
            if not methods:
                raise InvalidRequest(f"stream {stream!r} may call no method: leave it out")
            self.streams[stream] = methods
        self._kind_of = kind_of
        self._seals = seals

    def check_tag(self, tag: str) -> None:
        """Raise ``InvalidRequest`` for a substream that this target does not take."""
        if stream_of(tag) not in self.streams:
            raise InvalidRequest(f"{tag!r} is of no stream that this target takes")

    def resolve(self, delivery: Delivery) -> Called:
        """Return what a message calls; raises ``MethodRefused``."""
        try:
            envelope = delivery.envelope
            if is_sealed(envelope):
                envelope, why = opened(envelope, self._seals, delivery.tag)
                if why:
                    raise MethodRefused(FAILED_PRECONDITION, f"the message is sealed: {why}")
            content = unpack(envelope)
        except NewerFormat as error:
            raise MethodRefused(FAILED_PRECONDITION, str(error)) from error
        except CorruptLog as error:
            raise MethodRefused(INVALID_ARGUMENT, str(error)) from error
        allowed = self.streams.get(stream_of(delivery.tag), ())
        method = content.method
        if not method:
            if len(allowed) != 1:
                raise MethodRefused(
                    INVALID_ARGUMENT, "the message names no method, and its stream may call several"
                )
            method = allowed[0]
        elif method not in allowed:
            raise MethodRefused(
                PERMISSION_DENIED, f"messages of {delivery.tag} may not call {method[:200]!r}"
            )
        kind = self._kind_of(method)
        if kind is None:
            raise MethodRefused(NOT_FOUND, f"{method} is not declared to happen once")
        return Called(method, kind, content)
