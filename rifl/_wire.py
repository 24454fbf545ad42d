"""Between the protocol's bytes and the core's types (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from struct import Struct
from typing import Any

from google.protobuf.message import DecodeError

from rifl._grpc.status import read_error_info
from rifl._labels import without_labels
from rifl.core._serving.keyed_tracker import check_key
from rifl.core._serving.result_tracker import check_acknowledgements
from rifl.core._shared import errors
from rifl.core._shared.call import Call, ranges_from_pairs
from rifl.core._shared.errors import BadHeader, RiflError
from rifl.core._shared.identity import MAX_SEQ
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord, Metadata
from rifl.v1 import rifl_pb2

HEADER_KEY = "rifl-bin"
# The IETF draft's name, for callers with no SDK.
KEY_KEY = "idempotency-key"
OUTCOME_KEY = "rifl-outcome"
STATUS_DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
# Of an ErrorInfo's metadata: the identity that the refusal speaks of, as ``RpcId`` shows it.
RPC_INFO = "rpc"
ATTEMPTS_BY_GRPC_KEY = "grpc-previous-rpc-attempts"
MAX_HEADER_BYTES = 4096
# gRPC's default receive limit, which holds unless a header says otherwise.
MAX_RESPONSE_BYTES = 4 << 20
_MAX_CONTENT_HASH_BYTES = 64
_FINGERPRINT_BYTES = 16

_REASONS: dict[str, type[RiflError]] = {
    cls.reason: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, RiflError)
}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_OUTCOME_TO_WIRE = {
    Outcome.EXECUTED: rifl_pb2.OUTCOME_EXECUTED,
    Outcome.REPLAYED: rifl_pb2.OUTCOME_REPLAYED,
    Outcome.NOT_EXECUTED: rifl_pb2.OUTCOME_NOT_EXECUTED,
    Outcome.UNKNOWN: rifl_pb2.OUTCOME_UNKNOWN,
}
# A record's field 10, with its tag: to be put behind the rest of it, since messages that
# follow one another are one message to protobuf.
seed_field = partial(Struct("<BQ").pack, 0x51)
_OUTCOME_FROM_WIRE = {number: outcome for outcome, number in _OUTCOME_TO_WIRE.items()}


def find_header(metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """Return the value of the call's header, None where it has none."""
    for key, value in metadata:
        if key == HEADER_KEY:
            return value  # type: ignore[return-value]
    return None


