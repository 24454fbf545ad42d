"""Conflict keys: what a call conflicts with, from its bytes (CURP §3.2; DESIGN §7).

Two calls commute when they share no conflict key. A key is an 8-byte hash of a
value, found in the request by field numbers without knowing its message type, so
that clients, witnesses and the leader find the same ones.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

# A call with more conflicts with everything.
MAX_CONFLICT_KEYS = 64
# A request with more has keys that are not worth finding.
MAX_FIELDS_SCANNED = 4096
_MAX_DEPTH = 16
_UINT64 = (1 << 64) - 1

KeyValue: TypeAlias = str | bytes | int
_Keys = frozenset[int]
_NONE: _Keys = frozenset()


class FieldType(enum.IntEnum):
    """The types of fields that can be keys, by protobuf's own numbers."""

    INT64 = 3
    UINT64 = 4
    INT32 = 5
    FIXED64 = 6
    FIXED32 = 7
    BOOL = 8
    STRING = 9
    BYTES = 12
    UINT32 = 13
    ENUM = 14
    SFIXED32 = 15
    SFIXED64 = 16
    SINT32 = 17
    SINT64 = 18


class KeyField(NamedTuple):
    """Where a request holds a conflict key.

    ``path``: field numbers from the request down; ``repeated_at``: the positions in
    it of repeated fields (a map is one, of entries with their key at number 1).
    ``default``: the canonical value that counts when the field is absent, None where
    the field itself is repeated.
    """

    path: tuple[int, ...]
    type: FieldType
    space: str = ""
    default: bytes | None = None
    repeated_at: frozenset[int] = frozenset()


def canonical(value: KeyValue) -> bytes:
    """Return the bytes that stand for a value: equal for equal numbers of any field type.

    Integers (and booleans) as 8 bytes, modulo 2^64; text as UTF-8. TypeError for
    anything else.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        # Lone surrogates, which no field can hold, must not stop a callable's call.
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return (value & _UINT64).to_bytes(8, "little")
    raise TypeError(f"a conflict key is text, bytes or an integer, not {type(value).__name__}")


def conflict_key(space: str, value: bytes) -> int:
    """Return the hash of a canonical value in a space: 64 bits, the same in every process."""
    return _hash(value, _person(space))


def keys_of_values(values: KeyValue | Iterable[KeyValue] | None) -> _Keys:
    """Return the keys of what a user's callable returned: a value, several, or None.

    No values, or too many, are no keys: the call conflicts with everything. Raises
    TypeError for what cannot be a key.
    """
    if values is None:
        return _NONE
    if isinstance(values, str | bytes | int):
        values = (values,)
    keys = frozenset(conflict_key("", canonical(value)) for value in values)
    return keys if len(keys) <= MAX_CONFLICT_KEYS else _NONE


def recorded_keys(said: _Keys) -> _Keys:
    """Return the keys that a record goes by where its caller says them; too many are none."""
    return said if len(said) <= MAX_CONFLICT_KEYS else _NONE


def covers(recorded: _Keys, needed: _Keys) -> bool:
    """Whether a call held under ``recorded`` keeps out all that conflicts under ``needed``.

    Two held calls that are both covered commute: a witness holds none that share a
    recorded key, and needed ones are among those.
    """
    return not recorded or (bool(needed) and needed <= recorded)


def keys_of_all(calls: Iterable[_Keys]) -> _Keys:
    """Return the keys of calls that are one operation to others: none if one of them has none."""
    found: set[int] = set()
    for keys in calls:
        if not keys:
            return _NONE
        found |= keys
    return frozenset(found)


class KeyFinder:
    """Finds the conflict keys of a method's requests. Immutable; any thread.

    What cannot be read with certainty (a request that is malformed, of another
    shape than declared, or beyond the bounds) has no keys, which is always safe. A
    singular field that occurs twice counts with all its values, though a parser
    keeps the last: keys too many cost speed, one too few would cost order.
    """

    def __init__(self, fields: Sequence[KeyField]) -> None:
        """Raises ValueError for fields that cannot be in one message."""
        self._root = _Level()
        for field in fields:
            if not 1 <= len(field.path) <= _MAX_DEPTH or min(field.path) < 1:
                raise ValueError(f"{field.path} is not a path of field numbers")
            self._root.add(field, 0)

    def find(self, request: bytes) -> _Keys:
        """Return the request's keys; empty: it conflicts with everything."""
        found: set[int] = set()
        try:
            left = self._root.scan(request, 0, len(request), found, MAX_FIELDS_SCANNED)
        except (_Unreadable, IndexError):
            return _NONE
        if left < 0 or len(found) > MAX_CONFLICT_KEYS:
            return _NONE
        return frozenset(found)


class _Unreadable(Exception):
    pass


class _Leaf(NamedTuple):
    wire_type: int
    # From the varint, or from the bytes, to the canonical value.
    read: Callable[[Any], bytes]
    person: bytes
    repeated: bool
    when_absent: int | None


