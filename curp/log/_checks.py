"""Rules that every engine has alike: bounds, and what a write is conditional on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from curp.log._errors import (
    ConditionFailed,
    CorruptLog,
    InvalidRequest,
    LeadershipOver,
    TailMismatch,
)
from curp.log._values import EngineLimits, MetadataCondition, NewLogEntry

APPEND_ID_BYTES = 16
MAX_APPEND_ENTRIES = 10_000
# The most bytes of one append's bodies and tags together.
MAX_APPEND_BYTES = 64 << 20
LIMITS = EngineLimits(MAX_APPEND_ENTRIES, MAX_APPEND_BYTES)
MAX_TAGS = 64
MAX_CHUNK_BYTES = 64 << 20
_MAX_NAME_BYTES = 256
_MAX_VALUE_BYTES = 1 << 20
_MAX_KEYS = 1_000


def check_append(
    entries: Sequence[NewLogEntry],
    expected_tail: int,
    append_id: bytes,
    condition: MetadataCondition | None,
    metadata: Mapping[str, bytes | None] | None,
) -> None:
    """Raise ``InvalidRequest`` for an append that no engine takes."""
    if len(append_id) != APPEND_ID_BYTES:
        raise InvalidRequest(f"an append id has {APPEND_ID_BYTES} bytes, not {len(append_id)}")
    if not 1 <= len(entries) <= MAX_APPEND_ENTRIES:
        raise InvalidRequest(f"{len(entries)} entries; an append has 1 to {MAX_APPEND_ENTRIES}")
    if expected_tail < 0:
        raise InvalidRequest(f"no tail is {expected_tail}")
    size = 0
    for entry in entries:
        if len(entry.tags) > MAX_TAGS or len(set(entry.tags)) != len(entry.tags):
            raise InvalidRequest(f"an entry has up to {MAX_TAGS} tags, each of them once")
        size += len(entry.body) + sum(_check_name("tag", tag) for tag in entry.tags)
    if size > MAX_APPEND_BYTES:
        raise InvalidRequest(f"{size} bytes; an append has up to {MAX_APPEND_BYTES}")
    check_metadata(metadata or {}, condition)


def check_metadata(
    metadata: Mapping[str, bytes | None], condition: MetadataCondition | None = None
) -> None:
    """Raise ``InvalidRequest`` for keys or values that no engine takes."""
    if len(metadata) > _MAX_KEYS:
        raise InvalidRequest(f"{len(metadata)} metadata keys; one write has up to {_MAX_KEYS}")
    pairs = [*metadata.items(), *([condition] if condition else [])]
    for key, value in pairs:
        _check_name("metadata key", key)
        if value is not None and len(value) > _MAX_VALUE_BYTES:
            raise InvalidRequest(f"the value of {key!r} has more than {_MAX_VALUE_BYTES} bytes")


def check_leader(replica: str, address: str, term_s: float) -> None:
    """Raise ``InvalidRequest`` for a leader that cannot be one."""
    _check_name("replica", replica)
    if len(address.encode()) > _MAX_NAME_BYTES:
        raise InvalidRequest(f"an address has up to {_MAX_NAME_BYTES} bytes")
    check_term(term_s)


def check_term(term_s: float) -> None:
    """Raise ``InvalidRequest`` for a lease that would be over at once, or never."""
    if not 0 < term_s < float("inf"):
        raise InvalidRequest(f"a lease has a term in seconds, not {term_s}")


def check_read(after: int, limit: int, max_bytes: int, tag: str | None) -> None:
    """Raise ``InvalidRequest`` for a read of nothing."""
    if after < 0 or limit < 1 or max_bytes < 1:
        raise InvalidRequest(f"no entries are after {after}, limit {limit}, bytes {max_bytes}")
    if tag is not None:
        _check_name("tag", tag)


def check_position(after: int, tail: int) -> None:
    """Raise ``CorruptLog`` if the log ends before ``after``: it lost what it had.

    A reader got its position from this log.
    """
    if after > tail:
        raise CorruptLog(f"the log went back: it ends at {tail}, and {after} was read from it")


def check_snapshot(lsn: int, newest: int | None, tail: int) -> None:
    """Raise ``InvalidRequest`` for a snapshot of what is not in the log, or an older one."""
    if not 0 <= lsn <= tail:
        raise InvalidRequest(f"a snapshot at {lsn} of a log that ends at {tail}")
    if newest is not None and lsn < newest:
        raise InvalidRequest(f"a snapshot at {lsn} in the place of one at {newest}")


def check_chunk(chunk: bytes) -> None:
    """Raise ``InvalidRequest`` for a chunk of a snapshot that is too large."""
    if len(chunk) > MAX_CHUNK_BYTES:
        raise InvalidRequest(f"{len(chunk)} bytes; a chunk has up to {MAX_CHUNK_BYTES}")


def check_trim(through: int, snapshot: int | None) -> None:
    """Raise ``InvalidRequest`` for a trim of entries that no snapshot covers."""
    if through < 0 or through > (snapshot or 0):
        raise InvalidRequest(f"a trim through {through}, and the snapshot is at {snapshot or 0}")


def require_configuration(given: int, current: int) -> None:
    """Raise ``LeadershipOver`` unless the writer's number is the current one, which is above 0.

    ``CorruptLog`` for one above it: the store has forgotten that it gave it.
    """
    if given > current:
        raise CorruptLog(f"the configuration number went back: it is {current}, not {given}")
    if given != current or given < 1:
        raise LeadershipOver(f"the configuration number is {current}, and the writer has {given}")


def require_tail(expected: int, found: int) -> None:
    """Raise ``TailMismatch`` unless the tail is where the writer expects it."""
    if expected != found:
        raise TailMismatch(f"the log ends at {found}, and the writer expects {expected}", found)


def require_condition(condition: MetadataCondition | None, found: bytes | None) -> None:
    """Raise ``ConditionFailed`` unless the key holds exactly what the writer expects."""
    if condition is not None and condition.value != found:
        raise ConditionFailed(f"the metadata key {condition.key!r} holds something else")


def _check_name(what: str, name: str) -> int:
    size = len(name.encode())
    if not 1 <= size <= _MAX_NAME_BYTES:
        raise InvalidRequest(f"a {what} has 1 to {_MAX_NAME_BYTES} bytes, not {size}")
    return size
