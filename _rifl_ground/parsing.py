"""Messages of protobuf from strangers: counted before they are parsed.

A field takes two bytes of a request and, once parsed, a hundred of memory: two mebibytes become a
million messages, and parsing holds the interpreter. Here the fields are counted on the bytes, and
no further than to their bound.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

# Enough for what a caller asks for; who sends lists says how long they are.
MOST_FIELDS = 5_000
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_HIGH = bytes(range(128, 256))
_TYPES = FieldDescriptor
_FIXED = {
    **dict.fromkeys((_TYPES.TYPE_FIXED64, _TYPES.TYPE_SFIXED64, _TYPES.TYPE_DOUBLE), 8),
    **dict.fromkeys((_TYPES.TYPE_FIXED32, _TYPES.TYPE_SFIXED32, _TYPES.TYPE_FLOAT), 4),
}

_M = TypeVar("_M", bound=Message)
# By the tag of a field with a length: the fields of a message, or the bytes of each number in a
# list, 0 if they differ.
_Shape = dict[int, Any]
_shapes: dict[str, _Shape] = {}


class TooManyFields(DecodeError):
    """A message has more fields than any that is meant."""


def parse(kind: type[_M], raw: bytes, most: int = MOST_FIELDS) -> _M:
    """Parse a message of at most ``most`` fields, with those of messages in it, known or not.

    Raises ``DecodeError`` for bytes that are no such message, ``TooManyFields`` for too many: of
    those none was parsed. Pure; any thread.
    """
    # A field has two bytes at least.
    if len(raw) > 2 * most:
        _count(raw, _shape(kind.DESCRIPTOR), most)
    return kind.FromString(raw)


def _shape(descriptor: Any) -> _Shape:
    found = _shapes.get(descriptor.full_name)
    if found is None:
        # Before its fields': a message may hold itself.
        found = _shapes[descriptor.full_name] = {}
        for field in descriptor.fields:
            tag = field.number << 3 | _LENGTH
            if field.message_type is not None:
                found[tag] = _shape(field.message_type)
            elif field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                found[tag] = _FIXED.get(field.type, 0)
    return found


def _count(raw: bytes, shape: _Shape, most: int) -> None:
    at, end = 0, len(raw)
    around: list[tuple[int, _Shape]] = []
    left = most
    try:
        while left >= 0:
            if at >= end:
                if at > end:
                    raise DecodeError("a field is longer than its message")
                if not around:
                    return
                end, shape = around.pop()
                continue
            left -= 1
            tag = raw[at]
            at += 1
            if tag > 127:
                tag, at = _varint(raw, at - 1)
            kind = tag & 7
            if kind == _LENGTH:
                length = raw[at]
                at += 1
                if length > 127:
                    length, at = _varint(raw, at - 1)
                if at + length > end:
                    raise DecodeError("a field is longer than its message")
                inner = shape.get(tag, raw)
                if inner is raw:
                    at += length
                elif isinstance(inner, dict):
                    around.append((end, shape))
                    end, shape = at + length, inner
                else:
                    # A number of no fixed length ends with a byte below 128.
                    numbers = raw[at : at + length]
                    left -= length // inner if inner else len(numbers.translate(None, _HIGH))
                    at += length
            elif kind == _VARINT:
                while raw[at] > 127:
                    at += 1
                at += 1
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                raise DecodeError("a group, which no message has")
    except IndexError:
        raise DecodeError("the message ends in a field") from None
    raise TooManyFields(f"the message has more than {most} fields")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] > 127:
        value |= (raw[at] & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise DecodeError("a number is too long")
    return value | raw[at] << shift, at + 1
