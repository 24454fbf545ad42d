"""A service with a field of every kind, as descriptors built by hand."""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from rifl.spark._descriptors import MethodShape, from_pool

__all__ = ["DATE_FILE", "DECIMAL_FILE", "FILE", "METHOD", "pool", "shape"]

METHOD = "/shapes.Shapes/Put"

_SCALARS = "int32 int64 uint32 uint64 sint64 float double bool string bytes"


def _field(message: Any, name: str, kind: str, number: int, **more: Any) -> Any:
    field = message.field.add(name=name, number=number)
    field.label = getattr(field, f"LABEL_{more.pop('label', 'optional').upper()}")
    if kind.startswith("."):
        field.type = field.TYPE_ENUM if kind.endswith("Colour") else field.TYPE_MESSAGE
        field.type_name = kind
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    for key, value in more.items():
        setattr(field, key, value)
    return field


def _map(message: Any, owner: str, name: str, number: int, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    _field(entry, "key", "string", 1)
    _field(entry, "value", value, 2)
    _field(message, name, f"{owner}.{entry.name}", number, label="repeated")


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="shapes.proto",
        package="shapes",
        syntax="proto3",
        dependency=[
            "google/protobuf/timestamp.proto",
            "google/protobuf/duration.proto",
            "google/protobuf/wrappers.proto",
            "google/type/date.proto",
            "google/type/decimal.proto",
        ],
    )
    colours = file.enum_type.add(name="Colour")
    for number, name in enumerate(("COLOUR_UNSET", "RED", "GREEN")):
        colours.value.add(name=name, number=number)
    inner = file.message_type.add(name="Inner")
    _field(inner, "x", "int32", 1)
    _field(inner, "label", "string", 2)
    one = file.message_type.add(name="Thing")
    for number, kind in enumerate(_SCALARS.split(), 1):
        _field(one, kind, kind, number)
    _field(one, "colour", ".shapes.Colour", 20)
    _field(one, "inner", ".shapes.Inner", 21)
    _field(one, "tags", "string", 22, label="repeated")
    _field(one, "inners", ".shapes.Inner", 23, label="repeated")
    _map(one, ".shapes.Thing", "prices", 24, "int64")
    _map(one, ".shapes.Thing", "parts", 25, ".shapes.Inner")
    _field(one, "at", ".google.protobuf.Timestamp", 26)
    _field(one, "took", ".google.protobuf.Duration", 27)
    _field(one, "maybe", ".google.protobuf.Int64Value", 28)
    _field(one, "day", ".google.type.Date", 29)
    _field(one, "amount", "string", 30)
    _field(one, "by_card", "string", 31, oneof_index=0)
    _field(one, "by_cash", "int64", 32, oneof_index=0)
    one.oneof_decl.add(name="paid")
    _field(one, "price", ".google.type.Decimal", 34)
    _field(one, "note", "string", 33, oneof_index=1, proto3_optional=True)
    one.oneof_decl.add(name="_note")
    service = file.service.add(name="Shapes")
    for name, streams in (("Put", False), ("Watch", True)):
        service.method.add(
            name=name,
            input_type=".shapes.Thing",
            output_type=".shapes.Thing",
            server_streaming=streams,
        )
    return file


def _date_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="google/type/date.proto", package="google.type", syntax="proto3"
    )
    date = file.message_type.add(name="Date")
    for number, name in enumerate(("year", "month", "day"), 1):
        _field(date, name, "int32", number)
    return file


def _decimal_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="google/type/decimal.proto", package="google.type", syntax="proto3"
    )
    _field(file.message_type.add(name="Decimal"), "value", "string", 1)
    return file


FILE = _file()
DATE_FILE = _date_file()
DECIMAL_FILE = _decimal_file()


def pool() -> descriptor_pool.DescriptorPool:
    """Return a fresh pool with the service and all it needs."""
    made = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        made.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    made.Add(DATE_FILE)
    made.Add(DECIMAL_FILE)
    made.Add(FILE)
    return made


def shape(method: str = METHOD) -> MethodShape:
    """Return the method's shape."""
    return from_pool(method, pool().FindServiceByName, "the test")
