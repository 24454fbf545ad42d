"""The entries of the log, as its engine keeps them."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from curp._core.entries import (
    ApplicationVersion,
    CallsAcknowledged,
    ClientRegistered,
    ClientRemoved,
    Entry,
    IdsReserved,
    LeaderStarted,
    Operation,
    SecretsPut,
    SessionForgotten,
    SessionPut,
    SessionsRekeyed,
    SetAside,
)
from curp._wire.fields import UINT64, VERSION, packed_ranges, ranges, signed
from curp.log._errors import CorruptLog
from curp.v1 import curp_pb2 as pb
from rifl._wire.records import record_from_message, record_to_bytes

_STATES = {"open": 0, "closed": 1, "expired": 2}
_STATES_BACK = {number: state for state, number in _STATES.items()}


def entry_to_bytes(entry: Entry) -> bytes:
    """Serialise an entry as the log engine keeps it."""
    message = pb.LogEntry(version=VERSION)
    if isinstance(entry, Operation):
        _put_operation(message.operation, entry)
    elif isinstance(entry, ClientRegistered):
        message.client_registered.client_id = entry.client_id
        message.client_registered.holder = entry.holder
    elif isinstance(entry, ClientRemoved):
        message.client_removed.client_id = entry.client_id
    elif isinstance(entry, CallsAcknowledged):
        told = message.calls_acknowledged
        told.client_id, told.first_incomplete = entry.client_id, entry.first_incomplete
        told.completed.extend(packed_ranges(entry.first_incomplete, entry.completed))
    elif isinstance(entry, SessionPut):
        message.session_put.CopyFrom(session_to_message(entry))
    elif isinstance(entry, SessionForgotten):
        message.session_forgotten.client_id = entry.client_id
    elif isinstance(entry, SessionsRekeyed):
        message.sessions_rekeyed.client_ids.extend(entry.client_ids)
        message.sessions_rekeyed.secret = entry.secret
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
    if message.version != VERSION:
        raise CorruptLog(
            f"LSN {lsn} is of format {message.version}, and this program reads {VERSION}: "
            "it was written by a newer one"
        )
    kind = message.WhichOneof("entry")
    if kind == "operation":
        return _operation(lsn, message.operation)
    if kind == "client_registered":
        registered = message.client_registered
        return ClientRegistered(registered.client_id, registered.holder)
    if kind == "client_removed":
        return ClientRemoved(message.client_removed.client_id)
    if kind == "calls_acknowledged":
        told = message.calls_acknowledged
        first = told.first_incomplete
        return CallsAcknowledged(told.client_id, first, ranges(first, told.completed))
    if kind == "session_put":
        return session_from_message(lsn, message.session_put)
    if kind == "session_forgotten":
        return SessionForgotten(message.session_forgotten.client_id)
    if kind == "sessions_rekeyed":
        rekeyed = message.sessions_rekeyed
        return SessionsRekeyed(tuple(rekeyed.client_ids), rekeyed.secret)
    if kind == "ids_reserved":
        return IdsReserved(message.ids_reserved.last_id)
    if kind == "secrets_put":
        return SecretsPut(secrets_from_message(message.secrets_put))
    if kind == "application_version":
        active = message.application_version
        return ApplicationVersion(active.version, active.who)
    if kind == "leader_started":
        started = message.leader_started
        return LeaderStarted(
            started.configuration, started.replica, started.replayed, started.accepted_loss
        )
    raise CorruptLog(f"LSN {lsn} holds nothing that this program knows")


def _put_operation(message: pb.Operation, entry: Operation) -> None:
    message.client_id = entry.client_id & UINT64
    if entry.key is None:
        message.seq = entry.seq or 0
    else:
        message.key = entry.key
    message.first_incomplete = entry.first_incomplete
    if entry.completed:
        message.completed.extend(packed_ranges(entry.first_incomplete, entry.completed))
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
    client_id = signed(message.client_id)
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
        ranges(first_incomplete, message.completed),
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


def session_to_message(entry: SessionPut) -> pb.SessionPut:
    """Return the message that stands for a session."""
    return pb.SessionPut(
        client_id=entry.client_id,
        peer=entry.peer,
        name=entry.name,
        state=_STATES[entry.state],
        retention_s=entry.retention_s,
        ended_at=entry.changed_at_unix_s,
        secret=entry.secret,
        source=entry.source,
        writer=entry.writer,
    )


def session_from_message(lsn: int, message: pb.SessionPut) -> SessionPut:
    """Read a session; ``CorruptLog`` for one of a newer format."""
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
        message.writer,
    )


def secrets_to_message(secrets: tuple[tuple[int, bytes], ...]) -> pb.SecretsPut:
    """Return the message that stands for secrets, as witnesses are told them."""
    return pb.SecretsPut(
        secrets=[pb.SecretsPut.Secret(key_id=key_id, secret=value) for key_id, value in secrets]
    )


def secrets_from_message(message: pb.SecretsPut) -> tuple[tuple[int, bytes], ...]:
    """Read secrets, with the ids of their keys."""
    return tuple((secret.key_id, secret.secret) for secret in message.secrets)
