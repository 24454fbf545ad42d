from rifl.v1 import rifl_pb2 as _rifl_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogEntry(_message.Message):
    __slots__ = ("version", "operation", "client_registered", "client_removed", "session_put", "session_forgotten", "ids_reserved", "secrets_put", "leader_started", "application_version", "sessions_rekeyed", "calls_acknowledged")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    CLIENT_REMOVED_FIELD_NUMBER: _ClassVar[int]
    SESSION_PUT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    IDS_RESERVED_FIELD_NUMBER: _ClassVar[int]
    SECRETS_PUT_FIELD_NUMBER: _ClassVar[int]
    LEADER_STARTED_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_REKEYED_FIELD_NUMBER: _ClassVar[int]
    CALLS_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    version: int
    operation: Operation
    client_registered: ClientRegistered
    client_removed: ClientRemoved
    session_put: SessionPut
    session_forgotten: SessionForgotten
    ids_reserved: IdsReserved
    secrets_put: SecretsPut
    leader_started: LeaderStarted
    application_version: ApplicationVersion
    sessions_rekeyed: SessionsRekeyed
    calls_acknowledged: CallsAcknowledged
    def __init__(self, version: _Optional[int] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ..., client_registered: _Optional[_Union[ClientRegistered, _Mapping]] = ..., client_removed: _Optional[_Union[ClientRemoved, _Mapping]] = ..., session_put: _Optional[_Union[SessionPut, _Mapping]] = ..., session_forgotten: _Optional[_Union[SessionForgotten, _Mapping]] = ..., ids_reserved: _Optional[_Union[IdsReserved, _Mapping]] = ..., secrets_put: _Optional[_Union[SecretsPut, _Mapping]] = ..., leader_started: _Optional[_Union[LeaderStarted, _Mapping]] = ..., application_version: _Optional[_Union[ApplicationVersion, _Mapping]] = ..., sessions_rekeyed: _Optional[_Union[SessionsRekeyed, _Mapping]] = ..., calls_acknowledged: _Optional[_Union[CallsAcknowledged, _Mapping]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("client_id", "seq", "key", "first_incomplete", "completed", "time_us", "seed", "method", "request", "answer", "conflict_keys", "fingerprint", "peer", "refusal", "application_version", "set_aside")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_KEYS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    seq: int
    key: bytes
    first_incomplete: int
    completed: _containers.RepeatedScalarFieldContainer[int]
    time_us: int
    seed: int
    method: str
    request: bytes
    answer: _rifl_pb2.CompletionRecord
    conflict_keys: _containers.RepeatedScalarFieldContainer[int]
    fingerprint: bytes
    peer: bytes
    refusal: bool
    application_version: int
    set_aside: SetAside
    def __init__(self, client_id: _Optional[int] = ..., seq: _Optional[int] = ..., key: _Optional[bytes] = ..., first_incomplete: _Optional[int] = ..., completed: _Optional[_Iterable[int]] = ..., time_us: _Optional[int] = ..., seed: _Optional[int] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., answer: _Optional[_Union[_rifl_pb2.CompletionRecord, _Mapping]] = ..., conflict_keys: _Optional[_Iterable[int]] = ..., fingerprint: _Optional[bytes] = ..., peer: _Optional[bytes] = ..., refusal: bool = ..., application_version: _Optional[int] = ..., set_aside: _Optional[_Union[SetAside, _Mapping]] = ...) -> None: ...

class SetAside(_message.Message):
    __slots__ = ("deaths", "who", "why", "lsn")
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    deaths: int
    who: str
    why: str
    lsn: int
    def __init__(self, deaths: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., lsn: _Optional[int] = ...) -> None: ...

class ApplicationVersion(_message.Message):
    __slots__ = ("version", "who")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    version: int
    who: str
    def __init__(self, version: _Optional[int] = ..., who: _Optional[str] = ...) -> None: ...

class ClientRegistered(_message.Message):
    __slots__ = ("client_id", "holder")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    holder: bytes
    def __init__(self, client_id: _Optional[int] = ..., holder: _Optional[bytes] = ...) -> None: ...

class ClientRemoved(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    def __init__(self, client_id: _Optional[int] = ...) -> None: ...

class CallsAcknowledged(_message.Message):
    __slots__ = ("client_id", "first_incomplete", "completed")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    first_incomplete: int
    completed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_id: _Optional[int] = ..., first_incomplete: _Optional[int] = ..., completed: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionPut(_message.Message):
    __slots__ = ("client_id", "peer", "name", "state", "retention_s", "ended_at", "secret", "source", "writer")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    peer: bytes
    name: str
    state: int
    retention_s: float
    ended_at: float
    secret: bytes
    source: str
    writer: bytes
    def __init__(self, client_id: _Optional[int] = ..., peer: _Optional[bytes] = ..., name: _Optional[str] = ..., state: _Optional[int] = ..., retention_s: _Optional[float] = ..., ended_at: _Optional[float] = ..., secret: _Optional[bytes] = ..., source: _Optional[str] = ..., writer: _Optional[bytes] = ...) -> None: ...

class SessionForgotten(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    def __init__(self, client_id: _Optional[int] = ...) -> None: ...

class SessionsRekeyed(_message.Message):
    __slots__ = ("client_ids", "secret")
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[int]
    secret: bytes
    def __init__(self, client_ids: _Optional[_Iterable[int]] = ..., secret: _Optional[bytes] = ...) -> None: ...

class IdsReserved(_message.Message):
    __slots__ = ("last_id",)
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    last_id: int
    def __init__(self, last_id: _Optional[int] = ...) -> None: ...

class SecretsPut(_message.Message):
    __slots__ = ("secrets",)
    class Secret(_message.Message):
        __slots__ = ("key_id", "secret")
        KEY_ID_FIELD_NUMBER: _ClassVar[int]
        SECRET_FIELD_NUMBER: _ClassVar[int]
        key_id: int
        secret: bytes
        def __init__(self, key_id: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    secrets: _containers.RepeatedCompositeFieldContainer[SecretsPut.Secret]
    def __init__(self, secrets: _Optional[_Iterable[_Union[SecretsPut.Secret, _Mapping]]] = ...) -> None: ...

class LeaderStarted(_message.Message):
    __slots__ = ("configuration", "replica", "replayed", "accepted_loss")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LOSS_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    replica: str
    replayed: int
    accepted_loss: str
    def __init__(self, configuration: _Optional[int] = ..., replica: _Optional[str] = ..., replayed: _Optional[int] = ..., accepted_loss: _Optional[str] = ...) -> None: ...

class AcceptedLoss(_message.Message):
    __slots__ = ("configuration", "who", "why", "time_us")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    who: str
    why: str
    time_us: int
    def __init__(self, configuration: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., time_us: _Optional[int] = ...) -> None: ...

class PoisonCase(_message.Message):
    __slots__ = ("client_id", "seq", "key", "method", "how", "deaths", "since_us", "last_us", "who", "why", "closed", "lsn", "died", "awaited")
    class Death(_message.Message):
        __slots__ = ("configuration", "time_us")
        CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
        TIME_US_FIELD_NUMBER: _ClassVar[int]
        configuration: int
        time_us: int
        def __init__(self, configuration: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    LAST_US_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    seq: int
    key: bytes
    method: str
    how: str
    deaths: int
    since_us: int
    last_us: int
    who: str
    why: str
    closed: bool
    lsn: int
    died: _containers.RepeatedCompositeFieldContainer[PoisonCase.Death]
    awaited: bool
    def __init__(self, client_id: _Optional[int] = ..., seq: _Optional[int] = ..., key: _Optional[bytes] = ..., method: _Optional[str] = ..., how: _Optional[str] = ..., deaths: _Optional[int] = ..., since_us: _Optional[int] = ..., last_us: _Optional[int] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., closed: bool = ..., lsn: _Optional[int] = ..., died: _Optional[_Iterable[_Union[PoisonCase.Death, _Mapping]]] = ..., awaited: bool = ...) -> None: ...

class ReplayLedger(_message.Message):
    __slots__ = ("notes", "suspect")
    class Note(_message.Message):
        __slots__ = ("replica", "process", "after", "through")
        REPLICA_FIELD_NUMBER: _ClassVar[int]
        PROCESS_FIELD_NUMBER: _ClassVar[int]
        AFTER_FIELD_NUMBER: _ClassVar[int]
        THROUGH_FIELD_NUMBER: _ClassVar[int]
        replica: str
        process: str
        after: int
        through: int
        def __init__(self, replica: _Optional[str] = ..., process: _Optional[str] = ..., after: _Optional[int] = ..., through: _Optional[int] = ...) -> None: ...
    class Stretch(_message.Message):
        __slots__ = ("after", "through", "deaths")
        AFTER_FIELD_NUMBER: _ClassVar[int]
        THROUGH_FIELD_NUMBER: _ClassVar[int]
        DEATHS_FIELD_NUMBER: _ClassVar[int]
        after: int
        through: int
        deaths: int
        def __init__(self, after: _Optional[int] = ..., through: _Optional[int] = ..., deaths: _Optional[int] = ...) -> None: ...
    NOTES_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    notes: _containers.RepeatedCompositeFieldContainer[ReplayLedger.Note]
    suspect: ReplayLedger.Stretch
    def __init__(self, notes: _Optional[_Iterable[_Union[ReplayLedger.Note, _Mapping]]] = ..., suspect: _Optional[_Union[ReplayLedger.Stretch, _Mapping]] = ...) -> None: ...

class PoisonLedger(_message.Message):
    __slots__ = ("cases", "configuration", "outlived")
    CASES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    OUTLIVED_FIELD_NUMBER: _ClassVar[int]
    cases: _containers.RepeatedCompositeFieldContainer[PoisonCase]
    configuration: int
    outlived: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cases: _Optional[_Iterable[_Union[PoisonCase, _Mapping]]] = ..., configuration: _Optional[int] = ..., outlived: _Optional[_Iterable[int]] = ...) -> None: ...

class WitnessList(_message.Message):
    __slots__ = ("configuration", "witnesses", "serving", "wanted")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    witnesses: _containers.RepeatedScalarFieldContainer[str]
    serving: bool
    wanted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, configuration: _Optional[int] = ..., witnesses: _Optional[_Iterable[str]] = ..., serving: bool = ..., wanted: _Optional[_Iterable[str]] = ...) -> None: ...

class SnapshotItem(_message.Message):
    __slots__ = ("head", "session", "client", "state", "end")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    head: SnapshotHead
    session: SessionPut
    client: ClientKept
    state: bytes
    end: int
    def __init__(self, head: _Optional[_Union[SnapshotHead, _Mapping]] = ..., session: _Optional[_Union[SessionPut, _Mapping]] = ..., client: _Optional[_Union[ClientKept, _Mapping]] = ..., state: _Optional[bytes] = ..., end: _Optional[int] = ...) -> None: ...

class SnapshotHead(_message.Message):
    __slots__ = ("version", "lsn", "last_id", "secrets", "application_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    lsn: int
    last_id: int
    secrets: SecretsPut
    application_version: int
    def __init__(self, version: _Optional[int] = ..., lsn: _Optional[int] = ..., last_id: _Optional[int] = ..., secrets: _Optional[_Union[SecretsPut, _Mapping]] = ..., application_version: _Optional[int] = ...) -> None: ...

class ClientKept(_message.Message):
    __slots__ = ("client_id", "registered", "first_incomplete", "completed", "calls", "holder")
    class Call(_message.Message):
        __slots__ = ("seq", "key", "fingerprint", "record")
        SEQ_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
        RECORD_FIELD_NUMBER: _ClassVar[int]
        seq: int
        key: bytes
        fingerprint: bytes
        record: _rifl_pb2.CompletionRecord
        def __init__(self, seq: _Optional[int] = ..., key: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ..., record: _Optional[_Union[_rifl_pb2.CompletionRecord, _Mapping]] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    FIRST_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    registered: bool
    first_incomplete: int
    completed: _containers.RepeatedScalarFieldContainer[int]
    calls: _containers.RepeatedCompositeFieldContainer[ClientKept.Call]
    holder: bytes
    def __init__(self, client_id: _Optional[int] = ..., registered: bool = ..., first_incomplete: _Optional[int] = ..., completed: _Optional[_Iterable[int]] = ..., calls: _Optional[_Iterable[_Union[ClientKept.Call, _Mapping]]] = ..., holder: _Optional[bytes] = ...) -> None: ...

class GroupConfiguration(_message.Message):
    __slots__ = ("configuration", "leader", "witnesses", "replicas", "methods", "group", "log", "serves")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SERVES_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    leader: str
    witnesses: _containers.RepeatedScalarFieldContainer[str]
    replicas: _containers.RepeatedScalarFieldContainer[str]
    methods: _containers.RepeatedCompositeFieldContainer[MethodConflicts]
    group: str
    log: int
    serves: bool
    def __init__(self, configuration: _Optional[int] = ..., leader: _Optional[str] = ..., witnesses: _Optional[_Iterable[str]] = ..., replicas: _Optional[_Iterable[str]] = ..., methods: _Optional[_Iterable[_Union[MethodConflicts, _Mapping]]] = ..., group: _Optional[str] = ..., log: _Optional[int] = ..., serves: bool = ...) -> None: ...

class MethodConflicts(_message.Message):
    __slots__ = ("method", "keys", "read_only", "synced", "by_callable")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    BY_CALLABLE_FIELD_NUMBER: _ClassVar[int]
    method: str
    keys: _containers.RepeatedCompositeFieldContainer[KeyField]
    read_only: bool
    synced: bool
    by_callable: bool
    def __init__(self, method: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[KeyField, _Mapping]]] = ..., read_only: bool = ..., synced: bool = ..., by_callable: bool = ...) -> None: ...

class KeyField(_message.Message):
    __slots__ = ("path", "space", "default_value", "type", "repeated_at")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REPEATED_AT_FIELD_NUMBER: _ClassVar[int]
    path: _containers.RepeatedScalarFieldContainer[int]
    space: str
    default_value: bytes
    type: int
    repeated_at: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, path: _Optional[_Iterable[int]] = ..., space: _Optional[str] = ..., default_value: _Optional[bytes] = ..., type: _Optional[int] = ..., repeated_at: _Optional[_Iterable[int]] = ...) -> None: ...

class WitnessedCall(_message.Message):
    __slots__ = ("header", "method", "request", "conflict_keys", "peer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_KEYS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    method: str
    request: bytes
    conflict_keys: _containers.RepeatedScalarFieldContainer[int]
    peer: bytes
    def __init__(self, header: _Optional[bytes] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ..., conflict_keys: _Optional[_Iterable[int]] = ..., peer: _Optional[bytes] = ...) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ("configuration", "call", "log")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    call: WitnessedCall
    log: int
    def __init__(self, configuration: _Optional[int] = ..., call: _Optional[_Union[WitnessedCall, _Mapping]] = ..., log: _Optional[int] = ...) -> None: ...

class RecordReply(_message.Message):
    __slots__ = ("verdict",)
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[RecordReply.Verdict]
        ACCEPTED: _ClassVar[RecordReply.Verdict]
        CONFLICT: _ClassVar[RecordReply.Verdict]
        FULL: _ClassVar[RecordReply.Verdict]
        OTHER_CONFIGURATION: _ClassVar[RecordReply.Verdict]
        FROZEN: _ClassVar[RecordReply.Verdict]
        TOO_LARGE: _ClassVar[RecordReply.Verdict]
        OTHER_GROUP: _ClassVar[RecordReply.Verdict]
    VERDICT_UNSPECIFIED: RecordReply.Verdict
    ACCEPTED: RecordReply.Verdict
    CONFLICT: RecordReply.Verdict
    FULL: RecordReply.Verdict
    OTHER_CONFIGURATION: RecordReply.Verdict
    FROZEN: RecordReply.Verdict
    TOO_LARGE: RecordReply.Verdict
    OTHER_GROUP: RecordReply.Verdict
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: RecordReply.Verdict
    def __init__(self, verdict: _Optional[_Union[RecordReply.Verdict, str]] = ...) -> None: ...

class RecordsRequest(_message.Message):
    __slots__ = ("first", "records")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    first: int
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first: _Optional[int] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RecordsReply(_message.Message):
    __slots__ = ("first", "verdicts")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    first: int
    verdicts: _containers.RepeatedScalarFieldContainer[RecordReply.Verdict]
    def __init__(self, first: _Optional[int] = ..., verdicts: _Optional[_Iterable[_Union[RecordReply.Verdict, str]]] = ...) -> None: ...

class Collected(_message.Message):
    __slots__ = ("client_id", "seq", "key", "conflict_keys")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_KEYS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    seq: int
    key: bytes
    conflict_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_id: _Optional[int] = ..., seq: _Optional[int] = ..., key: _Optional[bytes] = ..., conflict_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("configuration", "synced", "group")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    synced: _containers.RepeatedCompositeFieldContainer[Collected]
    group: str
    def __init__(self, configuration: _Optional[int] = ..., synced: _Optional[_Iterable[_Union[Collected, _Mapping]]] = ..., group: _Optional[str] = ...) -> None: ...

class CollectReply(_message.Message):
    __slots__ = ("verdict", "stuck")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    verdict: RecordReply.Verdict
    stuck: _containers.RepeatedCompositeFieldContainer[WitnessedCall]
    def __init__(self, verdict: _Optional[_Union[RecordReply.Verdict, str]] = ..., stuck: _Optional[_Iterable[_Union[WitnessedCall, _Mapping]]] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("configuration", "group")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    group: str
    def __init__(self, configuration: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("verdict", "calls")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    verdict: RecordReply.Verdict
    calls: _containers.RepeatedCompositeFieldContainer[WitnessedCall]
    def __init__(self, verdict: _Optional[_Union[RecordReply.Verdict, str]] = ..., calls: _Optional[_Iterable[_Union[WitnessedCall, _Mapping]]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("configuration", "group", "secrets", "refresh", "methods")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    REFRESH_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    group: str
    secrets: SecretsPut
    refresh: bool
    methods: _containers.RepeatedCompositeFieldContainer[MethodConflicts]
    def __init__(self, configuration: _Optional[int] = ..., group: _Optional[str] = ..., secrets: _Optional[_Union[SecretsPut, _Mapping]] = ..., refresh: bool = ..., methods: _Optional[_Iterable[_Union[MethodConflicts, _Mapping]]] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ("verdict",)
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: RecordReply.Verdict
    def __init__(self, verdict: _Optional[_Union[RecordReply.Verdict, str]] = ...) -> None: ...

class WitnessStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WitnessStatusReply(_message.Message):
    __slots__ = ("configuration", "group", "mode", "held", "slots", "accepted", "refused")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    group: str
    mode: str
    held: int
    slots: int
    accepted: int
    refused: int
    def __init__(self, configuration: _Optional[int] = ..., group: _Optional[str] = ..., mode: _Optional[str] = ..., held: _Optional[int] = ..., slots: _Optional[int] = ..., accepted: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("configuration", "client_id", "seq", "key", "token")
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    configuration: int
    client_id: int
    seq: int
    key: bytes
    token: bytes
    def __init__(self, configuration: _Optional[int] = ..., client_id: _Optional[int] = ..., seq: _Optional[int] = ..., key: _Optional[bytes] = ..., token: _Optional[bytes] = ...) -> None: ...

class SyncReply(_message.Message):
    __slots__ = ("verdict",)
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[SyncReply.Verdict]
        SYNCED: _ClassVar[SyncReply.Verdict]
        NOT_KNOWN: _ClassVar[SyncReply.Verdict]
        OTHER_CONFIGURATION: _ClassVar[SyncReply.Verdict]
    VERDICT_UNSPECIFIED: SyncReply.Verdict
    SYNCED: SyncReply.Verdict
    NOT_KNOWN: SyncReply.Verdict
    OTHER_CONFIGURATION: SyncReply.Verdict
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: SyncReply.Verdict
    def __init__(self, verdict: _Optional[_Union[SyncReply.Verdict, str]] = ...) -> None: ...

class GroupStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupStatusReply(_message.Message):
    __slots__ = ("configuration", "replica", "role", "applied", "tail", "unsynced", "clients", "waiting_for", "witnesses", "wanted_witnesses", "application_version", "active_version", "engine", "warnings", "poison", "left_out")
    class LeftOut(_message.Message):
        __slots__ = ("witness", "why")
        WITNESS_FIELD_NUMBER: _ClassVar[int]
        WHY_FIELD_NUMBER: _ClassVar[int]
        witness: str
        why: str
        def __init__(self, witness: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    WANTED_WITNESSES_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    POISON_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    configuration: GroupConfiguration
    replica: str
    role: str
    applied: int
    tail: int
    unsynced: int
    clients: int
    waiting_for: str
    witnesses: _containers.RepeatedCompositeFieldContainer[WitnessStatusReply]
    wanted_witnesses: _containers.RepeatedScalarFieldContainer[str]
    application_version: int
    active_version: int
    engine: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    poison: _containers.RepeatedCompositeFieldContainer[PoisonCase]
    left_out: _containers.RepeatedCompositeFieldContainer[GroupStatusReply.LeftOut]
    def __init__(self, configuration: _Optional[_Union[GroupConfiguration, _Mapping]] = ..., replica: _Optional[str] = ..., role: _Optional[str] = ..., applied: _Optional[int] = ..., tail: _Optional[int] = ..., unsynced: _Optional[int] = ..., clients: _Optional[int] = ..., waiting_for: _Optional[str] = ..., witnesses: _Optional[_Iterable[_Union[WitnessStatusReply, _Mapping]]] = ..., wanted_witnesses: _Optional[_Iterable[str]] = ..., application_version: _Optional[int] = ..., active_version: _Optional[int] = ..., engine: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., poison: _Optional[_Iterable[_Union[PoisonCase, _Mapping]]] = ..., left_out: _Optional[_Iterable[_Union[GroupStatusReply.LeftOut, _Mapping]]] = ...) -> None: ...

class ChangeWitnessesRequest(_message.Message):
    __slots__ = ("witnesses", "configuration")
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    witnesses: _containers.RepeatedScalarFieldContainer[str]
    configuration: int
    def __init__(self, witnesses: _Optional[_Iterable[str]] = ..., configuration: _Optional[int] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: str
    def __init__(self, replica: _Optional[str] = ...) -> None: ...

class TransferReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FinalizeUpgradeRequest(_message.Message):
    __slots__ = ("version", "who")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    version: int
    who: str
    def __init__(self, version: _Optional[int] = ..., who: _Optional[str] = ...) -> None: ...

class FinalizeUpgradeReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class EndSessionReply(_message.Message):
    __slots__ = ("client_ids",)
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RotateSecretRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateSecretReply(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: int
    def __init__(self, key_id: _Optional[int] = ...) -> None: ...
