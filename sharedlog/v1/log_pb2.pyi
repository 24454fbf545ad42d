from sharedlog.v1 import sharedlog_pb2 as _sharedlog_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_COMMITTED: _ClassVar[State]
    STATE_PENDING: _ClassVar[State]
    STATE_ROLLED_BACK: _ClassVar[State]
STATE_COMMITTED: State
STATE_PENDING: State
STATE_ROLLED_BACK: State

class DescribeRequest(_message.Message):
    __slots__ = ("look",)
    LOOK_FIELD_NUMBER: _ClassVar[int]
    look: str
    def __init__(self, look: _Optional[str] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("incarnation", "durability", "append_entries", "append_bytes", "append_tags", "tail", "whole")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    APPEND_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    APPEND_BYTES_FIELD_NUMBER: _ClassVar[int]
    APPEND_TAGS_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    durability: str
    append_entries: int
    append_bytes: int
    append_tags: int
    tail: int
    whole: int
    def __init__(self, incarnation: _Optional[str] = ..., durability: _Optional[str] = ..., append_entries: _Optional[int] = ..., append_bytes: _Optional[int] = ..., append_tags: _Optional[int] = ..., tail: _Optional[int] = ..., whole: _Optional[int] = ...) -> None: ...

class MakeStreamRequest(_message.Message):
    __slots__ = ("incarnation", "name", "substreams", "retention_us", "find")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAMS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    FIND_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    name: str
    substreams: int
    retention_us: int
    find: bool
    def __init__(self, incarnation: _Optional[str] = ..., name: _Optional[str] = ..., substreams: _Optional[int] = ..., retention_us: _Optional[int] = ..., find: bool = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("name", "substreams", "retention_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAMS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    substreams: int
    retention_us: int
    def __init__(self, name: _Optional[str] = ..., substreams: _Optional[int] = ..., retention_us: _Optional[int] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    def __init__(self, incarnation: _Optional[str] = ...) -> None: ...

class ListStreamsReply(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ...) -> None: ...

class GrantRequest(_message.Message):
    __slots__ = ("incarnation", "token", "window")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    token: bytes
    window: int
    def __init__(self, incarnation: _Optional[str] = ..., token: _Optional[bytes] = ..., window: _Optional[int] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("id", "token", "window")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    id: int
    token: bytes
    window: int
    def __init__(self, id: _Optional[int] = ..., token: _Optional[bytes] = ..., window: _Optional[int] = ...) -> None: ...

class GetProducerRequest(_message.Message):
    __slots__ = ("incarnation", "producer")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    producer: Producer
    def __init__(self, incarnation: _Optional[str] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("producer", "highest_seq", "retired", "spans")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    producer: Producer
    highest_seq: int
    retired: bool
    spans: _containers.RepeatedCompositeFieldContainer[_sharedlog_pb2.Span]
    def __init__(self, producer: _Optional[_Union[Producer, _Mapping]] = ..., highest_seq: _Optional[int] = ..., retired: bool = ..., spans: _Optional[_Iterable[_Union[_sharedlog_pb2.Span, _Mapping]]] = ...) -> None: ...

class ListProducersRequest(_message.Message):
    __slots__ = ("incarnation", "named")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    named: bool
    def __init__(self, incarnation: _Optional[str] = ..., named: bool = ...) -> None: ...

class ListProducersReply(_message.Message):
    __slots__ = ("producers", "named")
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    named: _containers.RepeatedCompositeFieldContainer[NamedProducer]
    def __init__(self, producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., named: _Optional[_Iterable[_Union[NamedProducer, _Mapping]]] = ...) -> None: ...

class NamedProducer(_message.Message):
    __slots__ = ("name", "highest_seq")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    name: str
    highest_seq: int
    def __init__(self, name: _Optional[str] = ..., highest_seq: _Optional[int] = ...) -> None: ...

class RetireRequest(_message.Message):
    __slots__ = ("incarnation", "producer")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    producer: Producer
    def __init__(self, incarnation: _Optional[str] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ...) -> None: ...

class RetireReply(_message.Message):
    __slots__ = ("highest_seq",)
    HIGHEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    highest_seq: int
    def __init__(self, highest_seq: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("incarnation", "producer", "seq", "named", "fence", "messages", "pending", "marker")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    producer: Producer
    seq: int
    named: Named
    fence: Fence
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    pending: Pending
    marker: Marker
    def __init__(self, incarnation: _Optional[str] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ..., seq: _Optional[int] = ..., named: _Optional[_Union[Named, _Mapping]] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., pending: _Optional[_Union[Pending, _Mapping]] = ..., marker: _Optional[_Union[Marker, _Mapping]] = ...) -> None: ...

class Named(_message.Message):
    __slots__ = ("name", "seq", "follows", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    seq: int
    follows: int
    content: bytes
    def __init__(self, name: _Optional[str] = ..., seq: _Optional[int] = ..., follows: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class NewMessage(_message.Message):
    __slots__ = ("tag", "envelope")
    TAG_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    envelope: bytes
    def __init__(self, tag: _Optional[str] = ..., envelope: _Optional[bytes] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("opened",)
    OPENED_FIELD_NUMBER: _ClassVar[int]
    opened: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, opened: _Optional[_Iterable[str]] = ...) -> None: ...

class Marker(_message.Message):
    __slots__ = ("commits", "decided")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    commits: bool
    decided: _containers.RepeatedCompositeFieldContainer[Decided]
    def __init__(self, commits: bool = ..., decided: _Optional[_Iterable[_Union[Decided, _Mapping]]] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("producer", "through", "spans")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    producer: Producer
    through: int
    spans: _containers.RepeatedCompositeFieldContainer[_sharedlog_pb2.Span]
    def __init__(self, producer: _Optional[_Union[Producer, _Mapping]] = ..., through: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[_sharedlog_pb2.Span, _Mapping]]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("lsn", "first", "checksum", "begins")
    LSN_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    first: int
    checksum: int
    begins: _containers.RepeatedCompositeFieldContainer[_sharedlog_pb2.Span]
    def __init__(self, lsn: _Optional[int] = ..., first: _Optional[int] = ..., checksum: _Optional[int] = ..., begins: _Optional[_Iterable[_Union[_sharedlog_pb2.Span, _Mapping]]] = ...) -> None: ...

class GetNamedRequest(_message.Message):
    __slots__ = ("incarnation", "name", "seq", "lsn")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    name: str
    seq: int
    lsn: int
    def __init__(self, incarnation: _Optional[str] = ..., name: _Optional[str] = ..., seq: _Optional[int] = ..., lsn: _Optional[int] = ...) -> None: ...

class NamedState(_message.Message):
    __slots__ = ("highest_seq", "tags", "checksum")
    HIGHEST_SEQ_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    highest_seq: int
    tags: _containers.RepeatedScalarFieldContainer[str]
    checksum: int
    def __init__(self, highest_seq: _Optional[int] = ..., tags: _Optional[_Iterable[str]] = ..., checksum: _Optional[int] = ...) -> None: ...

class ForgetNamedRequest(_message.Message):
    __slots__ = ("incarnation", "name")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    name: str
    def __init__(self, incarnation: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("name", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class RaiseFenceRequest(_message.Message):
    __slots__ = ("incarnation", "name", "at_least")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    name: str
    at_least: int
    def __init__(self, incarnation: _Optional[str] = ..., name: _Optional[str] = ..., at_least: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("lsn", "ordinal", "checksum", "substream")
    LSN_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAM_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    ordinal: int
    checksum: int
    substream: int
    def __init__(self, lsn: _Optional[int] = ..., ordinal: _Optional[int] = ..., checksum: _Optional[int] = ..., substream: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("after", "lsn", "time_us", "end")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    after: Place
    lsn: int
    time_us: int
    end: bool
    def __init__(self, after: _Optional[_Union[Place, _Mapping]] = ..., lsn: _Optional[int] = ..., time_us: _Optional[int] = ..., end: bool = ...) -> None: ...

class SubstreamStart(_message.Message):
    __slots__ = ("substream", "start")
    SUBSTREAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    substream: int
    start: Start
    def __init__(self, substream: _Optional[int] = ..., start: _Optional[_Union[Start, _Mapping]] = ...) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("place", "envelope", "append_time_us", "state")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    place: Place
    envelope: bytes
    append_time_us: int
    state: State
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ..., envelope: _Optional[bytes] = ..., append_time_us: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("incarnation", "stream", "substream", "start", "limit")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    stream: str
    substream: int
    start: Start
    limit: int
    def __init__(self, incarnation: _Optional[str] = ..., stream: _Optional[str] = ..., substream: _Optional[int] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., limit: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Delivered]
    def __init__(self, messages: _Optional[_Iterable[_Union[Delivered, _Mapping]]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("incarnation", "stream", "substreams", "start", "starts", "through", "uncommitted", "name", "held")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SUBSTREAMS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    stream: str
    substreams: _containers.RepeatedScalarFieldContainer[int]
    start: Start
    starts: _containers.RepeatedCompositeFieldContainer[SubstreamStart]
    through: int
    uncommitted: bool
    name: str
    held: bool
    def __init__(self, incarnation: _Optional[str] = ..., stream: _Optional[str] = ..., substreams: _Optional[_Iterable[int]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., starts: _Optional[_Iterable[_Union[SubstreamStart, _Mapping]]] = ..., through: _Optional[int] = ..., uncommitted: bool = ..., name: _Optional[str] = ..., held: bool = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("begun", "messages", "through")
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    begun: Begun
    messages: _containers.RepeatedCompositeFieldContainer[Delivered]
    through: int
    def __init__(self, begun: _Optional[_Union[Begun, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[Delivered, _Mapping]]] = ..., through: _Optional[int] = ...) -> None: ...

class Begun(_message.Message):
    __slots__ = ("starts", "holds")
    STARTS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[SubstreamStart]
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    def __init__(self, starts: _Optional[_Iterable[_Union[SubstreamStart, _Mapping]]] = ..., holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("name", "tag", "lsn", "done", "renewed_us", "retention_us", "dropped", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RENEWED_US_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    tag: str
    lsn: int
    done: Place
    renewed_us: int
    retention_us: int
    dropped: bool
    incarnation: str
    def __init__(self, name: _Optional[str] = ..., tag: _Optional[str] = ..., lsn: _Optional[int] = ..., done: _Optional[_Union[Place, _Mapping]] = ..., renewed_us: _Optional[int] = ..., retention_us: _Optional[int] = ..., dropped: bool = ..., incarnation: _Optional[str] = ...) -> None: ...

class MoveHoldRequest(_message.Message):
    __slots__ = ("incarnation", "stream", "name", "done")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    stream: str
    name: str
    done: _containers.RepeatedCompositeFieldContainer[Done]
    def __init__(self, incarnation: _Optional[str] = ..., stream: _Optional[str] = ..., name: _Optional[str] = ..., done: _Optional[_Iterable[_Union[Done, _Mapping]]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("substream", "through", "idle_through")
    SUBSTREAM_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    IDLE_THROUGH_FIELD_NUMBER: _ClassVar[int]
    substream: int
    through: Place
    idle_through: int
    def __init__(self, substream: _Optional[int] = ..., through: _Optional[_Union[Place, _Mapping]] = ..., idle_through: _Optional[int] = ...) -> None: ...

class ListHoldsRequest(_message.Message):
    __slots__ = ("incarnation", "name")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    name: str
    def __init__(self, incarnation: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class EndHoldsRequest(_message.Message):
    __slots__ = ("incarnation", "name", "forget")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    name: str
    forget: bool
    def __init__(self, incarnation: _Optional[str] = ..., name: _Optional[str] = ..., forget: bool = ...) -> None: ...

class Holds(_message.Message):
    __slots__ = ("holds",)
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    def __init__(self, holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ...) -> None: ...

class TrimRequest(_message.Message):
    __slots__ = ("incarnation", "retention_us")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_US_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    retention_us: int
    def __init__(self, incarnation: _Optional[str] = ..., retention_us: _Optional[int] = ...) -> None: ...

class TrimReply(_message.Message):
    __slots__ = ("whole", "removed", "at_us", "rows", "kept_by", "overdue", "remaining")
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BY_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    whole: int
    removed: int
    at_us: int
    rows: int
    kept_by: str
    overdue: _containers.RepeatedCompositeFieldContainer[Hold]
    remaining: int
    def __init__(self, whole: _Optional[int] = ..., removed: _Optional[int] = ..., at_us: _Optional[int] = ..., rows: _Optional[int] = ..., kept_by: _Optional[str] = ..., overdue: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ..., remaining: _Optional[int] = ...) -> None: ...
