"""Rows whose columns are packed into values: Arrow batches, or a protobuf message each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
import pyarrow.compute

from rifl.spark._arrow import nullable
from rifl.spark._errors import RowError
from rifl.spark._requests import RequestPlan, fields_in_any_case, plan_request
from sharedlog._core.envelope import MAX_VALUE_BYTES, PROTOBUF, About, pack
from sharedlog._core.publishing import Placed, size_of
from sharedlog._core.stream_schema import StreamSchema
from sharedlog._core.streams import substream_of
from sharedlog.spark._content import Content, message_hashes, row_hashes
from sharedlog.spark._message_types import class_of
from sharedlog.spark._messages import RowMessage, checked_keys
from sharedlog.spark._options import SinkError

ARROW = "application/vnd.apache.arrow.stream"
# What an Arrow message has beside its columns, about.
_HEAD_BYTES = 8 << 10
_types = pyarrow.types


class ArrowRows:
    """Rows as Arrow batches, a message each: those of one substream together. Picklable."""

    def __init__(self, schema: pyarrow.Schema, key: str | None) -> None:
        """Raises ``SinkError``. ``key``: the column whose value chooses the substream."""
        check_key(schema, key)
        self._key = key
        # Whether a column may be null, a plan says today so and tomorrow so.
        self.schema = nullable(schema)

    def messages(
        self,
        batch: pyarrow.RecordBatch,
        tags: list[str],
        turns: Iterator[int],
        now_us: int,
        content: Content | None = None,
    ) -> Iterator[RowMessage]:
        """Yield a batch's messages; raises ``SinkError`` for a row that is too large."""
        if batch.num_rows == 0:
            return
        columns = [batch.column(at).cast(field.type) for at, field in enumerate(self.schema)]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=self.schema)
        if content is not None:
            content.add(row_hashes(batch.columns))
        about = About(content_type=ARROW)
        for tag, rows in self._parts(batch, tags, turns):
            for value, count in _serialized(rows):
                envelope = pack(value, None, about, now_us)
                yield RowMessage(Placed(envelope, tag, size_of(envelope, tag)), count)

    def _parts(
        self, batch: pyarrow.RecordBatch, tags: list[str], turns: Iterator[int]
    ) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
        count = len(tags)
        if self._key is None:
            yield tags[next(turns) % count], batch
            return
        # Each key is hashed once.
        coded = batch.column(self._key).dictionary_encode(null_encoding="encode")
        keys = key_values(coded.dictionary)
        places = [next(turns) % count if key is None else substream_of(key, count) for key in keys]
        of_rows = pyarrow.array(places, pyarrow.int32()).take(coded.indices)
        for at in sorted(set(places)):
            rows = batch.filter(pyarrow.compute.equal(of_rows, at))
            if rows.num_rows:
                yield tags[at], rows


class ProtobufRows:
    """Rows as protobuf messages, by the names of columns. Picklable."""

    def __init__(self, schema: pyarrow.Schema, key: str | None, of: StreamSchema) -> None:
        """Raises ``PlanError`` for a column that no field takes, ``SinkError``."""
        check_key(schema, key)
        self._schema, self._key, self._of = schema, key, of
        self._made: RequestPlan | None = None
        self._plan()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def messages(
        self,
        batch: pyarrow.RecordBatch,
        tags: list[str],
        turns: Iterator[int],
        now_us: int,
        content: Content | None = None,
    ) -> Iterator[RowMessage]:
        """Yield a batch's messages; raises ``SinkError`` for a row whose values do not fit."""
        values: list[bytes] = []
        for made in self._plan().requests(batch):
            if isinstance(made, RowError):
                raise SinkError(f"a row is no {self._of.name}: {made}")
            values.append(made)
        keys: list[bytes | None] = [None] * batch.num_rows
        if self._key is not None:
            keys = checked_keys(key_values(batch.column(self._key)))
        about, count = About(content_type=PROTOBUF, schema_name=self._of.name), len(tags)
        if content is not None:
            content.add(message_hashes(_parts(values, keys, about)))
        for value, key in zip(values, keys, strict=True):
            at = next(turns) % count if key is None else substream_of(key, count)
            envelope = pack(value, key, about, now_us)
            yield RowMessage(Placed(envelope, tags[at], size_of(envelope, tags[at])))

    def _plan(self) -> RequestPlan:
        if self._made is None:
            only = () if self._key is None else (self._key,)
            message, names = class_of(self._of), self._schema.names
            self._made = plan_request(
                self._schema, message, key_only=only, renamed=fields_in_any_case(names, message)
            )
        return self._made


def _parts(
    values: Sequence[bytes], keys: Sequence[bytes | None], about: About
) -> pyarrow.RecordBatch:
    """Return the parts of messages as columns."""
    said = (about.content_type, about.schema_name)
    columns = {
        "value": pyarrow.array(values, pyarrow.binary()),
        "key": pyarrow.array(keys, pyarrow.binary()),
        **{
            name: pyarrow.repeat(text, len(values))
            for name, text in zip(("content_type", "schema_name"), said, strict=True)
        },
    }
    return pyarrow.RecordBatch.from_pydict(columns)


def check_key(schema: pyarrow.Schema, key: str | None) -> None:
    """Raise ``SinkError`` unless this column can be a key, or is None."""
    if len(set(schema.names)) < len(schema.names):
        raise SinkError("two columns have one name")
    if key is None:
        return
    if key not in schema.names:
        raise SinkError(f"key: there is no column {key!r}")
    of = schema.field(key).type
    if not (_is_bytes(of) or _types.is_integer(of)):
        raise SinkError(f"the key {key!r} is a string, binary, or a whole number")


def key_values(column: pyarrow.Array) -> list[bytes | None]:
    """Return keys as messages have them: whole numbers in decimal digits."""
    if _types.is_integer(column.type):
        column = column.cast(pyarrow.string())
    found: list[bytes | None] = column.cast(pyarrow.binary()).to_pylist()
    return found


def _serialized(rows: pyarrow.RecordBatch) -> Iterator[tuple[bytes, int]]:
    """Yield a batch in pieces that fit a message, each with its number of rows."""
    pieces = 1 + rows.nbytes // (MAX_VALUE_BYTES - _HEAD_BYTES)
    most = -(-rows.num_rows // pieces)
    waiting = [rows.slice(at, most) for at in range(0, rows.num_rows, most)][::-1]
    while waiting:
        piece = waiting.pop()
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, piece.schema) as writer:
            writer.write_batch(piece)
        value = sink.getvalue()
        if value.size <= MAX_VALUE_BYTES:
            yield value.to_pybytes(), piece.num_rows
        elif piece.num_rows == 1:
            raise SinkError(f"a row of {value.size} bytes; a message has {MAX_VALUE_BYTES} at most")
        else:
            half = piece.num_rows // 2
            waiting += [piece.slice(half), piece.slice(0, half)]


def _is_bytes(of: pyarrow.DataType) -> bool:
    return bool(
        _types.is_string(of)
        or _types.is_large_string(of)
        or _types.is_binary(of)
        or _types.is_large_binary(of)
    )
