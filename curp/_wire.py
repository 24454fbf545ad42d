"""The wire format of log entries, snapshots and metadata, to and from core types (DESIGN §7)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from curp._core.entries import (
    ApplicationVersion,
    ClientRegistered,
    ClientRemoved,
    Entry,
    IdsReserved,
    LeaderStarted,
    Operation,
    SecretsPut,
    SessionForgotten,
    SessionPut,
    SetAside,
)
from curp._core.poison import Case, Death, Ledger
from curp._core.recovery import AcceptedLoss
from curp._core.replay_notes import ReplayNote, ReplayNotes, Stretch
from curp._core.state import ClientKept, KeptCall, StateHead
from curp._core.witness_list import WitnessList
from curp._core.witnessed_call import WitnessedCall
from curp.log._errors import CorruptLog
from curp.v1 import curp_pb2 as pb
from rifl._wire.header import parse_call
from rifl._wire.records import record_from_message, record_to_bytes, record_to_message
from rifl.core._shared.errors import BadHeader
from rifl.core._shared.identity import RpcId

# Trailing metadata of an answer that is in the log: the leader's configuration number.
# An answer without it is final only with all witnesses.
SYNCED_KEY = "curp-synced"

_VERSION = 1
_UINT64 = (1 << 64) - 1
_STATES = {"open": 0, "closed": 1, "expired": 2}
_STATES_BACK = {number: state for state, number in _STATES.items()}
_LENGTH = struct.Struct(">I")
_STATE_PIECE = 1 << 20


def entry_to_bytes(entry: Entry) -> bytes:
    """Serialise an entry as the log engine keeps it."""
    message = pb.LogEntry(version=_VERSION)
    if isinstance(entry, Operation):
        _put_operation(message.operation, entry)
    elif isinstance(entry, ClientRegistered):
        message.client_registered.client_id = entry.client_id
    elif isinstance(entry, ClientRemoved):
        message.client_removed.client_id = entry.client_id
    elif isinstance(entry, SessionPut):
        message.session_put.CopyFrom(_session_message(entry))
    elif isinstance(entry, SessionForgotten):
        message.session_forgotten.client_id = entry.client_id
    elif isinstance(entry, IdsReserved):
        message.ids_reserved.last_id = entry.last_id
    elif isinstance(entry, SecretsPut):
        message.secrets_put.CopyFrom(secrets_to_message(entry.secrets))
    elif isinstance(entry, ApplicationVersion):
        message.application_version.version = entry.version
        message.application_version.who = entry.who
    else:
        message.leader_started.configuration = entry.configuration
        message.leader_started.replica = entry.replica
        message.leader_started.replayed = entry.replayed
        message.leader_started.accepted_loss = entry.accepted_loss
    return message.SerializeToString()


def entry_from_bytes(lsn: int, body: bytes) -> Entry:
    """Read an entry; ``CorruptLog`` for bytes that are none, or of a newer format."""
    try:
        message = pb.LogEntry.FromString(body)
    except DecodeError:
        raise CorruptLog(f"LSN {lsn} is no log entry") from None
    if message.version != _VERSION:
        raise CorruptLog(
            f"LSN {lsn} is of format {message.version}, and this program reads {_VERSION}: "
            "it was written by a newer one"
        )
    kind = message.WhichOneof("entry")
    if kind == "operation":
        return _operation(lsn, message.operation)
    if kind == "client_registered":
        return ClientRegistered(message.client_registered.client_id)
    if kind == "client_removed":
        return ClientRemoved(message.client_removed.client_id)
    if kind == "session_put":
        return _session(lsn, message.session_put)
    if kind == "session_forgotten":
        return SessionForgotten(message.session_forgotten.client_id)
    if kind == "ids_reserved":
        return IdsReserved(message.ids_reserved.last_id)
    if kind == "secrets_put":
        return SecretsPut(_secrets(message.secrets_put))
    if kind == "application_version":
        active = message.application_version
        return ApplicationVersion(active.version, active.who)
    if kind == "leader_started":
        started = message.leader_started
        return LeaderStarted(
            started.configuration, started.replica, started.replayed, started.accepted_loss
        )
    raise CorruptLog(f"LSN {lsn} holds nothing that this program knows")


def witness_list_to_bytes(witnesses: WitnessList) -> bytes:
    """Serialise a witness list for the engine's metadata."""
    return pb.WitnessList(
        configuration=witnesses.configuration,
        witnesses=witnesses.witnesses,
        serving=witnesses.serving,
        wanted=witnesses.wanted,
    ).SerializeToString()


