import datetime

from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
EXACTLY_ONCE_FIELD_NUMBER: _ClassVar[int]
exactly_once: _descriptor.FieldDescriptor

class ExactlyOnce(_message.Message):
    __slots__ = ("kind", "required", "retention", "unrecorded", "max_response_bytes", "key_field", "buffer_bytes", "claim")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ExactlyOnce.Kind]
        PLAIN: _ClassVar[ExactlyOnce.Kind]
        IDEMPOTENT: _ClassVar[ExactlyOnce.Kind]
        ATOMIC: _ClassVar[ExactlyOnce.Kind]
        NEVER: _ClassVar[ExactlyOnce.Kind]
    KIND_UNSPECIFIED: ExactlyOnce.Kind
    PLAIN: ExactlyOnce.Kind
    IDEMPOTENT: ExactlyOnce.Kind
    ATOMIC: ExactlyOnce.Kind
    NEVER: ExactlyOnce.Kind
    class Claim(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CLAIM_UNSPECIFIED: _ClassVar[ExactlyOnce.Claim]
        CLAIM_ALWAYS: _ClassVar[ExactlyOnce.Claim]
        CLAIM_NEVER: _ClassVar[ExactlyOnce.Claim]
    CLAIM_UNSPECIFIED: ExactlyOnce.Claim
    CLAIM_ALWAYS: ExactlyOnce.Claim
    CLAIM_NEVER: ExactlyOnce.Claim
    KIND_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    UNRECORDED_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    kind: ExactlyOnce.Kind
    required: bool
    retention: _duration_pb2.Duration
    unrecorded: _containers.RepeatedScalarFieldContainer[str]
    max_response_bytes: int
    key_field: str
    buffer_bytes: int
    claim: ExactlyOnce.Claim
    def __init__(self, kind: _Optional[_Union[ExactlyOnce.Kind, str]] = ..., required: bool = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., unrecorded: _Optional[_Iterable[str]] = ..., max_response_bytes: _Optional[int] = ..., key_field: _Optional[str] = ..., buffer_bytes: _Optional[int] = ..., claim: _Optional[_Union[ExactlyOnce.Claim, str]] = ...) -> None: ...
