from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    COMMITTED: _ClassVar[Kind]
    PENDING: _ClassVar[Kind]
    MARKER: _ClassVar[Kind]
    ROLLBACK: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
COMMITTED: Kind
PENDING: Kind
MARKER: Kind
ROLLBACK: Kind

class Entry(_message.Message):
    __slots__ = ("version", "kind", "index", "count", "producer", "seq", "message", "decisions", "name", "last_checksum")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    kind: Kind
    index: int
    count: int
    producer: int
    seq: int
    message: bytes
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    name: str
    last_checksum: int
    def __init__(self, version: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., index: _Optional[int] = ..., count: _Optional[int] = ..., producer: _Optional[int] = ..., seq: _Optional[int] = ..., message: _Optional[bytes] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., name: _Optional[str] = ..., last_checksum: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("producer", "through", "spans")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    producer: int
    through: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, producer: _Optional[int] = ..., through: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("tag", "begin")
    TAG_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    tag: str
    begin: int
    def __init__(self, tag: _Optional[str] = ..., begin: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("version", "content_type", "schema_name", "key", "headers", "trace_parent", "trace_state", "causation_id", "event_time_us", "body", "sealed", "method")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    TRACE_STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSATION_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    version: int
    content_type: str
    schema_name: str
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    trace_parent: str
    trace_state: str
    causation_id: str
    event_time_us: int
    body: bytes
    sealed: bytes
    method: str
    def __init__(self, version: _Optional[int] = ..., content_type: _Optional[str] = ..., schema_name: _Optional[str] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., trace_parent: _Optional[str] = ..., trace_state: _Optional[str] = ..., causation_id: _Optional[str] = ..., event_time_us: _Optional[int] = ..., body: _Optional[bytes] = ..., sealed: _Optional[bytes] = ..., method: _Optional[str] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("version", "substreams", "retention_us")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAMS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    version: int
    substreams: int
    retention_us: int
    def __init__(self, version: _Optional[int] = ..., substreams: _Optional[int] = ..., retention_us: _Optional[int] = ...) -> None: ...