def witness_list_from_bytes(data: bytes) -> WitnessList:
    """Read a witness list; ``CorruptLog`` for bytes that are none."""
    try:
        message = pb.WitnessList.FromString(data)
    except DecodeError:
        raise CorruptLog("the engine's witness list cannot be read") from None
    return WitnessList(
        message.configuration, tuple(message.witnesses), message.serving, tuple(message.wanted)
    )


def accepted_loss_to_bytes(accepted: AcceptedLoss, time_us: int) -> bytes:
    """Serialise an operator's word for the engine's metadata."""
    return pb.AcceptedLoss(
        configuration=accepted.configuration, who=accepted.who, why=accepted.why, time_us=time_us
    ).SerializeToString()


def accepted_loss_from_bytes(data: bytes) -> AcceptedLoss:
    """Read it; ``CorruptLog`` for bytes that are none."""
    try:
        message = pb.AcceptedLoss.FromString(data)
    except DecodeError:
        raise CorruptLog("the accepted loss in the engine's metadata is damaged") from None
    return AcceptedLoss(message.configuration, message.who, message.why)


def ledger_to_bytes(ledger: Ledger) -> bytes:
    """Serialise what is known of calls that kill, for the engine's metadata."""
    cases = [poison_case(case) for case in ledger.cases]
    return pb.PoisonLedger(cases=cases, outlived=ledger.outlived).SerializeToString()


def ledger_from_bytes(data: bytes | None) -> Ledger:
    """Read it, an empty one from nothing; ``CorruptLog`` for bytes that are none."""
    message = _poison_ledger(data)
    cases = tuple(case_from_message(case) for case in message.cases)
    return Ledger(cases, tuple(message.outlived))


def notes_to_bytes(notes: Sequence[Case], configuration: int) -> bytes:
    """Serialise what runs under a number, for the engine's metadata."""
    cases = [poison_case(case) for case in notes]
    return pb.PoisonLedger(cases=cases, configuration=configuration).SerializeToString()


def notes_from_bytes(data: bytes | None) -> tuple[tuple[Case, ...], int]:
    """Read it, and the number (0: unknown); ``CorruptLog`` for other bytes."""
    message = _poison_ledger(data)
    return tuple(case_from_message(case) for case in message.cases), message.configuration


def _poison_ledger(data: bytes | None) -> pb.PoisonLedger:
    try:
        return pb.PoisonLedger.FromString(data or b"")
    except DecodeError:
        raise CorruptLog("the ledger of calls that kill cannot be read") from None


def poison_case(case: Case) -> pb.PoisonCase:
    """Return the message that stands for a case."""
    message = pb.PoisonCase(
        client_id=case.rpc_id.client_id & _UINT64,
        method=case.method,
        how=case.how,
        deaths=case.deaths,
        since_us=case.since_us,
        last_us=case.last_us,
        who=case.who,
        why=case.why,
        closed=case.closed,
        lsn=case.lsn,
        died=[pb.PoisonCase.Death(**death._asdict()) for death in case.died],
    )
    if case.rpc_id.key is None:
        message.seq = case.rpc_id.seq or 0
    else:
        message.key = case.rpc_id.key
    return message


def replays_to_bytes(replays: ReplayNotes) -> bytes:
    """Serialise who replays what, for the engine's metadata."""
    message = pb.ReplayLedger(
        notes=[pb.ReplayLedger.Note(**note._asdict()) for note in replays.notes]
    )
    if replays.suspect is not None:
        message.suspect.CopyFrom(pb.ReplayLedger.Stretch(**replays.suspect._asdict()))
    return message.SerializeToString()


def replays_from_bytes(data: bytes | None) -> ReplayNotes:
    """Read it, an empty one from nothing; ``CorruptLog`` for bytes that are none."""
    try:
        message = pb.ReplayLedger.FromString(data or b"")
    except DecodeError:
        raise CorruptLog("what is replayed cannot be read in the engine's metadata") from None
    suspect = message.suspect
    return ReplayNotes(
        tuple(
            ReplayNote(note.replica, note.process, note.after, note.through)
            for note in message.notes
        ),
        Stretch(suspect.after, suspect.through, suspect.deaths)
        if message.HasField("suspect")
        else None,
    )


