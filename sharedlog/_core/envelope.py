"""The envelope of a message: its value and what is said of it (DESIGN-LOG §12)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.message import Message as ProtobufMessage

from _rifl_ground.parsing import parse
from sharedlog._core.arguments import check_whole, shown
from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat
from sharedlog.v1 import sharedlog_pb2 as pb

VERSION = 1
# Of one that is sealed whole.
SEALED_VERSION = 2
# Bounds, so that every engine takes every message.
MAX_VALUE_BYTES = 1 << 20
MAX_KEY_BYTES = 1024
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16 << 10
MAX_TEXT_BYTES = 512
BYTES, TEXT, PROTOBUF = (
    "application/octet-stream",
    "text/plain; charset=utf-8",
    "application/protobuf",
)
_HEADER_NAME = re.compile(r"[!-~]{1,128}")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_METHOD = re.compile(r"/[A-Za-z_][A-Za-z0-9_.]*/[A-Za-z_][A-Za-z0-9_]*")

Value = bytes | bytearray | memoryview | str | ProtobufMessage


class About(NamedTuple):
    """Properties of a message beside its value, all optional.

    ``content_type``, ``schema_name``: of a value in bytes; a protobuf message and a text have
    their own. ``trace_parent`` and ``trace_state``: the W3C trace context. ``causation_id``: what
    caused the message, a position or a call. ``event_time_us``: when the event happened,
    microseconds since 1970; by default when it is published. ``method``: of a call, which players
    call with the value; ``Log.publish_call`` sets it.
    """

    headers: Mapping[str, bytes | str] | None = None
    content_type: str = ""
    schema_name: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    causation_id: str = ""
    event_time_us: int | None = None
    method: str = ""


def is_trace_parent(text: str) -> bool:
    """Return whether this is a W3C ``traceparent``."""
    return _TRACE_PARENT.fullmatch(text) is not None


def called(method: str, request: Value, about: About | None) -> About:
    """Return what is said of a request of a method; raises ``InvalidRequest`` for none."""
    if not isinstance(method, str) or not method:
        raise InvalidRequest(f"{method!r:.100} is no method: such as /shop.v1.Inventory/Reserve")
    if isinstance(request, str):
        raise InvalidRequest("a request is a protobuf message, or the bytes of one")
    if about is not None:
        _check_about(about)
    found = about or About()
    if not found.content_type and not isinstance(request, ProtobufMessage):
        found = found._replace(content_type=PROTOBUF)
    return found._replace(method=method)


def key_bytes(key: bytes | str | None) -> bytes | None:
    """Return a key's bytes; raises ``InvalidRequest`` for one that is too long, or is none."""
    if key is None:
        return None
    found = _encoded(key) if isinstance(key, str) else key
    if not isinstance(found, bytes) or len(found) > MAX_KEY_BYTES:
        raise InvalidRequest(f"a key is bytes or str, {MAX_KEY_BYTES} bytes at most")
    return found


def pack(value: Value, key: bytes | None, about: About | None, now_us: int) -> bytes:
    """Return the bytes of an envelope; raises ``InvalidRequest`` for what is beyond its bounds."""
    if isinstance(value, bytes):
        body, content_type, schema_name = value, BYTES, ""
    elif isinstance(value, str):
        body, content_type, schema_name = _encoded(value), TEXT, ""
    elif isinstance(value, bytearray | memoryview):
        body, content_type, schema_name = bytes(value), BYTES, ""
    elif isinstance(value, ProtobufMessage):
        body, content_type = _serialized(value), PROTOBUF
        schema_name = value.DESCRIPTOR.full_name
    else:
        raise InvalidRequest(
            f"{type(value).__name__} is no value: bytes, str, or a protobuf message"
        )
    if len(body) > MAX_VALUE_BYTES:
        raise InvalidRequest(f"a value of {len(body)} bytes; {MAX_VALUE_BYTES} are the most")
    if about is None:
        # By attributes, which cost three quarters of what keywords do.
        found = pb.Envelope()
        found.version = VERSION
        found.content_type = content_type
        if schema_name:
            found.schema_name = schema_name
        found.event_time_us = now_us
        found.body = body
    else:
        _check(about)
        found = pb.Envelope(
            version=VERSION,
            content_type=about.content_type or content_type,
            schema_name=about.schema_name or schema_name,
            headers=() if about.headers is None else _headers(about.headers),
            trace_parent=about.trace_parent,
            trace_state=about.trace_state,
            causation_id=about.causation_id,
            event_time_us=now_us if about.event_time_us is None else about.event_time_us,
            body=body,
            method=about.method,
        )
    if key is not None:
        found.key = key
    return found.SerializeToString()


