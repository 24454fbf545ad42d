"""A message as a reader gets it (DESIGN-LOG §12)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from sharedlog._core.envelope import SEALED_VERSION, unpack
from sharedlog._core.errors import InvalidRequest, SealedMessage
from sharedlog._core.position import Position
from sharedlog._core.reading import State
from sharedlog._core.sealing import Seals, opened
from sharedlog._core.streams import tag_of
from sharedlog.v1 import sharedlog_pb2 as pb

_M = TypeVar("_M", bound=ProtobufMessage)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Message:
    """A message of a stream: its content and its position. It does not change."""

    __slots__ = (
        "_appended_us",
        "_content",
        "_data",
        "_why",
        "position",
        "state",
        "stream",
        "substream",
    )

    def __init__(
        self,
        envelope: bytes,
        position: Position,
        stream: str,
        substream: int,
        appended_us: int,
        state: State = State.COMMITTED,
        seals: Seals | None = None,
    ) -> None:
        """Read an envelope; raises ``NewerFormat`` and ``CorruptLog``."""
        self._why = ""
        content = unpack(envelope)
        if content.version == SEALED_VERSION:
            envelope, self._why = opened(envelope, seals, tag_of(stream, substream))
            content = unpack(envelope)
        self._data = envelope
        self._content = content
        self._appended_us = appended_us
        # Of this message in its substream; a whole checkpoint.
        self.position = position
        self.stream = stream
        self.substream = substream
        # What became of it; a follower of what is committed sees nothing else.
        self.state = state

    @property
    def sealed(self) -> bool:
        """Whether it is sealed and was not opened: its content then raises ``SealedMessage``.

        Its position, stream, state and ``append_time`` are known all the same.
        """
        return bool(self._why)

    @property
    def value(self) -> bytes:
        """The value, in bytes."""
        return self._envelope.body

    @property
    def text(self) -> str:
        """The value as UTF-8; raises ``UnicodeDecodeError``."""
        return self._envelope.body.decode()

    @property
    def key(self) -> bytes | None:
        """The key that chose the substream; None: it had none."""
        return self._envelope.key if self._envelope.HasField("key") else None

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers, by name."""
        return {each.name: each.value for each in self._envelope.headers}

    @property
    def content_type(self) -> str:
        """The media type of the value."""
        return self._envelope.content_type

    @property
    def schema_name(self) -> str:
        """The full name of the value's protobuf message, or the name that the publisher gave."""
        return self._envelope.schema_name

    @property
    def method(self) -> str:
        """The gRPC method that players call with the value; "": by default of the target."""
        return self._envelope.method

    @property
    def trace_parent(self) -> str:
        """The ``traceparent`` of its publisher's W3C trace context; "": there was none."""
        return self._envelope.trace_parent

    @property
    def trace_state(self) -> str:
        """The ``tracestate`` of that context."""
        return self._envelope.trace_state

    @property
    def causation_id(self) -> str:
        """The id of its cause, which its publisher gave."""
        return self._envelope.causation_id

    @property
    def event_time(self) -> datetime:
        """When the event happened, by its publisher's clock."""
        return _time(self._envelope.event_time_us)

    @property
    def append_time(self) -> datetime:
        """When it was appended, by the log's time, which never goes back."""
        return _time(self._appended_us)

    def parse(self, kind: type[_M]) -> _M:
        """Return the value as this protobuf message; raises ``InvalidRequest`` if it is not one."""
        if not (isinstance(kind, type) and issubclass(kind, ProtobufMessage)):
            raise InvalidRequest(f"{kind!r:.200} is no class of protobuf messages")
        name = kind.DESCRIPTOR.full_name
        if self.schema_name and self.schema_name != name:
            raise InvalidRequest(f"{self.position} is a {self.schema_name}, not a {name}")
        try:
            return kind.FromString(self.value)
        except DecodeError as error:
            raise InvalidRequest(f"{self.position} is no {name}") from error

    def __eq__(self, other: object) -> bool:
        """Whether it is the same message at the same place."""
        return isinstance(other, Message) and self._whole() == other._whole()

    def __hash__(self) -> int:
        """Of its place."""
        return hash((self.position, self.stream, self.substream))

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[Any, ...]]:
        """Pickle as what it was made of."""
        return Message, self._whole()

    def __repr__(self) -> str:
        """Its place, and how large its value is."""
        told = (
            "sealed" if self.sealed else f"{len(self._envelope.body)} bytes of {self.content_type}"
        )
        return f"<Message {self.stream}/{self.substream} at {self.position}: {told}>"

    @property
    def _envelope(self) -> pb.Envelope:
        if self._why:
            raise SealedMessage(f"{self.position} is sealed: {self._why}")
        return self._content

    def _whole(self) -> tuple[bytes, Position, str, int, int, State]:
        place = self.position, self.stream, self.substream
        return (self._data, *place, self._appended_us, self.state)


def _time(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        # This library's publishers never send such a time: take the nearest one that fits.
        return _LAST if microseconds > 0 else _FIRST