def case_from_message(message: pb.PoisonCase) -> Case:
    """Read a case."""
    by_key = message.WhichOneof("identity") == "key"
    return Case(
        RpcId(
            _signed(message.client_id),
            None if by_key else message.seq,
            message.key if by_key else None,
        ),
        message.method,
        message.how,
        message.deaths,
        message.since_us,
        message.last_us,
        message.who,
        message.why,
        message.closed,
        message.lsn,
        tuple(Death(death.configuration, death.time_us) for death in message.died),
    )


def _signed(client_id: int) -> int:
    # A namespace of plain keys is below 0.
    return client_id - (1 << 64) if client_id >> 63 else client_id


def witnessed_call(message: pb.WitnessedCall) -> WitnessedCall | None:
    """Read a request that a witness held; None if it is no call at all.

    Its own acknowledgements are left out (invariant 6).
    """
    try:
        call = parse_call(message.header, message.method, message.request)
    except BadHeader:
        return None
    call.first_incomplete, call.completed = 1, ()
    call.peer = message.peer
    return WitnessedCall(call, message.request, frozenset(message.conflict_keys))


def snapshot_to_chunks(
    items: Iterable[StateHead | SessionPut | ClientKept], state: bytes
) -> Iterator[bytes]:
    """Serialise a snapshot: the clients and leases, then the services' state."""
    count = 0
    for item in items:
        message = pb.SnapshotItem()
        if isinstance(item, StateHead):
            message.head.version = _VERSION
            message.head.lsn = item.lsn
            message.head.last_id = item.last_id
            message.head.secrets.CopyFrom(secrets_to_message(item.secrets))
            message.head.application_version = item.version
        elif isinstance(item, SessionPut):
            message.session.CopyFrom(_session_message(item))
        else:
            message.client.CopyFrom(_client_message(item))
        yield _framed(message)
        count += 1
    for at in range(0, len(state), _STATE_PIECE):
        yield _framed(pb.SnapshotItem(state=state[at : at + _STATE_PIECE]))
        count += 1
    yield _framed(pb.SnapshotItem(end=count))


def snapshot_from_chunks(
    chunks: Iterable[bytes],
) -> tuple[list[StateHead | SessionPut | ClientKept], bytes]:
    """Read a snapshot back; ``CorruptLog`` for one that is damaged, cut short or newer."""
    items: list[StateHead | SessionPut | ClientKept] = []
    state = bytearray()
    ended = False
    for count, message in enumerate(_unframed(chunks)):
        kind = message.WhichOneof("item")
        if ended or (count == 0) is not (kind == "head"):
            raise CorruptLog("the snapshot's items are not in order")
        if kind == "head":
            if message.head.version != _VERSION:
                raise CorruptLog("the snapshot was written by a newer program")
            head = message.head
            items.append(
                StateHead(head.lsn, head.last_id, _secrets(head.secrets), head.application_version)
            )
        elif kind == "session":
            items.append(_session(0, message.session))
        elif kind == "client":
            items.append(_client(message.client))
        elif kind == "state":
            state += message.state
        elif kind == "end":
            ended = message.end == count
        else:
            raise CorruptLog("the snapshot holds something that this program does not know")
    if not ended:
        raise CorruptLog("the snapshot is cut short")
    return items, bytes(state)


def _put_operation(message: pb.Operation, entry: Operation) -> None:
    message.client_id = entry.client_id & _UINT64
    if entry.key is None:
        message.seq = entry.seq or 0
    else:
        message.key = entry.key
    message.first_incomplete = entry.first_incomplete
    if entry.completed:
        message.completed.extend(_pairs(entry.first_incomplete, entry.completed))
    message.time_us, message.seed = entry.stamp
    message.method = entry.method
    message.request = entry.request
    # Cheaper than a message of its own that is copied: most records are a few bytes.
    message.answer.MergeFromString(record_to_bytes(entry.answer))
    message.conflict_keys.extend(sorted(entry.keys))
    if entry.fingerprint is not None:
        message.fingerprint = entry.fingerprint
    message.peer = entry.peer
    message.refusal = entry.refusal
    if entry.application_version:
        message.application_version = entry.application_version
    if entry.set_aside is not None:
        aside = entry.set_aside
        message.set_aside.CopyFrom(
            pb.SetAside(deaths=aside.deaths, who=aside.who, why=aside.why, lsn=aside.lsn)
        )


