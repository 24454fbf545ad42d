"""The state of a shard that is kept in the log: a table in memory, and changes to it (T4).

Keys are texts, values are bytes that the log half does not look into. What handlers change in a
transaction is beside the table until it is committed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from sharedlog._core.envelope import About, pack, unpack
from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat, SealedMessage
from sharedlog._core.sealing import Seals, opened

MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 256 << 10
# Of one transaction, which is in memory until it is appended.
MOST_BYTES = 64 << 20
CONTENT_TYPE = "application/x-sharedlog-state"
# Of one change, beside key and value.
_EACH_BYTES = 16
_VERSION = 1
_HEAD = struct.Struct(">BI")
_REMOVED = 0xFFFFFFFF

Item = tuple[str, bytes | None]
# Of many items: a list of each takes a fraction of what as many tuples take.
Columns = tuple[list[str], list[bytes | None]]

# What was changed by then: values, about what they take, and how many keys they add.
Kept = tuple[Mapping[str, bytes | None], int, int]


class Changes:
    """What a transaction has changed of a table; ``None`` in place of what it has removed."""

    def __init__(self, table: Mapping[str, bytes]) -> None:
        """``table``: as it was committed; it does not change meanwhile."""
        self._table = table
        self.changed: dict[str, bytes | None] = {}
        # About what it takes in an append.
        self.size = 0
        self._added = 0

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, None: there is none."""
        if key in self.changed:
            return self.changed[key]
        return self._table.get(key)

    def put(self, key: str, value: bytes | None) -> None:
        """Set a key, or remove it; raises ``InvalidRequest`` for what is too large."""
        length = len(key.encode())
        if not length or length > MAX_KEY_BYTES:
            raise InvalidRequest(f"a key of {length} bytes; it has 1 to {MAX_KEY_BYTES}")
        size = 0 if value is None else len(value)
        if size > MAX_VALUE_BYTES:
            raise InvalidRequest(f"a value of {size} bytes; {MAX_VALUE_BYTES} are the most")
        grown = self.size + length + size + _EACH_BYTES
        if grown > MOST_BYTES:
            raise InvalidRequest(f"a transaction changes {MOST_BYTES} bytes of its state at most")
        self._added += (value is not None) - (self.get(key) is not None)
        self.size = grown
        self.changed[key] = value

    def kept(self) -> Kept:
        """Return what ``back_to`` goes back to."""
        return dict(self.changed), self.size, self._added

    def back_to(self, kept: Kept) -> None:
        """Undo what was changed since."""
        self.changed, self.size, self._added = dict(kept[0]), *kept[1:]

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._table) + self._added

    def __iter__(self) -> Iterator[str]:
        """Of all keys, those of the table first."""
        changed = self.changed
        for key in self._table:
            if changed.get(key, b"") is not None:
                yield key
        for key, value in changed.items():
            if value is not None and key not in self._table:
                yield key


def apply(table: dict[str, bytes], keys: Iterable[str], values: Iterable[bytes | None]) -> int:
    """Change a table; return by how many bytes it has grown."""
    grown = 0
    for key, value in zip(keys, values, strict=True):
        before = table.get(key)
        if before is not None:
            grown -= len(key) + len(before)
        if value is None:
            table.pop(key, None)
        else:
            grown += len(key) + len(value)
            table[key] = value
    return grown


def pieces(items: Iterable[Item], most_bytes: int) -> Iterator[list[Item]]:
    """Part items into pieces of about so many bytes, packed."""
    piece: list[Item] = []
    size = 0
    for each in items:
        key, value = each
        length = len(key.encode()) + (0 if value is None else len(value)) + _EACH_BYTES
        if piece and size + length > most_bytes:
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += length
    if piece:
        yield piece


def packed(items: Sequence[Item], seals: Seals | None, place: str) -> bytes:
    """Return items as an envelope, sealed for a place where the log's messages are."""
    keys = [key for key, _ in items]
    text = "".join(keys).encode()
    lengths = [len(key) for key in keys]
    sizes = [_REMOVED if value is None else len(value) for _, value in items]
    body = b"".join(
        (
            _HEAD.pack(_VERSION, len(items)),
            struct.pack(f">I{2 * len(items)}I", len(text), *lengths, *sizes),
            text,
            *(value for _, value in items if value),
        )
    )
    envelope = pack(body, None, About(content_type=CONTENT_TYPE), 0)
    return envelope if seals is None else seals.sealed(envelope, place)


def unpacked(envelope: bytes, seals: Seals | None, place: str) -> Columns:
    """Return what was packed; raises ``CorruptLog``, ``NewerFormat``, ``SealedMessage``."""
    found, why = opened(envelope, seals, place)
    if why:
        raise SealedMessage(f"a consumer's state is sealed: {why}")
    body = unpack(found).body
    try:
        version, count = _HEAD.unpack_from(body)
        if version > _VERSION:
            raise NewerFormat(f"a state of version {version}: a newer release wrote it")
        length, *numbers = struct.unpack_from(f">I{2 * count}I", body, _HEAD.size)
        at = _HEAD.size + 4 + 8 * count
        text = body[at : at + length].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog("a consumer's state is not what was written") from error
    ends = list(accumulate(numbers[:count]))
    keys = [text[start:end] for start, end in pairwise([0, *ends])]
    sizes = numbers[count:]
    at += length
    values: list[bytes | None]
    if _REMOVED in sizes:
        values = []
        for size in sizes:
            values.append(None if size == _REMOVED else body[at : at + size])
            at += 0 if size == _REMOVED else size
    else:
        places = list(accumulate(sizes, initial=at))
        values = [body[start:end] for start, end in pairwise(places)]
        at = places[-1]
    if version != _VERSION or at != len(body) or (ends[-1] if ends else 0) != len(text):
        raise CorruptLog("a consumer's state is not what was written")
    return keys, values
