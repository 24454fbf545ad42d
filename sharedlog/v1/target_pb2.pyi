from sharedlog.v1 import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Feed(_message.Message):
    __slots__ = ("log", "number")
    LOG_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    log: str
    number: int
    def __init__(self, log: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("feed", "incarnation", "tags", "player", "processes", "passed_over")
    FEED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    feed: Feed
    incarnation: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    player: str
    processes: _containers.RepeatedScalarFieldContainer[str]
    passed_over: _containers.RepeatedCompositeFieldContainer[PassedOver]
    def __init__(self, feed: _Optional[_Union[Feed, _Mapping]] = ..., incarnation: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., player: _Optional[str] = ..., processes: _Optional[_Iterable[str]] = ..., passed_over: _Optional[_Iterable[_Union[PassedOver, _Mapping]]] = ...) -> None: ...

class PassedOver(_message.Message):
    __slots__ = ("tag", "place")
    TAG_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    place: _log_pb2.Place
    def __init__(self, tag: _Optional[str] = ..., place: _Optional[_Union[_log_pb2.Place, _Mapping]] = ...) -> None: ...

class ConnectReply(_message.Message):
    __slots__ = ("store", "indexes", "streams", "most_bytes", "process", "beats")
    STORE_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    MOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    BEATS_FIELD_NUMBER: _ClassVar[int]
    store: str
    indexes: _containers.RepeatedCompositeFieldContainer[Index]
    streams: bool
    most_bytes: int
    process: str
    beats: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, store: _Optional[str] = ..., indexes: _Optional[_Iterable[_Union[Index, _Mapping]]] = ..., streams: bool = ..., most_bytes: _Optional[int] = ..., process: _Optional[str] = ..., beats: _Optional[_Iterable[int]] = ...) -> None: ...

class Index(_message.Message):
    __slots__ = ("tag", "at", "incarnation", "taken", "begun", "skipped", "running", "waits")
    TAG_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    tag: str
    at: _log_pb2.Place
    incarnation: str
    taken: int
    begun: _log_pb2.Place
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    running: _log_pb2.Place
    waits: bool
    def __init__(self, tag: _Optional[str] = ..., at: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., incarnation: _Optional[str] = ..., taken: _Optional[int] = ..., begun: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ..., running: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., waits: bool = ...) -> None: ...

class Skipped(_message.Message):
    __slots__ = ("place", "number", "reason", "by", "at_us")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    place: _log_pb2.Place
    number: int
    reason: str
    by: str
    at_us: int
    def __init__(self, place: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., number: _Optional[int] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ..., at_us: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("kind", "tag", "place", "follows", "envelope", "append_time_us", "more", "skip", "again", "trace_parent", "trace_state")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MESSAGE: _ClassVar[Delivery.Kind]
        EMPTY: _ClassVar[Delivery.Kind]
        SKIP: _ClassVar[Delivery.Kind]
    MESSAGE: Delivery.Kind
    EMPTY: Delivery.Kind
    SKIP: Delivery.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    TRACE_STATE_FIELD_NUMBER: _ClassVar[int]
    kind: Delivery.Kind
    tag: str
    place: _log_pb2.Place
    follows: _log_pb2.Place
    envelope: bytes
    append_time_us: int
    more: bool
    skip: Skipped
    again: bool
    trace_parent: str
    trace_state: str
    def __init__(self, kind: _Optional[_Union[Delivery.Kind, str]] = ..., tag: _Optional[str] = ..., place: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., follows: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., envelope: _Optional[bytes] = ..., append_time_us: _Optional[int] = ..., more: bool = ..., skip: _Optional[_Union[Skipped, _Mapping]] = ..., again: bool = ..., trace_parent: _Optional[str] = ..., trace_state: _Optional[str] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("feed", "incarnation", "term", "deliveries", "confirmed", "store")
    FEED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    feed: Feed
    incarnation: str
    term: int
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    confirmed: _containers.RepeatedCompositeFieldContainer[Confirmed]
    store: str
    def __init__(self, feed: _Optional[_Union[Feed, _Mapping]] = ..., incarnation: _Optional[str] = ..., term: _Optional[int] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., confirmed: _Optional[_Iterable[_Union[Confirmed, _Mapping]]] = ..., store: _Optional[str] = ...) -> None: ...

class Confirmed(_message.Message):
    __slots__ = ("tag", "number")
    TAG_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    tag: str
    number: int
    def __init__(self, tag: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class DeliveryAnswers(_message.Message):
    __slots__ = ("term", "answers")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    term: int
    answers: _containers.RepeatedCompositeFieldContainer[DeliveryAnswer]
    def __init__(self, term: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[DeliveryAnswer, _Mapping]]] = ...) -> None: ...

class DeliveryAnswer(_message.Message):
    __slots__ = ("kind", "tag", "place", "code", "details", "index")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[DeliveryAnswer.Kind]
        DONE: _ClassVar[DeliveryAnswer.Kind]
        GAP: _ClassVar[DeliveryAnswer.Kind]
        FAILED: _ClassVar[DeliveryAnswer.Kind]
        REFUSED: _ClassVar[DeliveryAnswer.Kind]
        UNKNOWN: _ClassVar[DeliveryAnswer.Kind]
        FORKED: _ClassVar[DeliveryAnswer.Kind]
        UNAVAILABLE: _ClassVar[DeliveryAnswer.Kind]
    KIND_UNSPECIFIED: DeliveryAnswer.Kind
    DONE: DeliveryAnswer.Kind
    GAP: DeliveryAnswer.Kind
    FAILED: DeliveryAnswer.Kind
    REFUSED: DeliveryAnswer.Kind
    UNKNOWN: DeliveryAnswer.Kind
    FORKED: DeliveryAnswer.Kind
    UNAVAILABLE: DeliveryAnswer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    kind: DeliveryAnswer.Kind
    tag: str
    place: _log_pb2.Place
    code: int
    details: str
    index: Index
    def __init__(self, kind: _Optional[_Union[DeliveryAnswer.Kind, str]] = ..., tag: _Optional[str] = ..., place: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., code: _Optional[int] = ..., details: _Optional[str] = ..., index: _Optional[_Union[Index, _Mapping]] = ...) -> None: ...

class KeptIndex(_message.Message):
    __slots__ = ("version", "incarnation", "at", "taken", "begun", "skips", "skipped")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    version: int
    incarnation: str
    at: _log_pb2.Place
    taken: int
    begun: _log_pb2.Place
    skips: int
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    def __init__(self, version: _Optional[int] = ..., incarnation: _Optional[str] = ..., at: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., taken: _Optional[int] = ..., begun: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., skips: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ...) -> None: ...

class KeptConnects(_message.Message):
    __slots__ = ("version", "incarnation", "at", "count")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    version: int
    incarnation: str
    at: _log_pb2.Place
    count: int
    def __init__(self, version: _Optional[int] = ..., incarnation: _Optional[str] = ..., at: _Optional[_Union[_log_pb2.Place, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...