def unpack(data: bytes) -> pb.Envelope:
    """Read an envelope; raises ``NewerFormat`` for a newer one, ``CorruptLog`` for none."""
    try:
        found = pb.Envelope.FromString(data)
    except DecodeError as error:
        raise CorruptLog("a message's envelope is none") from error
    if found.version not in (VERSION, SEALED_VERSION):
        if found.version:
            raise NewerFormat(
                f"an envelope of version {found.version}: a newer release wrote it, this one "
                f"knows {SEALED_VERSION}"
            )
        raise CorruptLog("a message's envelope is none")
    return found


def check(data: bytes) -> pb.Envelope:
    """Read an envelope that a client packed; raises ``InvalidRequest`` if ``pack`` would."""
    try:
        found = parse(pb.Envelope, data)
    except DecodeError as error:
        raise InvalidRequest("a message's envelope is none") from error
    if found.version == SEALED_VERSION:
        # What is in it, its readers know.
        if not found.sealed or len(found.ListFields()) != 2:
            raise InvalidRequest("a sealed envelope has what is sealed, and nothing else")
        return found
    if found.version != VERSION or found.sealed:
        raise InvalidRequest(f"an envelope of version {found.version}; this log takes {VERSION}")
    headers = {each.name: each.value for each in found.headers}
    if len(headers) < len(found.headers):
        raise InvalidRequest("two headers have one name")
    about = About(
        headers,
        found.content_type,
        found.schema_name,
        found.trace_parent,
        found.trace_state,
        found.causation_id,
        found.event_time_us,
        found.method,
    )
    key_bytes(found.key)
    pack(found.body, None, about, 0)
    return found


def check_method(method: str) -> None:
    """Raise ``InvalidRequest`` unless this is a gRPC method, or empty."""
    if not isinstance(method, str) or len(method) > MAX_TEXT_BYTES:
        raise InvalidRequest(f"a method is a text of {MAX_TEXT_BYTES} bytes at most")
    if method and not _METHOD.fullmatch(method):
        raise InvalidRequest(f"{method[:100]!r} is no method: such as /shop.v1.Inventory/Reserve")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("the text has characters that UTF-8 has not") from error


def _serialized(message: ProtobufMessage) -> bytes:
    if message.ByteSize() > MAX_VALUE_BYTES:
        raise InvalidRequest(
            f"a {message.DESCRIPTOR.full_name} of {message.ByteSize()} bytes; "
            f"{MAX_VALUE_BYTES} are the most"
        )
    try:
        return message.SerializeToString()
    except EncodeError as error:
        raise InvalidRequest(f"the protobuf message is not whole: {error}") from error


def _headers(headers: Mapping[str, bytes | str]) -> list[pb.Header]:
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers={shown(headers)}: they are a mapping, by their names")
    if len(headers) > MAX_HEADERS:
        raise InvalidRequest(f"{len(headers)} headers; {MAX_HEADERS} are the most")
    found = []
    size = 0
    for name, value in headers.items():
        data = _encoded(value) if isinstance(value, str) else value
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidRequest(
                f"{shown(name)} cannot name a header: 1 to 128 characters of ASCII, no space"
            )
        if not isinstance(data, bytes):
            raise InvalidRequest(f"header {name!r} is neither bytes nor str")
        size += len(name) + len(data)
        found.append(pb.Header(name=name, value=data))
    if size > MAX_HEADER_BYTES:
        raise InvalidRequest(f"{size} bytes of headers; {MAX_HEADER_BYTES} are the most")
    return found


def _check_about(about: object) -> None:
    if not isinstance(about, About):
        raise InvalidRequest(f"about={shown(about)}: it is sharedlog.About")


def _check(about: About) -> None:
    _check_about(about)
    for name in ("content_type", "schema_name", "trace_state", "causation_id"):
        text = getattr(about, name)
        if text == "":
            continue
        if not isinstance(text, str) or len(_encoded(text)) > MAX_TEXT_BYTES:
            raise InvalidRequest(f"{name} is a text of {MAX_TEXT_BYTES} bytes at most")
    told = about.trace_parent
    if not isinstance(told, str) or (told and not _TRACE_PARENT.fullmatch(told)):
        raise InvalidRequest(f"{shown(told)} is no W3C traceparent")
    check_method(about.method)
    if about.event_time_us is not None:
        check_whole(about.event_time_us, "event_time_us", -(1 << 63), (1 << 63) - 1)
