from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStep(_message.Message):
    __slots__ = ("incarnation", "player", "keys")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    player: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, incarnation: _Optional[str] = ..., player: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ScanStep(_message.Message):
    __slots__ = ("incarnation", "player", "prefix")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    player: str
    prefix: str
    def __init__(self, incarnation: _Optional[str] = ..., player: _Optional[str] = ..., prefix: _Optional[str] = ...) -> None: ...

class StepValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class StepValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[StepValue]
    def __init__(self, values: _Optional[_Iterable[_Union[StepValue, _Mapping]]] = ...) -> None: ...

class ReadStep(_message.Message):
    __slots__ = ("incarnation", "player", "after", "limit", "tag")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    player: str
    after: int
    limit: int
    tag: str
    def __init__(self, incarnation: _Optional[str] = ..., player: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("lsn", "body", "tags", "at_us")
    LSN_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    body: bytes
    tags: _containers.RepeatedScalarFieldContainer[str]
    at_us: int
    def __init__(self, lsn: _Optional[int] = ..., body: _Optional[bytes] = ..., tags: _Optional[_Iterable[str]] = ..., at_us: _Optional[int] = ...) -> None: ...

class StepRows(_message.Message):
    __slots__ = ("rows", "through")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[StepRow]
    through: int
    def __init__(self, rows: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ..., through: _Optional[int] = ...) -> None: ...

class EndsStep(_message.Message):
    __slots__ = ("incarnation", "player")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    player: str
    def __init__(self, incarnation: _Optional[str] = ..., player: _Optional[str] = ...) -> None: ...

class WaitStep(_message.Message):
    __slots__ = ("incarnation", "player", "after", "timeout_ms")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    player: str
    after: int
    timeout_ms: int
    def __init__(self, incarnation: _Optional[str] = ..., player: _Optional[str] = ..., after: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class StepLsns(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class StepPut(_message.Message):
    __slots__ = ("key", "value", "stamp")
    class Stamp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[StepPut.Stamp]
        LAST: _ClassVar[StepPut.Stamp]
    NONE: StepPut.Stamp
    LAST: StepPut.Stamp
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    stamp: StepPut.Stamp
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., stamp: _Optional[_Union[StepPut.Stamp, str]] = ...) -> None: ...

class StepEntry(_message.Message):
    __slots__ = ("body", "tags")
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, body: _Optional[bytes] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitStep(_message.Message):
    __slots__ = ("incarnation", "player", "conditions", "puts", "entries")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    PUTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    player: str
    conditions: _containers.RepeatedCompositeFieldContainer[StepValue]
    puts: _containers.RepeatedCompositeFieldContainer[StepPut]
    entries: _containers.RepeatedCompositeFieldContainer[StepEntry]
    def __init__(self, incarnation: _Optional[str] = ..., player: _Optional[str] = ..., conditions: _Optional[_Iterable[_Union[StepValue, _Mapping]]] = ..., puts: _Optional[_Iterable[_Union[StepPut, _Mapping]]] = ..., entries: _Optional[_Iterable[_Union[StepEntry, _Mapping]]] = ...) -> None: ...

class CommitStepReply(_message.Message):
    __slots__ = ("refused", "found", "lsns")
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    LSNS_FIELD_NUMBER: _ClassVar[int]
    refused: bool
    found: _containers.RepeatedCompositeFieldContainer[StepValue]
    lsns: StepLsns
    def __init__(self, refused: bool = ..., found: _Optional[_Iterable[_Union[StepValue, _Mapping]]] = ..., lsns: _Optional[_Union[StepLsns, _Mapping]] = ...) -> None: ...
