"""Messages as columns: those of a message, of its Arrow batch, or of its protobuf fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import numpy
import pyarrow
from google.protobuf.message import DecodeError

from rifl.spark._errors import PlanError
from rifl.spark._replies import ReplyPlan
from sharedlog._core.envelope import VERSION
from sharedlog._core.errors import SchemaChanged
from sharedlog._core.message import Message
from sharedlog._core.reading import Committed
from sharedlog._core.sealing import Seals
from sharedlog._core.stream_schema import StreamSchema, find_schema
from sharedlog._core.streams import stream_of, substream_number
from sharedlog._log.place import Place
from sharedlog.spark._column_rows import ARROW
from sharedlog.spark._message_types import class_of, from_file, from_module
from sharedlog.spark._options import ValueOptions
from sharedlog.v1 import sharedlog_pb2 as pb

_TIME = pyarrow.timestamp("us", "UTC")
SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("headers", pyarrow.map_(pyarrow.string(), pyarrow.binary())),
        ("content_type", pyarrow.string()),
        ("schema_name", pyarrow.string()),
        ("causation_id", pyarrow.string()),
        ("substream", pyarrow.int32()),
        ("lsn", pyarrow.int64()),
        ("ordinal", pyarrow.int64()),
        ("position", pyarrow.string()),
        ("append_time", _TIME),
        ("event_time", _TIME),
    ]
)


_EPOCH = datetime(1970, 1, 1)
_LEAST_US, _MOST_US = (
    (each - _EPOCH) // timedelta(microseconds=1) for each in (datetime.min, datetime.max)
)


def messages_of(found: Iterable[Committed], seals: Seals | None) -> Iterator[Message]:
    """Yield what was committed as messages of their streams."""
    for each in found:
        tag = each.tag
        place = (each.position, stream_of(tag), substream_number(tag), each.at_us, each.state)
        yield Message(each.envelope, *place, seals)


def batch_of(found: Sequence[Committed], seals: Seals | None) -> pyarrow.RecordBatch:
    """Return messages of one substream as a batch; raises ``SealedMessage`` for one that is sealed.

    In one pass, without a ``Message`` for each: that has the same parts, at several times the cost.
    """
    keys: list[bytes | None] = []
    values: list[bytes] = []
    headers: list[list[tuple[str, bytes]]] = []
    none: list[tuple[str, bytes]] = []
    types: list[str] = []
    schemas: list[str] = []
    causes: list[str] = []
    lsns: list[int] = []
    ordinals: list[int] = []
    positions: list[str] = []
    appended: list[int] = []
    happened: list[int] = []
    commit, end = 0, ""
    for each in found:
        (lsn, ordinal, checksum, incarnation, substream), _, _, _, _, envelope, at_us, _ = each
        content = _content_of(envelope)
        if content is None:
            (message,) = messages_of((each,), seals)
            content = message._envelope
        if lsn != commit:
            commit, end = lsn, f"/{substream}-{checksum:08x}@{incarnation}"
        keys.append(content.key if content.HasField("key") else None)
        values.append(content.body)
        said = content.headers
        headers.append([(header.name, header.value) for header in said] if said else none)
        types.append(content.content_type)
        schemas.append(content.schema_name)
        causes.append(content.causation_id)
        lsns.append(lsn)
        ordinals.append(ordinal)
        positions.append(f"{lsn}.{ordinal}{end}")
        appended.append(at_us)
        happened.append(content.event_time_us)
    numbers = numpy.full(len(found), substream_number(found[0].tag) if found else 0)
    columns = (
        *(keys, values, headers, types, schemas, causes, numbers, lsns, ordinals, positions),
        *(_times(appended), _times(happened)),
    )
    arrays = [
        pyarrow.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _content_of(data: bytes) -> pb.Envelope | None:
    """Read an envelope; None: ``Message`` says what it is."""
    try:
        found = pb.Envelope.FromString(data)
    except DecodeError:
        return None
    return found if found.version == VERSION else None


def _times(microseconds: list[int]) -> numpy.ndarray:
    """Return times, those that no calendar has as the nearest ones, as ``Message`` does."""
    clipped = numpy.clip(numpy.array(microseconds, numpy.int64), _LEAST_US, _MOST_US)
    return clipped.view("datetime64[us]")


class RawColumns:
    """One row for each message, a column for each part of it, or for those that are named."""

    def __init__(self, names: Sequence[str] = SCHEMA.names) -> None:
        self.schema = pyarrow.schema([SCHEMA.field(name) for name in names])

    def batches(
        self, found: Sequence[Committed], seals: Seals | None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield them as Arrow batches; raises ``SealedMessage``."""
        yield batch_of(found, seals).select(self.schema.names)