def is_repeated(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether a call's header says that this is not its first attempt."""
    try:
        return rifl_pb2.CallHeader.FromString(find_header(metadata) or b"").attempt > 1
    except DecodeError:
        return False


def find_key(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the plain key a caller sent, None where it sent none.

    Raises ``BadHeader`` where it sent several: nobody can tell which one counts.
    """
    found: list[Any] = [value for key, value in metadata if key == KEY_KEY]
    if len(found) > 1:
        raise BadHeader(f"a call has one {KEY_KEY}, not {len(found)}")
    return found[0] if found else None


def parse_key(text: str) -> bytes:
    """Return the key that a plain text stands for; raises ``BadHeader``."""
    if not (text.isascii() and text.isprintable()):
        raise BadHeader("a key is printable ASCII")
    key = text.encode()
    check_key(key)
    return key


def stream_fields(value: bytes) -> tuple[int, bytes]:
    """Return what a valid header says of a stream: messages received, content hash."""
    header = rifl_pb2.CallHeader.FromString(value)
    return header.received, header.content_hash


@lru_cache(maxsize=4096)
def _begun(method: str, hashed: bool = False) -> blake2b:
    if "\0" in method:
        # It tells a payload from its hash, below.
        raise BadHeader("the name of a method has no NUL")
    person = blake2b(method.encode() + b"\x00" * hashed, digest_size=blake2b.PERSON_SIZE).digest()
    return blake2b(digest_size=_FINGERPRINT_BYTES, person=person)


def fingerprint(method: str, request: bytes, content_hash: bytes = b"") -> bytes:
    """Return 16 bytes that tell one payload of one method from any other."""
    # Setting one up costs more than hashing a small request: copied, it costs half.
    hashed = (_begun(method, True) if content_hash else _begun(method)).copy()
    hashed.update(content_hash or request)
    return hashed.digest()


def parse_call(value: bytes, method: str, request: bytes) -> Call:
    """Parse a header and check it against itself.

    Raises ``BadHeader`` for anything that is not a valid header, whatever the
    bytes; nothing else is raised for input from a peer.
    """
    if len(value) > MAX_HEADER_BYTES:
        raise BadHeader(f"a header has at most {MAX_HEADER_BYTES} bytes, not {len(value)}")
    try:
        header = rifl_pb2.CallHeader.FromString(value)
    except DecodeError:
        raise BadHeader("the header is not a rifl.v1.CallHeader") from None
    content_hash = header.content_hash
    if content_hash and len(content_hash) > _MAX_CONTENT_HASH_BYTES:
        raise BadHeader(f"a content hash has at most {_MAX_CONTENT_HASH_BYTES} bytes")
    client_id = header.client_id
    if not client_id:
        raise BadHeader("the header has no client id")
    first_incomplete = header.first_incomplete or 1
    seq: int | None = None
    key: bytes | None = None
    completed: Sequence[tuple[int, int]] = ()
    kind = header.WhichOneof("identity")
    if kind == "seq":
        seq = header.seq
        if pairs := header.completed:
            completed = ranges_from_pairs(first_incomplete, pairs)
        if completed or not 1 <= first_incomplete <= seq <= MAX_SEQ:
            check_acknowledgements(seq, first_incomplete, completed)
    elif kind == "key":
        key = header.key
        check_key(key)
        if first_incomplete != 1 or header.completed:
            raise BadHeader("keyed calls carry no acknowledgements")
    else:
        raise BadHeader("the header has neither a seq nor a key")
    call = Call(
        client_id,
        header.token,
        seq,
        key,
        first_incomplete,
        completed,
        header.attempt or 1,
        fingerprint(method, request, content_hash),
        method,
    )
    if limit := header.max_response_bytes:
        call.max_response_bytes = limit
    if configuration := header.configuration:
        call.configuration = configuration
        if conflict_keys := header.conflict_keys:
            call.conflict_keys = frozenset(conflict_keys)
    if seq is not None:
        call.seed = header.seed
    if store := header.store:
        call.store = store
    call.stamp = (header.time_us, header.seed)
    return call


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    if number < 1 << 7:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    if number < 1 << 21:
        return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14))
    return bytes((number & 127 | 128, number >> 7 & 127 | 128, number >> 14 & 127 | 128)) + (
        varint(number >> 21)
    )


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
    """Serialise a record for a store; neighbouring versions read each other's."""
    code, details, response, initial, trailing, outcome, reason, messages = record
    if (
        outcome is Outcome.EXECUTED
        and response
        and not (code or details or initial or trailing or reason or messages)
    ):
        # Nearly all records: a response and nothing else. Fields 3, 6 and 8, as
        # protobuf writes them, at a fifth of the cost.
        return b"\x1a" + varint(len(response)) + response + b"\x30\x01\x40\x01"
    return record_to_message(record).SerializeToString()


def outcome_to_wire(outcome: Outcome) -> rifl_pb2.Outcome:
    """Return the enum value of an outcome."""
    return _OUTCOME_TO_WIRE[outcome]


def outcome_from_wire(number: rifl_pb2.Outcome) -> Outcome:
    """Return the outcome of an enum value; one we do not know is unknown."""
    return _OUTCOME_FROM_WIRE.get(number, Outcome.UNKNOWN)


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


def record_from_message(message: rifl_pb2.CompletionRecord) -> CompletionRecord:
    """Read a record that came inside another message."""
    return _record(message)


def parse_outcome(metadata: Iterable[tuple[str, str | bytes]] | None) -> Outcome | None:
    """Return the outcome an answer's trailing metadata names, None if none."""
    for key, value in metadata or ():
        if key == OUTCOME_KEY:
            return _OUTCOMES.get(value if isinstance(value, str) else "")
    return None


def parse_resolution(reply: rifl_pb2.ResolveReply) -> tuple[Outcome, CompletionRecord | None]:
    """Return what a ``ResolveReply`` says: an outcome, and the record if there is one."""
    outcome = _OUTCOME_FROM_WIRE.get(reply.outcome, Outcome.UNKNOWN)
    return outcome, _record(reply.record) if reply.HasField("record") else None


def error_class(reason: str) -> type[RiflError] | None:
    """Return the class of an ErrorInfo reason, None for one we do not know."""
    return _REASONS.get(reason)


def read_refusal(
    metadata: Iterable[tuple[str, str | bytes]] | None,
) -> tuple[str, dict[str, str], float | None] | None:
    """Return reason, ErrorInfo metadata and seconds to wait of a refusal of ours.

    None for any other error; never raises on what a peer sent.
    """
    return read_error_info(tuple(metadata or ()))


def _entries(metadata: Metadata) -> list[rifl_pb2.MetadataEntry]:
    return [
        rifl_pb2.MetadataEntry(key=_text(key), value=_value(key, value)) for key, value in metadata
    ]


# What a handler said is recorded whatever it is: it ran. gRPC itself sends no
# text with lone surrogates (parts of file names) and no text entry but in ASCII.


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


def _metadata(entries: Iterable[rifl_pb2.MetadataEntry]) -> Metadata:
    # Also what a version recorded that did not strip what handlers say.
    return without_labels(
        tuple(
            (entry.key, entry.value if entry.key.endswith("-bin") else entry.value.decode("ascii"))
            for entry in entries
        )
    )
