"""Completion records and resolutions, as bytes and as messages (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from struct import Struct

from google.protobuf.message import DecodeError

from _rifl_ground.refusals import Outcome
from rifl._wire.varint import varint
from rifl.core._shared.record import CompletionRecord, Metadata
from rifl.v1 import rifl_pb2

_OUTCOME_TO_WIRE = {
    Outcome.EXECUTED: rifl_pb2.OUTCOME_EXECUTED,
    Outcome.REPLAYED: rifl_pb2.OUTCOME_REPLAYED,
    Outcome.NOT_EXECUTED: rifl_pb2.OUTCOME_NOT_EXECUTED,
    Outcome.UNKNOWN: rifl_pb2.OUTCOME_UNKNOWN,
}
_OUTCOME_FROM_WIRE = {number: outcome for outcome, number in _OUTCOME_TO_WIRE.items()}
_EXECUTED = Outcome.EXECUTED
# A record's field 10, with its tag: to be put behind the rest of it, since messages that
# follow one another are one message to protobuf.
seed_field = partial(Struct("<BQ").pack, 0x51)


def outcome_to_wire(outcome: Outcome) -> rifl_pb2.Outcome:
    """Return the enum value of an outcome."""
    return _OUTCOME_TO_WIRE[outcome]


def outcome_from_wire(number: rifl_pb2.Outcome) -> Outcome:
    """Return the outcome of an enum value; one we do not know is unknown."""
    return _OUTCOME_FROM_WIRE.get(number, Outcome.UNKNOWN)


def record_to_message(record: CompletionRecord) -> rifl_pb2.CompletionRecord:
    """Return the message that stands for a record."""
    return rifl_pb2.CompletionRecord(
        code=record.code,
        details=_text(record.details),
        response=record.response or b"",
        has_response=record.response is not None,
        initial_metadata=_entries(record.initial_metadata),
        trailing_metadata=_entries(record.trailing_metadata),
        outcome=_OUTCOME_TO_WIRE[record.outcome],
        reason=record.reason,
        messages=record.messages,
    )


def record_to_bytes(record: CompletionRecord) -> bytes:
    """Serialise a record for a store."""
    response = record.response
    if response and record == (0, "", response, (), (), _EXECUTED, "", ()):
        # Nearly all records: a response and nothing else. Fields 3, 6 and 8, as
        # protobuf writes them, at a fifth of the cost.
        return b"\x1a" + varint(len(response)) + response + b"\x30\x01\x40\x01"
    return record_to_message(record).SerializeToString()


def record_from_message(message: rifl_pb2.CompletionRecord) -> CompletionRecord:
    """Read a record that came inside another message."""
    return _record(message)


def record_from_bytes(data: bytes) -> CompletionRecord:
    """Read a record; raises ``ValueError`` for bytes that are none."""
    return record_and_seed(data)[0]


def record_and_seed(data: bytes) -> tuple[CompletionRecord, int]:
    """Read a record and the seed that is kept with it, 0 for none; raises ``ValueError``."""
    try:
        message = rifl_pb2.CompletionRecord.FromString(data)
        return _record(message), message.seed
    except DecodeError:
        raise ValueError("the stored bytes are not a rifl.v1.CompletionRecord") from None


def parse_resolution(reply: rifl_pb2.ResolveReply) -> tuple[Outcome, CompletionRecord | None]:
    """Return what a ``ResolveReply`` says: an outcome, and the record if there is one."""
    outcome = _OUTCOME_FROM_WIRE.get(reply.outcome, Outcome.UNKNOWN)
    return outcome, _record(reply.record) if reply.HasField("record") else None


def _entries(metadata: Metadata) -> list[rifl_pb2.MetadataEntry]:
    return [
        rifl_pb2.MetadataEntry(key=_text(key), value=_value(key, value)) for key, value in metadata
    ]


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _value(key: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        if key.endswith("-bin") or value.isascii():
            return value
        value = value.decode("ascii", "replace")
    return value.encode("ascii", "replace")


def _record(message: rifl_pb2.CompletionRecord) -> CompletionRecord:
    return CompletionRecord(
        message.code,
        message.details,
        message.response if message.has_response else None,
        _metadata(message.initial_metadata),
        _metadata(message.trailing_metadata),
        _OUTCOME_FROM_WIRE.get(message.outcome, Outcome.UNKNOWN),
        message.reason,
        tuple(message.messages),
    )


def _metadata(entries: Collection[rifl_pb2.MetadataEntry]) -> Metadata:
    return tuple(
        (entry.key, entry.value if entry.key.endswith("-bin") else entry.value.decode("ascii"))
        for entry in entries
    )
