"""Scalar fields of requests: which column types fill them, and how. Pure.

A type fits if every value of it does: integers widen and never narrow, nothing is
rounded; values of unsigned fields are checked one by one. Null leaves a field unset, as in
protobuf's JSON mapping: a field without presence then reads as its default.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow
from google.protobuf.descriptor import FieldDescriptor

Convert = Callable[[Any], Any]
_types = pyarrow.types
_F = FieldDescriptor
_SIGNED_32 = {_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32}
_SIGNED_64 = {_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64}
# Spark has no unsigned types: the sign is each value's own matter, and whether a value fits into
# 32 bits, too, since no type of Spark's holds just these.
_UNSIGNED_32 = {_F.TYPE_UINT32, _F.TYPE_FIXED32}
_UNSIGNED_64 = {_F.TYPE_UINT64, _F.TYPE_FIXED64}
_TO_64 = _SIGNED_64 | _UNSIGNED_64
_CHECKED = _TO_64 | _UNSIGNED_32
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICRO = datetime.timedelta(microseconds=1)
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in (
        *("Int32", "Int64", "UInt32", "UInt64"),
        *("Float", "Double", "Bool", "String", "Bytes"),
    )
}
_LARGEST_EXACT_DIGITS = 18
# UnicodeDecodeError is a ValueError, and so are Arrow's own.
_UNREADABLE = (ValueError, OverflowError, pyarrow.ArrowException)
# What google.protobuf.Timestamp (years 1 to 9999) and Duration may hold, in seconds.
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
_LONGEST_S = 315_576_000_000


class Unfit(ValueError):
    """A row whose values do not fit together."""


class BadValue:
    """Stands for a value that cannot be put into its field, with the reason."""

    def __init__(self, why: str) -> None:
        self.why = why


def scalar(kind: Any, field: Any, mismatch: Callable[[], Exception]) -> Convert | None:
    """Return the conversion for a scalar or enum field; None: no conversion.

    Raises what ``mismatch`` makes where not every value of the type would fit.
    """
    to = field.type
    if _types.is_integer(kind):
        allowed = _CHECKED
        if kind.bit_width <= 32:
            allowed = _CHECKED | _SIGNED_32
        if to in allowed or (to == _F.TYPE_ENUM and kind.bit_width <= 32):
            return None
    elif _types.is_string(kind) or _types.is_large_string(kind):
        if to in (_F.TYPE_STRING, _F.TYPE_ENUM):
            return None
    elif _is_bytes(kind):
        if to == _F.TYPE_BYTES:
            return None
    elif _types.is_boolean(kind):
        if to == _F.TYPE_BOOL:
            return None
    elif _types.is_float32(kind):
        if to in (_F.TYPE_FLOAT, _F.TYPE_DOUBLE):
            return None
    elif _types.is_float64(kind):
        if to == _F.TYPE_DOUBLE:
            return None
    elif _types.is_decimal(kind):
        if to == _F.TYPE_STRING:
            return _plain_decimal
        if to in _CHECKED and kind.scale == 0 and kind.precision <= _LARGEST_EXACT_DIGITS:
            return int
    elif _types.is_date(kind) and to == _F.TYPE_STRING:
        return datetime.date.isoformat
    raise mismatch()


def well_known(kind: Any, field: Any, mismatch: Callable[[], Exception]) -> Convert | None:
    """Return the conversion for a message that stands for one value; None for others."""
    name = field.message_type.full_name
    if name == "google.protobuf.Timestamp":
        if not _types.is_timestamp(kind) or kind.tz is None:
            raise mismatch()
        return _timestamp
    if name == "google.protobuf.Duration":
        if not _types.is_duration(kind):
            raise mismatch()
        return _duration
    if name in _WRAPPERS:
        convert = scalar(kind, field.message_type.fields_by_name["value"], mismatch)
        return lambda value: {"value": value if convert is None else convert(value)}
    if name == "google.type.Date" and _types.is_date(kind):
        return lambda value: {"year": value.year, "month": value.month, "day": value.day}
    if name == "google.type.Decimal" and _types.is_decimal(kind):
        return lambda value: {"value": _plain_decimal(value)}
    return None


def bulk(column: Any, convert: Convert | None) -> list[Any]:
    """Return a column's values as its field takes them, None for null."""
    if convert is _timestamp:
        return _timestamps(column)
    values = _values(column)
    if convert is None:
        return values
    return [
        value if value is None or isinstance(value, BadValue) else convert(value)
        for value in values
    ]


def _values(column: Any) -> list[Any]:
    """Return a column's values as Python's; a ``BadValue`` where there is no such."""
    try:
        return _all_values(column)
    except _UNREADABLE:
        # One of them is a date past 9999, or text that is not UTF-8.
        return [_one_value(each) for each in column]


def _one_value(value: Any) -> Any:
    try:
        return value.as_py()
    except _UNREADABLE as error:
        return BadValue(f"not a value that can be sent: {error}")


def _all_values(column: Any) -> list[Any]:
    # Arrow's own to_pylist makes an object for each value first; most columns
    # can do without.
    kind = column.type
    made: list[Any]
    if _types.is_string(kind) or _types.is_binary(kind):
        made = column.to_numpy(zero_copy_only=False).tolist()
    elif _types.is_integer(kind) or _types.is_floating(kind):
        filled = column.fill_null(0) if column.null_count else column
        made = filled.to_numpy(zero_copy_only=False).tolist()
        if column.null_count:
            valid = column.is_valid().to_numpy(zero_copy_only=False).tolist()
            made = [value if there else None for value, there in zip(made, valid, strict=True)]
    else:
        made = column.to_pylist()
    return made


def _timestamps(column: Any) -> list[Any]:
    # Without a datetime for each.
    whole = column.cast(pyarrow.timestamp("us", column.type.tz)).cast(pyarrow.int64())
    return [None if value is None else _instant(value) for value in _values(whole)]


def _instant(micros: int) -> Any:
    seconds, rest = divmod(micros, 1_000_000)
    if not _FIRST_S <= seconds <= _LAST_S:
        return BadValue("a google.protobuf.Timestamp is within the years 1 to 9999")
    return {"seconds": seconds, "nanos": rest * 1000}


def _is_bytes(kind: Any) -> bool:
    return bool(
        _types.is_binary(kind) or _types.is_large_binary(kind) or _types.is_fixed_size_binary(kind)
    )


def _plain_decimal(value: decimal.Decimal) -> str:
    return format(value, "f")


def _timestamp(value: datetime.datetime) -> Any:
    return _instant((value - _EPOCH) // _MICRO)


def _duration(value: datetime.timedelta) -> Any:
    # Seconds and nanos have one sign.
    whole = value // _MICRO
    seconds, micros = divmod(abs(whole), 1_000_000)
    if seconds > _LONGEST_S:
        return BadValue("a google.protobuf.Duration is within 10,000 years")
    sign = -1 if whole < 0 else 1
    return {"seconds": sign * seconds, "nanos": sign * micros * 1000}