def _operation(lsn: int, message: pb.Operation) -> Operation:
    identity = message.WhichOneof("identity")
    if identity is None:
        raise CorruptLog(f"the operation at LSN {lsn} has no identity")
    client_id = _signed(message.client_id)
    first_incomplete = message.first_incomplete or 1
    return Operation(
        client_id,
        message.seq if identity == "seq" else None,
        message.key if identity == "key" else None,
        message.method,
        message.request,
        record_from_message(message.answer),
        (message.time_us, message.seed),
        frozenset(message.conflict_keys),
        message.fingerprint or None,
        first_incomplete,
        _ranges(first_incomplete, message.completed),
        message.peer,
        message.refusal,
        message.application_version,
        _set_aside(message),
    )


def _set_aside(message: pb.Operation) -> SetAside | None:
    if not message.HasField("set_aside"):
        return None
    found = message.set_aside
    return SetAside(found.deaths, found.who, found.why, found.lsn)


def _session_message(entry: SessionPut) -> pb.SessionPut:
    return pb.SessionPut(
        client_id=entry.client_id,
        peer=entry.peer,
        name=entry.name,
        state=_STATES[entry.state],
        retention_s=entry.retention_s,
        ended_at=entry.changed_at_unix_s,
        secret=entry.secret,
        source=entry.source,
    )


def _session(lsn: int, message: pb.SessionPut) -> SessionPut:
    state = _STATES_BACK.get(message.state)
    if state is None:
        raise CorruptLog(f"the session at LSN {lsn} is in a state this program does not know")
    return SessionPut(
        message.client_id,
        message.name,
        message.peer,
        state,
        message.retention_s,
        message.ended_at,
        message.secret,
        message.source,
    )


def secrets_to_message(secrets: tuple[tuple[int, bytes], ...]) -> pb.SecretsPut:
    """Return the message that stands for secrets, as witnesses are told them."""
    return pb.SecretsPut(
        secrets=[pb.SecretsPut.Secret(key_id=key_id, secret=value) for key_id, value in secrets]
    )


def _secrets(message: pb.SecretsPut) -> tuple[tuple[int, bytes], ...]:
    return tuple((secret.key_id, secret.secret) for secret in message.secrets)


def _client_message(client: ClientKept) -> pb.ClientKept:
    message = pb.ClientKept(
        client_id=client.client_id & _UINT64,
        registered=client.registered,
        first_incomplete=client.first_incomplete,
        completed=_pairs(client.first_incomplete, client.completed),
    )
    for call in client.calls:
        kept = message.calls.add()
        if call.key is None:
            kept.seq = call.seq or 0
        else:
            kept.key = call.key
        if call.fingerprint is not None:
            kept.fingerprint = call.fingerprint
        kept.record.CopyFrom(record_to_message(call.record))
        kept.record.seed = call.seed
    return message


def _client(message: pb.ClientKept) -> ClientKept:
    client_id = _signed(message.client_id)
    calls = []
    for kept in message.calls:
        identity = kept.WhichOneof("identity")
        if identity is None:
            raise CorruptLog(f"a call of client {client_id} has no identity in the snapshot")
        calls.append(
            KeptCall(
                kept.seq if identity == "seq" else None,
                kept.key if identity == "key" else None,
                kept.fingerprint or None,
                record_from_message(kept.record),
                kept.record.seed,
            )
        )
    first_incomplete = message.first_incomplete or 1
    return ClientKept(
        client_id,
        message.registered,
        first_incomplete,
        _ranges(first_incomplete, message.completed),
        tuple(calls),
    )


def _pairs(first_incomplete: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
    pairs: list[int] = []
    position = first_incomplete
    for first, last in ranges:
        pairs += (first - position, last + 1 - first)
        position = last + 1
    return pairs


def _ranges(first_incomplete: int, pairs: Sequence[int]) -> tuple[tuple[int, int], ...]:
    if len(pairs) % 2:
        raise CorruptLog("acknowledged ranges are not in pairs")
    ranges = []
    position = first_incomplete
    for at in range(0, len(pairs), 2):
        first = position + pairs[at]
        position = first + pairs[at + 1]
        ranges.append((first, position - 1))
    return tuple(ranges)


def _framed(message: pb.SnapshotItem) -> bytes:
    data = message.SerializeToString()
    return _LENGTH.pack(len(data)) + data


def _unframed(chunks: Iterable[bytes]) -> Iterator[pb.SnapshotItem]:
    # Whatever pieces an engine gives them back in.
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            try:
                yield pb.SnapshotItem.FromString(bytes(buffer[at + _LENGTH.size : end]))
            except DecodeError:
                raise CorruptLog("an item of the snapshot cannot be read") from None
            at = end
        del buffer[:at]
    if buffer:
        raise CorruptLog("the snapshot ends within an item")
