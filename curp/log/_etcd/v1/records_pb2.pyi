from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendRecord(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EntryRecord]
    def __init__(self, entries: _Optional[_Iterable[_Union[EntryRecord, _Mapping]]] = ...) -> None: ...

class EntryRecord(_message.Message):
    __slots__ = ("body", "tags", "checksum")
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    tags: _containers.RepeatedScalarFieldContainer[str]
    checksum: int
    def __init__(self, body: _Optional[bytes] = ..., tags: _Optional[_Iterable[str]] = ..., checksum: _Optional[int] = ...) -> None: ...

class SnapshotPiece(_message.Message):
    __slots__ = ("checksum", "data", "last")
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    checksum: int
    data: bytes
    last: bool
    def __init__(self, checksum: _Optional[int] = ..., data: _Optional[bytes] = ..., last: bool = ...) -> None: ...
