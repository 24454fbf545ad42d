"""Columns made of response messages: what ``_requests`` does, the other way round. Pure.

Unset message fields and unset fields with presence are null; enums are their names,
unknown numbers as text; unsigned 64-bit numbers are decimals, since Spark has none. The
call was made: a value that Spark has no room for is null, and said to be, never raised.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pyarrow
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from rifl.spark._errors import PlanError

_F = FieldDescriptor
_SCALARS: dict[int, Any] = {
    _F.TYPE_INT32: pyarrow.int32(),
    _F.TYPE_SINT32: pyarrow.int32(),
    _F.TYPE_SFIXED32: pyarrow.int32(),
    _F.TYPE_INT64: pyarrow.int64(),
    _F.TYPE_SINT64: pyarrow.int64(),
    _F.TYPE_SFIXED64: pyarrow.int64(),
    _F.TYPE_UINT32: pyarrow.int64(),
    _F.TYPE_FIXED32: pyarrow.int64(),
    _F.TYPE_UINT64: pyarrow.decimal128(20, 0),
    _F.TYPE_FIXED64: pyarrow.decimal128(20, 0),
    _F.TYPE_FLOAT: pyarrow.float32(),
    _F.TYPE_DOUBLE: pyarrow.float64(),
    _F.TYPE_BOOL: pyarrow.bool_(),
    _F.TYPE_STRING: pyarrow.string(),
    _F.TYPE_BYTES: pyarrow.binary(),
    _F.TYPE_ENUM: pyarrow.string(),
}
_UNSIGNED_64 = (_F.TYPE_UINT64, _F.TYPE_FIXED64)
# Spark's own default.
_DECIMAL = pyarrow.decimal128(38, 18)
# The most digits before the point, and after it.
_WHOLE_DIGITS, _PLACES = 20, 18
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799
_LONGEST_S = 315_576_000_000
_Read = Callable[[Any], Any]


class ReplyPlan:
    """Reads messages of one class into Arrow values of ``type``, a struct.

    Raises ``PlanError`` for a message that contains itself, or nothing. One thread.
    """

    def __init__(self, message_class: type[Any]) -> None:
        self._class = message_class
        self.type, self._read = _message(message_class.DESCRIPTOR, ())

    def read(self, response: bytes) -> tuple[Any, str]:
        """Return one response as a dictionary, and what in it could not be read, or ``""``.

        None, if none of it could be.
        """
        try:
            message = self._class.FromString(response)
        except DecodeError as error:
            return None, f"the reply is no {self._class.DESCRIPTOR.full_name}: {error}"
        trouble: list[str] = []
        told = _trouble.set(trouble)
        try:
            return self._read(message), "; ".join(trouble)
        finally:
            _trouble.reset(told)


# What the reading of one response could not make columns of.
_trouble: ContextVar[list[str]] = ContextVar("trouble")


def _or_null(read: _Read) -> _Read:
    def read_or_null(message: Any) -> Any:
        try:
            return read(message)
        except (ValueError, ArithmeticError) as error:
            _trouble.get().append(f"{message.DESCRIPTOR.full_name}: {error}")
            return None

    return read_or_null


def _message(descriptor: Any, above: tuple[str, ...]) -> tuple[Any, _Read]:
    name = descriptor.full_name
    if name in above:
        raise PlanError(f"the message {name} contains itself: it has no columns")
    known = _well_known(descriptor)
    if known is not None:
        return known
    fields = []
    readers: list[tuple[str, _Read]] = []
    for field in descriptor.fields:
        kind, read = _field(field, (*above, name))
        fields.append(pyarrow.field(field.name, kind))
        readers.append((field.name, read))

    def read_message(message: Any) -> Any:
        return {each: read(message) for each, read in readers}

    return pyarrow.struct(fields), read_message


def _field(field: Any, above: tuple[str, ...]) -> tuple[Any, _Read]:
    name = field.name
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key_kind, read_key = _single(inner.fields_by_name["key"], above)
        item_kind, read_item = _single(inner.fields_by_name["value"], above)
        return pyarrow.map_(key_kind, item_kind), lambda message: [
            (read_key(key), read_item(value))
            for key, value in sorted(getattr(message, name).items())
        ]
    kind, read = _single(field, above)
    if field.is_repeated:
        return pyarrow.list_(kind), lambda message: [read(each) for each in getattr(message, name)]
    if field.has_presence:
        return (
            kind,
            lambda message: read(getattr(message, name)) if message.HasField(name) else None,
        )
    return kind, lambda message: read(getattr(message, name))


def _single(field: Any, above: tuple[str, ...]) -> tuple[Any, _Read]:
    if field.message_type is not None:
        return _message(field.message_type, above)
    kind = _SCALARS[field.type]
    if field.type == _F.TYPE_ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return kind, lambda number: names.get(number, str(number))
    if field.type in _UNSIGNED_64:
        return kind, decimal.Decimal
    return kind, lambda value: value


def _well_known(descriptor: Any) -> tuple[Any, _Read] | None:
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return pyarrow.timestamp("us", "UTC"), _or_null(_instant)
    if name == "google.protobuf.Duration":
        return pyarrow.duration("us"), _or_null(_span)
    if name == "google.type.Date":
        return pyarrow.date32(), _or_null(
            lambda message: datetime.date(message.year, message.month, message.day)
        )
    if name == "google.type.Decimal":
        return _DECIMAL, _or_null(_exact)
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        value = descriptor.fields_by_name.get("value")
        if value is not None and value.message_type is None and len(descriptor.fields) == 1:
            kind, read = _single(value, ())
            return kind, lambda message: read(message.value)
    return None


def _instant(message: Any) -> int:
    if not _FIRST_S <= message.seconds <= _LAST_S:
        raise ValueError("the instant is not within the years 1 to 9999")
    return int(message.seconds * 1_000_000 + message.nanos // 1000)


def _span(message: Any) -> int:
    if abs(message.seconds) > _LONGEST_S:
        raise ValueError("the span is longer than 10,000 years")
    # Towards zero: seconds and nanos have one sign.
    return int(message.seconds * 1_000_000 + int(message.nanos / 1000))


def _exact(message: Any) -> decimal.Decimal:
    value = decimal.Decimal(message.value or "0")
    if not value.is_finite():
        raise ValueError(f"{message.value!r} is no number")
    _, digits, exponent = value.as_tuple()
    # Not by normalize(), which rounds to 28 digits.
    kept = "".join(map(str, digits)).rstrip("0")
    places = -int(exponent) - (len(digits) - len(kept))
    if value and (value.adjusted() >= _WHOLE_DIGITS or places > _PLACES):
        raise ValueError(f"{message.value!r} does not fit a decimal(38,18) without rounding")
    return value
