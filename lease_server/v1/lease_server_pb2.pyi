from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Heartbeat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEARTBEAT_UNSPECIFIED: _ClassVar[Heartbeat]
    HEARTBEAT_UNARY: _ClassVar[Heartbeat]
    HEARTBEAT_STREAM: _ClassVar[Heartbeat]
HEARTBEAT_UNSPECIFIED: Heartbeat
HEARTBEAT_UNARY: Heartbeat
HEARTBEAT_STREAM: Heartbeat

class GrantRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GrantReply(_message.Message):
    __slots__ = ("client_id", "token", "term_ms", "heartbeat", "deduplicated", "not_deduplicated", "window", "path", "store")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TERM_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    NOT_DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    token: bytes
    term_ms: int
    heartbeat: Heartbeat
    deduplicated: _containers.RepeatedScalarFieldContainer[str]
    not_deduplicated: _containers.RepeatedScalarFieldContainer[str]
    window: int
    path: str
    store: int
    def __init__(self, client_id: _Optional[int] = ..., token: _Optional[bytes] = ..., term_ms: _Optional[int] = ..., heartbeat: _Optional[_Union[Heartbeat, str]] = ..., deduplicated: _Optional[_Iterable[str]] = ..., not_deduplicated: _Optional[_Iterable[str]] = ..., window: _Optional[int] = ..., path: _Optional[str] = ..., store: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("client_id", "token", "store", "also", "first_incomplete", "completed")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    FIRST_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    token: bytes
    store: int
    also: _containers.RepeatedCompositeFieldContainer[RenewRequest]
    first_incomplete: int
    completed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_id: _Optional[int] = ..., token: _Optional[bytes] = ..., store: _Optional[int] = ..., also: _Optional[_Iterable[_Union[RenewRequest, _Mapping]]] = ..., first_incomplete: _Optional[int] = ..., completed: _Optional[_Iterable[int]] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("client_id", "term_ms", "token", "refused", "also")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    term_ms: int
    token: bytes
    refused: str
    also: _containers.RepeatedCompositeFieldContainer[RenewReply]
    def __init__(self, client_id: _Optional[int] = ..., term_ms: _Optional[int] = ..., token: _Optional[bytes] = ..., refused: _Optional[str] = ..., also: _Optional[_Iterable[_Union[RenewReply, _Mapping]]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("client_id", "token")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    token: bytes
    def __init__(self, client_id: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("name", "retention_ms", "secret", "older_secrets", "writer", "follows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    OLDER_SECRETS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    retention_ms: int
    secret: bytes
    older_secrets: _containers.RepeatedScalarFieldContainer[bytes]
    writer: bytes
    follows: bytes
    def __init__(self, name: _Optional[str] = ..., retention_ms: _Optional[int] = ..., secret: _Optional[bytes] = ..., older_secrets: _Optional[_Iterable[bytes]] = ..., writer: _Optional[bytes] = ..., follows: _Optional[bytes] = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("client_id", "token", "retention_ms", "created", "heartbeat", "deduplicated", "not_deduplicated", "window", "path", "store", "term_ms", "writer")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    NOT_DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    TERM_MS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    token: bytes
    retention_ms: int
    created: bool
    heartbeat: Heartbeat
    deduplicated: _containers.RepeatedScalarFieldContainer[str]
    not_deduplicated: _containers.RepeatedScalarFieldContainer[str]
    window: int
    path: str
    store: int
    term_ms: int
    writer: bytes
    def __init__(self, client_id: _Optional[int] = ..., token: _Optional[bytes] = ..., retention_ms: _Optional[int] = ..., created: bool = ..., heartbeat: _Optional[_Union[Heartbeat, str]] = ..., deduplicated: _Optional[_Iterable[str]] = ..., not_deduplicated: _Optional[_Iterable[str]] = ..., window: _Optional[int] = ..., path: _Optional[str] = ..., store: _Optional[int] = ..., term_ms: _Optional[int] = ..., writer: _Optional[bytes] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("name", "secret", "older_secrets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    OLDER_SECRETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    secret: bytes
    older_secrets: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., secret: _Optional[bytes] = ..., older_secrets: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CloseSessionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
