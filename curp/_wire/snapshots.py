"""The snapshots of a group: its clients and leases, then the services' state, in chunks."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from curp._core.entries import SessionPut
from curp._core.state import ClientKept, KeptCall, StateHead
from curp._wire.entries import (
    secrets_from_message,
    secrets_to_message,
    session_from_message,
    session_to_message,
)
from curp._wire.fields import UINT64, VERSION, packed_ranges, ranges, signed
from curp.log._errors import CorruptLog
from curp.v1 import curp_pb2 as pb
from rifl._wire.records import record_from_message, record_to_message

_LENGTH = struct.Struct(">I")
_STATE_PIECE = 1 << 20


def snapshot_to_chunks(
    items: Iterable[StateHead | SessionPut | ClientKept], state: bytes
) -> Iterator[bytes]:
    """Serialise a snapshot: the clients and leases, then the services' state."""
    count = 0
    for item in items:
        message = pb.SnapshotItem()
        if isinstance(item, StateHead):
            message.head.version = VERSION
            message.head.lsn = item.lsn
            message.head.last_id = item.last_id
            message.head.secrets.CopyFrom(secrets_to_message(item.secrets))
            message.head.application_version = item.version
        elif isinstance(item, SessionPut):
            message.session.CopyFrom(session_to_message(item))
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
            if message.head.version != VERSION:
                raise CorruptLog("the snapshot was written by a newer program")
            head = message.head
            items.append(
                StateHead(
                    head.lsn,
                    head.last_id,
                    secrets_from_message(head.secrets),
                    head.application_version,
                )
            )
        elif kind == "session":
            items.append(session_from_message(0, message.session))
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


def _client_message(client: ClientKept) -> pb.ClientKept:
    message = pb.ClientKept(
        client_id=client.client_id & UINT64,
        registered=client.registered,
        first_incomplete=client.first_incomplete,
        completed=packed_ranges(client.first_incomplete, client.completed),
        holder=client.holder,
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
    client_id = signed(message.client_id)
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
        ranges(first_incomplete, message.completed),
        tuple(calls),
        message.holder,
    )


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