class _Level:
    """The key fields of one message, by number."""

    __slots__ = ("leaves", "levels", "repeated", "when_absent")

    def __init__(self, *, repeated: bool = False) -> None:
        self.leaves: dict[int, list[_Leaf]] = {}
        self.levels: dict[int, _Level] = {}
        self.repeated = repeated
        # The keys of a message that is not there.
        self.when_absent: set[int] = set()

    def add(self, field: KeyField, depth: int) -> None:
        number, repeated = field.path[depth], depth in field.repeated_at
        last = depth == len(field.path) - 1
        if number in (self.levels if last else self.leaves):
            raise ValueError(f"field {number} of {field.path} is a message and is none")
        person = _person(field.space)
        if field.default is not None and not field.repeated_at.intersection(
            range(depth, len(field.path))
        ):
            self.when_absent.add(_hash(field.default, person))
        if last:
            wire_type, read = _READERS[field.type]
            default = None if repeated or field.default is None else _hash(field.default, person)
            leaf = _Leaf(wire_type, read, person, repeated, default)
            self.leaves.setdefault(number, []).append(leaf)
            return
        level = self.levels.setdefault(number, _Level(repeated=repeated))
        if level.repeated is not repeated:
            raise ValueError(f"field {number} of {field.path} is repeated and is not")
        level.add(field, depth + 1)

    def scan(self, data: bytes, at: int, end: int, found: set[int], left: int) -> int:
        """Add the keys between two positions; return how many more fields may be read."""
        leaves, levels = self.leaves, self.levels
        seen = []
        while at < end:
            left -= 1
            if left < 0:
                return left
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = _varint(data, at - 1)
            number, wire_type = tag >> 3, tag & 7
            start = at
            value: Any = None
            if wire_type == 0:
                value = data[at]
                at += 1
                if value > 127:
                    value, at = _varint(data, start)
            elif wire_type == 2:
                length = data[at]
                start = at + 1
                if length > 127:
                    length, start = _varint(data, at)
                at = start + length
            elif wire_type == 1:
                at += 8
            elif wire_type == 5:
                at += 4
            else:
                # Groups, which no request of today has, and numbers without meaning.
                raise _Unreadable
            if at > end or not number:
                raise _Unreadable
            if number in leaves:
                seen.append(number)
                for leaf in leaves[number]:
                    if leaf.wire_type == wire_type:
                        if value is None:
                            value = data[start:at]
                        found.add(_hash(leaf.read(value), leaf.person))
                    elif leaf.repeated and wire_type == 2:
                        left = _scan_packed(data, start, at, leaf, found, left)
                    else:
                        raise _Unreadable
            elif number in levels:
                if wire_type != 2:
                    raise _Unreadable
                seen.append(number)
                left = levels[number].scan(data, start, at, found, left)
        for number in leaves.keys() - seen:
            found.update(
                leaf.when_absent for leaf in leaves[number] if leaf.when_absent is not None
            )
        for number in levels.keys() - seen:
            if not levels[number].repeated:
                found |= levels[number].when_absent
        return left


def _scan_packed(data: bytes, at: int, end: int, leaf: _Leaf, found: set[int], left: int) -> int:
    width = {0: 0, 1: 8, 5: 4}.get(leaf.wire_type)
    if width is None:
        raise _Unreadable
    while at < end and left >= 0:
        left -= 1
        value: Any
        if width:
            value = data[at : at + width]
            at += width
        else:
            value, at = _varint(data, at)
        if at > end:
            raise _Unreadable
        found.add(_hash(leaf.read(value), leaf.person))
    return left


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _UINT64, at
    raise _Unreadable


def _hash(value: bytes, person: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8, person=person).digest(), "little")


@lru_cache(maxsize=1024)
def _person(space: str) -> bytes:
    return blake2b(space.encode(), digest_size=blake2b.PERSON_SIZE).digest()


def _unsigned32(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(8, "little")


def _signed32(value: int) -> bytes:
    return canonical((value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000)


def _zigzag(value: int) -> bytes:
    return canonical(value >> 1 ^ -(value & 1))


# As parsers read them: 32-bit fields keep the low bits of a varint.
_READERS: dict[FieldType, tuple[int, Callable[[Any], bytes]]] = {
    FieldType.INT64: (0, canonical),
    FieldType.UINT64: (0, canonical),
    FieldType.SINT64: (0, _zigzag),
    FieldType.INT32: (0, _signed32),
    FieldType.ENUM: (0, _signed32),
    FieldType.UINT32: (0, _unsigned32),
    FieldType.SINT32: (0, lambda value: _zigzag(value & 0xFFFFFFFF)),
    FieldType.BOOL: (0, lambda value: canonical(bool(value))),
    FieldType.FIXED64: (1, bytes),
    FieldType.SFIXED64: (1, bytes),
    FieldType.FIXED32: (5, lambda value: value + bytes(4)),
    FieldType.SFIXED32: (5, lambda value: _signed32(int.from_bytes(value, "little"))),
    FieldType.STRING: (2, bytes),
    FieldType.BYTES: (2, bytes),
}
