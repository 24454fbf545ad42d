"""The call header, by protobuf: the entry that names a call, and its reader (DESIGN §3).

``packed_header`` reads and writes most headers without protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from google.protobuf.message import DecodeError

from rifl.core._shared.call import Call, check_acknowledgements, ranges_from_pairs
from rifl.core._shared.errors import BadHeader
from rifl.core._shared.identity import MAX_SEQ, check_key
from rifl.v1 import rifl_pb2

HEADER_KEY = "rifl-bin"
# The IETF draft's name, for callers with no SDK.
KEY_KEY = "idempotency-key"
ATTEMPTS_BY_GRPC_KEY = "grpc-previous-rpc-attempts"
MAX_HEADER_BYTES = 4096
# gRPC's default receive limit, which holds unless a header says otherwise.
MAX_RESPONSE_BYTES = 4 << 20
_MAX_CONTENT_HASH_BYTES = 64
_FINGERPRINT_BYTES = 16


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

    Raises ``BadHeader`` if it sent several: it is unknown which one counts.
    """
    found: list[Any] = [value for key, value in metadata if key == KEY_KEY]
    if len(found) > 1:
        raise BadHeader(f"a call has one {KEY_KEY}, not {len(found)}")
    return found[0] if found else None


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
    if try_ms := header.try_ms:
        call.try_ms = try_ms
    if store := header.store:
        call.store = store
    call.stamp = (header.time_us, header.seed)
    return call