# So many are named, where columns differ.
_NAMED = 8


def differences(declared: pyarrow.Schema, given: pyarrow.Schema, *, ordered: bool = True) -> str:
    """Name the columns in which two schemas differ; empty if that is whether they may be null.

    Or, unless they are ``ordered``, only their order.
    """
    told = []
    for name in dict.fromkeys((*declared.names, *given.names)):
        if name not in given.names:
            told.append(f"{name} is missing")
        elif name not in declared.names:
            told.append(f"{name} of type {given.field(name).type} is not declared")
        elif declared.field(name).type != given.field(name).type:
            here, there = given.field(name).type, declared.field(name).type
            told.append(f"{name} is {here}, and declared as {there}")
    if not told and ordered and declared.names != given.names:
        told.append(f"their order is {', '.join(given.names)}")
    more = len(told) - _NAMED
    return "; ".join((*told[:_NAMED], *([f"{more} more"] if more > 0 else ())))


def differ(declared: StreamSchema, given: StreamSchema) -> str:
    """Name the columns in which two schemas of streams differ; empty for a message without any."""
    try:
        found = differences(columns_of(declared).schema, columns_of(given).schema)
    except (PlanError, SchemaChanged):
        return ""
    return found or "of the same names and types, described otherwise"


class ArrowColumns:
    """The rows of the Arrow batches that messages have."""

    def __init__(self, of: StreamSchema) -> None:
        self.schema: pyarrow.Schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(of.data))

    def batches(
        self, found: Sequence[Committed], seals: Seals | None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield them; raises ``SchemaChanged`` for a message that has other columns, or none."""
        for each in messages_of(found, seals):
            yield from self._read(each)

    def _read(self, message: Message) -> list[pyarrow.RecordBatch]:
        if message.content_type != ARROW:
            raise SchemaChanged(f"the message at {message.position} is {message.content_type}")
        try:
            with pyarrow.ipc.open_stream(pyarrow.py_buffer(message.value)) as reader:
                found = list(reader)
                schema = reader.schema
        except pyarrow.ArrowInvalid as error:
            raise SchemaChanged(
                f"the message at {message.position} is no Arrow stream: {error}"
            ) from error
        if not schema.equals(self.schema):
            others = differences(self.schema, schema)
            raise SchemaChanged(
                f"the message at {message.position} has other columns{others and f' ({others})'}"
            )
        return found


class ProtobufColumns:
    """One row for each message, by the fields of its protobuf value."""

    def __init__(self, of: StreamSchema) -> None:
        """Raises ``PlanError`` for a type that has no columns."""
        self._name = of.name
        self._plan = ReplyPlan(class_of(of))
        if not pyarrow.types.is_struct(self._plan.type):
            raise SchemaChanged(f"{of.name} is one value: read it raw")
        self.schema = pyarrow.schema(list(self._plan.type))

    def batches(
        self, found: Sequence[Committed], seals: Seals | None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield them; raises ``SchemaChanged`` for a message of another type.

        What Spark has no room for is null.
        """
        rows = []
        for each in messages_of(found, seals):
            if each.schema_name != self._name:
                raise SchemaChanged(
                    f"the message at {each.position} is {each.schema_name or each.content_type}, "
                    f"no {self._name}"
                )
            row, trouble = self._plan.read(each.value)
            if row is None:
                raise SchemaChanged(f"the message at {each.position}: {trouble}")
            rows.append(row)
        array = pyarrow.array(rows, self._plan.type)
        yield pyarrow.RecordBatch.from_arrays(array.flatten(), schema=self.schema)


Columns = RawColumns | ArrowColumns | ProtobufColumns


def columns_of(of: StreamSchema | None) -> Columns:
    """Return how messages become rows; None: unchanged."""
    if of is None:
        return RawColumns()
    return ArrowColumns(of) if of.format == "arrow" else ProtobufColumns(of)


def schema_of(place: Place, stream: str, values: ValueOptions) -> StreamSchema | None:
    """Return how a stream's values are columns: as options say, or as it was declared.

    None: they are raw, or were not. Raises ``ValueError``, and ``SchemaChanged`` if it was
    declared otherwise.
    """
    if values.format == "raw":
        return None
    if values.message:
        if values.module:
            return from_module(values.module, values.message)
        return from_file(values.descriptor_file, values.message)
    found = place.run(find_schema(stream))
    if found is not None and found.format != values.format:
        raise SchemaChanged(f"the values of stream {stream!r} are {found.format}")
    return found


def arrow_schema_of(schema: pyarrow.Schema) -> StreamSchema:
    """Return the schema of a stream of Arrow batches."""
    return StreamSchema("arrow", "", schema.remove_metadata().serialize().to_pybytes())
