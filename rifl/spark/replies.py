"""Response messages become columns: the rows' mapping the other way round. Pure.

Unset message fields and unset fields with presence are null; enums are their names,
unknown numbers as text; unsigned 64-bit numbers are decimals, since Spark has none.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow
from google.protobuf.descriptor import FieldDescriptor

from rifl.spark.errors import PlanError

__all__ = ["ReplyPlan"]

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
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_Read = Callable[[Any], Any]


class ReplyPlan:
    """Reads messages of one class into Arrow values of ``type``, a struct.

    Raises ``PlanError`` for a message that contains itself, or nothing.
    """

    def __init__(self, message_class: type[Any]) -> None:
        self._class = message_class
        self.type, self._read = _message(message_class.DESCRIPTOR, ())

    def read(self, response: bytes) -> Any:
        """Return one response as a dictionary."""
        return self._read(self._class.FromString(response))


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
        return (
            pyarrow.timestamp("us", "UTC"),
            lambda message: (
                _EPOCH
                + datetime.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
            ),
        )
    if name == "google.protobuf.Duration":
        return pyarrow.duration("us"), lambda message: datetime.timedelta(
            seconds=message.seconds, microseconds=message.nanos / 1000
        )
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        value = descriptor.fields_by_name.get("value")
        if value is not None and value.message_type is None and len(descriptor.fields) == 1:
            kind, read = _single(value, ())
            return kind, lambda message: read(message.value)
    return None
