from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_EXECUTED: _ClassVar[Outcome]
    OUTCOME_REPLAYED: _ClassVar[Outcome]
    OUTCOME_NOT_EXECUTED: _ClassVar[Outcome]
    OUTCOME_UNKNOWN: _ClassVar[Outcome]
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_EXECUTED: Outcome
OUTCOME_REPLAYED: Outcome
OUTCOME_NOT_EXECUTED: Outcome
OUTCOME_UNKNOWN: Outcome

class CallHeader(_message.Message):
    __slots__ = ("client_id", "token", "seq", "key", "first_incomplete", "completed", "attempt", "time_us", "seed", "configuration", "content_hash", "max_response_bytes", "received", "conflict_keys", "store", "try_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_KEYS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    TRY_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    token: bytes
    seq: int
    key: bytes
    first_incomplete: int
    completed: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    time_us: int
    seed: int
    configuration: int
    content_hash: bytes
    max_response_bytes: int
    received: int
    conflict_keys: _containers.RepeatedScalarFieldContainer[int]
    store: int
    try_ms: int
    def __init__(self, client_id: _Optional[int] = ..., token: _Optional[bytes] = ..., seq: _Optional[int] = ..., key: _Optional[bytes] = ..., first_incomplete: _Optional[int] = ..., completed: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., time_us: _Optional[int] = ..., seed: _Optional[int] = ..., configuration: _Optional[int] = ..., content_hash: _Optional[bytes] = ..., max_response_bytes: _Optional[int] = ..., received: _Optional[int] = ..., conflict_keys: _Optional[_Iterable[int]] = ..., store: _Optional[int] = ..., try_ms: _Optional[int] = ...) -> None: ...

class MetadataEntry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class CompletionRecord(_message.Message):
    __slots__ = ("code", "details", "response", "initial_metadata", "trailing_metadata", "outcome", "reason", "has_response", "messages", "seed")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    INITIAL_METADATA_FIELD_NUMBER: _ClassVar[int]
    TRAILING_METADATA_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HAS_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: str
    response: bytes
    initial_metadata: _containers.RepeatedCompositeFieldContainer[MetadataEntry]
    trailing_metadata: _containers.RepeatedCompositeFieldContainer[MetadataEntry]
    outcome: Outcome
    reason: str
    has_response: bool
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    seed: int
    def __init__(self, code: _Optional[int] = ..., details: _Optional[str] = ..., response: _Optional[bytes] = ..., initial_metadata: _Optional[_Iterable[_Union[MetadataEntry, _Mapping]]] = ..., trailing_metadata: _Optional[_Iterable[_Union[MetadataEntry, _Mapping]]] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., has_response: bool = ..., messages: _Optional[_Iterable[bytes]] = ..., seed: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("requests", "keys", "seqs")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SEQS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedScalarFieldContainer[bytes]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, requests: _Optional[_Iterable[bytes]] = ..., keys: _Optional[_Iterable[bytes]] = ..., seqs: _Optional[_Iterable[int]] = ...) -> None: ...

class BatchReply(_message.Message):
    __slots__ = ("responses", "outcomes", "statuses")
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    responses: _containers.RepeatedScalarFieldContainer[bytes]
    outcomes: _containers.RepeatedScalarFieldContainer[Outcome]
    statuses: _containers.RepeatedCompositeFieldContainer[BatchStatus]
    def __init__(self, responses: _Optional[_Iterable[bytes]] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, str]]] = ..., statuses: _Optional[_Iterable[_Union[BatchStatus, _Mapping]]] = ...) -> None: ...

class BatchStatus(_message.Message):
    __slots__ = ("item", "record", "retry_after_ms", "info")
    class InfoEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ITEM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    item: int
    record: CompletionRecord
    retry_after_ms: int
    info: _containers.ScalarMap[str, str]
    def __init__(self, item: _Optional[int] = ..., record: _Optional[_Union[CompletionRecord, _Mapping]] = ..., retry_after_ms: _Optional[int] = ..., info: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ResolveRequest(_message.Message):
    __slots__ = ("client_id", "token", "seq", "key", "store", "seed", "method")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    token: bytes
    seq: int
    key: bytes
    store: int
    seed: int
    method: str
    def __init__(self, client_id: _Optional[int] = ..., token: _Optional[bytes] = ..., seq: _Optional[int] = ..., key: _Optional[bytes] = ..., store: _Optional[int] = ..., seed: _Optional[int] = ..., method: _Optional[str] = ...) -> None: ...

class ResolveReply(_message.Message):
    __slots__ = ("outcome", "record")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    record: CompletionRecord
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., record: _Optional[_Union[CompletionRecord, _Mapping]] = ...) -> None: ...
