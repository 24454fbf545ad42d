"""The content of rows: a hash of each one's values, and their sum in any partitions (§16)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from sharedlog._core.envelope import BYTES
from sharedlog._core.query.attempt import CONTENT, Sample

# How many hashes a task tells of a batch that was committed before; of more rows it tells a part.
_TOLD = 16_384
# Beyond so many bytes a value is hashed by itself.
_LONG = 512
_types = pyarrow.types
_Hashes = Any  # an array of numpy's, of unsigned 64-bit numbers


def _word(number: int) -> Any:
    return numpy.uint64(number)


_FIRST, _SECOND, _THIRD = map(_word, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_S27, _S30, _S31, _S32 = map(_word, (27, 30, 31, 32))
_NULL = _word(0x6A09E667F3BCC909)
_MASKS = numpy.array([(1 << 8 * size) - 1 for size in range(9)], numpy.uint64)


class Content:
    """What the rows of a task are: the sum of their hashes, and a sample of these."""

    def __init__(self, *, sampled: bool = False) -> None:
        """Of no rows. ``sampled``: whether they may have to be told from others one by one."""
        self.sum = 0
        self._sampled = sampled
        self._kept: list[_Hashes] = []
        self._count = self._bits = 0

    def add(self, hashes: _Hashes) -> None:
        """Add rows by their hashes."""
        self.sum = (self.sum + int(hashes.sum())) & CONTENT
        if self._sampled:
            self._kept.append(sampled(hashes, self._bits))
            self._count += len(self._kept[-1])
            while self._count > _TOLD:
                self._bits += 1
                self._kept = [sampled(numpy.concatenate(self._kept), self._bits)]
                self._count = len(self._kept[0])

    def sample(self) -> Sample | None:
        """Return which rows they are, or a part of them."""
        if not self._sampled:
            return None
        kept = numpy.concatenate(self._kept) if self._kept else numpy.zeros(0, numpy.uint64)
        return Sample(kept.astype("<u8").tobytes(), self._bits)


def sampled(hashes: _Hashes, bits: int) -> _Hashes:
    """Return one of ``2**bits`` hashes: of equal rows all, or none."""
    return hashes[hashes & _word((1 << bits) - 1) == 0] if bits else hashes


def hashes_of(samples: Sequence[Sample], bits: int) -> _Hashes:
    """Return what tasks told, as one part of all."""
    told = [numpy.frombuffer(each.hashes, "<u8").astype(numpy.uint64) for each in samples]
    return sampled(numpy.concatenate(told), bits)


def row_hashes(columns: Sequence[pyarrow.Array]) -> _Hashes:
    """Return a hash of each row of columns that have equally many."""
    found = _hashes(columns[0])
    for each in columns[1:]:
        found = found * _FIRST + _hashes(each)
    return _mixed(found)


def message_hashes(batch: pyarrow.RecordBatch, *, times: bool = True) -> _Hashes:
    """Return a hash of each row whose columns are the parts of a message, as a reader has them.

    A part that the batch lacks is as one that is null. ``times``: whether event times count, where
    a row has one; a message always has.
    """
    found = numpy.zeros(batch.num_rows, numpy.uint64)
    for name, empty in (
        *(("value", None), ("key", None), ("headers", []), ("content_type", BYTES)),
        *(("schema_name", ""), ("causation_id", ""), ("event_time", None)),
    ):
        found *= _FIRST
        if name in batch.schema.names and (times or name != "event_time"):
            column = batch.column(name)
            if name == "content_type":
                column = pyarrow.compute.if_else(pyarrow.compute.equal(column, ""), BYTES, column)
            hashes = _hashes(column)
            if empty is not None and column.null_count:
                hashes[_nulls(column)] = _constant(column.type, empty)
            found += hashes
        else:
            found += _NULL if empty is None else _constant(_TYPES[name], empty)
    return _mixed(found)


_TYPES = {
    "headers": pyarrow.map_(pyarrow.string(), pyarrow.binary()),
    **dict.fromkeys(("content_type", "schema_name", "causation_id"), pyarrow.string()),
}


def _constant(of: pyarrow.DataType, value: Any) -> Any:
    return _hashes(pyarrow.array([value], of))[0]


def _hashes(column: pyarrow.Array) -> _Hashes:
    """Return a hash of each value; two of one value are equal in columns of one type."""
    found = _of_values(column)
    if column.null_count:
        found[_nulls(column)] = _NULL
    return found


def _of_values(column: pyarrow.Array) -> _Hashes:
    of = column.type
    for is_one, hashed in _KINDS:
        if is_one(of):
            return hashed(column)
    if _types.is_null(of):
        return numpy.full(len(column), _NULL)
    if _types.is_primitive(of) and of.bit_width in (8, 16, 32, 64):
        return _mixed(_numbers(column, f"u{of.bit_width // 8}"))
    return numpy.array([_digest(repr(each).encode()) for each in column.to_pylist()], numpy.uint64)


def _mixed(numbers: _Hashes) -> _Hashes:
    """Return numbers whose every bit depends on all bits of what is given (SplitMix64)."""
    other = numbers >> _S30
    mixed = numbers ^ other
    mixed += _FIRST
    mixed *= _SECOND
    numpy.right_shift(mixed, _S27, out=other)
    mixed ^= other
    mixed *= _THIRD
    numpy.right_shift(mixed, _S31, out=other)
    mixed ^= other
    return mixed


def _numbers(column: pyarrow.Array, kind: str, width: int = 1) -> _Hashes:
    """Return the bytes of values of one size as unsigned numbers, ``width`` for each value."""
    first, count = column.offset * width, len(column) * width
    found = numpy.frombuffer(column.buffers()[1] or b"", kind)[first : first + count]
    return found.astype(numpy.uint64)


def _booleans(column: pyarrow.Array) -> _Hashes:
    return _mixed(_numbers(column.cast(pyarrow.uint8()), "u1"))


def _decimals(column: pyarrow.Array) -> _Hashes:
    halves = _numbers(column, "u8", 2).reshape(-1, 2)
    return _mixed(_mixed(halves[:, 0]) * _FIRST + halves[:, 1])


def _nulls(column: pyarrow.Array) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False)


def _strings(column: pyarrow.Array) -> _Hashes:
    """Hash all values at once, a word of eight bytes of each after the other."""
    offsets = _offsets(column)
    begin, end = int(offsets[0]), int(offsets[-1])
    held = numpy.zeros(end - begin + 8, numpy.uint8)
    if end > begin:
        held[:-8] = numpy.frombuffer(column.buffers()[2], numpy.uint8)[begin:end]
    # The word at each byte, without a copy.
    words: _Hashes = numpy.ndarray((len(held) - 7,), "<u8", held, strides=(1,))
    at, left = offsets[:-1] - begin, numpy.diff(offsets)
    found = left.astype(numpy.uint64) * _FIRST
    rows = None
    long = numpy.flatnonzero(left > _LONG)
    for row in long:
        found[row] = _digest(held[at[row] : at[row] + left[row]].tobytes())
    if len(long):
        left[long] = 0
    while True:
        if len(left) and left.min() <= 0:
            more = numpy.flatnonzero(left > 0)
            at, left = at[more], left[more]
            rows = more if rows is None else rows[more]
        if not len(left):
            return _mixed(found)
        word = words[at] & _MASKS[numpy.minimum(left, 8)]
        some = found if rows is None else found[rows]
        some ^= word
        some *= _SECOND
        some ^= some >> _S32
        if rows is not None:
            found[rows] = some
        at, left = at + 8, left - 8


def _structs(column: pyarrow.StructArray) -> _Hashes:
    found = numpy.zeros(len(column), numpy.uint64)
    for at in range(column.type.num_fields):
        found = found * _FIRST + _hashes(column.field(at))
    return _mixed(found)


def _lists(column: pyarrow.ListArray) -> _Hashes:
    offsets = _offsets(column)
    sizes = numpy.diff(offsets)
    places = numpy.arange(offsets[-1] - offsets[0]) - numpy.repeat(offsets[:-1] - offsets[0], sizes)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    return _summed(_mixed(_hashes(values) + places.astype(numpy.uint64) * _SECOND), offsets)


def _maps(column: pyarrow.MapArray) -> _Hashes:
    # In whatever order their entries are.
    offsets = _offsets(column)
    part = (int(offsets[0]), int(offsets[-1] - offsets[0]))
    keys, items = column.keys.slice(*part), column.items.slice(*part)
    return _summed(_mixed(_hashes(keys) * _FIRST + _hashes(items)), offsets)


def _summed(parts: _Hashes, offsets: Any) -> _Hashes:
    total = numpy.zeros(len(parts) + 1, numpy.uint64)
    numpy.cumsum(parts, out=total[1:])
    at = offsets - offsets[0]
    return _mixed(total[at[1:]] - total[at[:-1]] + numpy.diff(offsets).astype(numpy.uint64))


def _offsets(column: pyarrow.Array) -> Any:
    """Return where each value begins, and where the last one ends."""
    large = _types.is_large_string(column.type) or _types.is_large_binary(column.type)
    large = large or _types.is_large_list(column.type)
    kind = numpy.int64 if large else numpy.int32
    held = numpy.frombuffer(column.buffers()[1] or b"", kind)
    found = held[column.offset : column.offset + len(column) + 1].astype(numpy.int64)
    return found if len(found) else numpy.zeros(1, numpy.int64)


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


_KINDS: Sequence[tuple[Callable[[Any], bool], Callable[[Any], _Hashes]]] = (
    (lambda of: _types.is_string(of) or _types.is_large_string(of), _strings),
    (lambda of: _types.is_binary(of) or _types.is_large_binary(of), _strings),
    (_types.is_boolean, _booleans),
    (_types.is_decimal128, _decimals),
    (_types.is_struct, _structs),
    (lambda of: _types.is_list(of) or _types.is_large_list(of), _lists),
    (_types.is_map, _maps),
)
