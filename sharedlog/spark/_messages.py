"""Rows as messages: what of a row is the value, the key, and what else is said of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow

from sharedlog._core.envelope import MAX_KEY_BYTES, About, pack
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.publishing import Placed, size_of
from sharedlog._core.streams import substream_of
from sharedlog.spark._content import Content, message_hashes
from sharedlog.spark._options import SinkError

_KINDS = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("map",),
    "content_type": ("string",),
    "schema_name": ("string",),
    "causation_id": ("string",),
    "event_time": ("timestamp",),
}
_MICROS = pyarrow.int64()
_TIME = pyarrow.timestamp("us", "UTC")


class RowMessage(NamedTuple):
    """A message of a row, or of several."""

    message: Placed
    rows: int = 1


class RawRows:
    """Rows whose columns are the parts of a message. Picklable; made where a write is planned."""

    def __init__(self, schema: pyarrow.Schema, key: str | None) -> None:
        """Raises ``SinkError`` for columns that are no part of one; their names are in any case.

        ``key``: the column that is the message's key, if it is not ``key``.
        """
        self._key = _part(key or "key")
        schema = pyarrow.schema([each.with_name(_part(each.name)) for each in schema])
        self._columns = schema.names
        names = set(self._columns)
        if len(names) < len(self._columns):
            raise SinkError("two columns have one name")
        if "value" not in names:
            raise SinkError("there is no column value: it is the message, binary or string")
        if key is not None and self._key not in names:
            raise SinkError(f"key: there is no column {key!r}")
        for field in schema:
            part = "key" if field.name == self._key else field.name
            if part not in _KINDS or (part == "key" and field.name != self._key):
                raise SinkError(
                    f"the column {field.name!r} is no part of a message: {', '.join(_KINDS)}; "
                    "drop it"
                )
            if _kind(field.type) not in _KINDS[part]:
                raise SinkError(f"the column {field.name!r} is {' or '.join(_KINDS[part])}")
        self._about = names & {"headers", "content_type", "schema_name", "causation_id"}
        self.names = names

    def messages(
        self,
        batch: pyarrow.RecordBatch,
        tags: list[str],
        turns: Iterator[int],
        now_us: int,
        content: Content | None = None,
    ) -> Iterator[RowMessage]:
        """Yield a batch's messages; ``turns``: which substream is next for one without a key.

        ``content`` counts the rows in. Raises ``SinkError`` for a row whose value is null,
        ``InvalidRequest`` for what no message can be.
        """
        batch = batch.rename_columns(self._columns)
        if content is not None:
            names = ["key" if name == self._key else name for name in self._columns]
            content.add(message_hashes(batch.rename_columns(names)))
        values = _bytes(batch.column("value"))
        keyed = self._key in self.names
        keys: list[bytes | None] = [None] * batch.num_rows
        if keyed:
            keys = checked_keys(_bytes(batch.column(self._key)))
        abouts = self._abouts(batch)
        count = len(tags)
        for value, key, about in zip(values, keys, abouts, strict=False):
            if value is None:
                raise SinkError("a row's value is null, and a message has one")
            at = next(turns) % count if key is None else substream_of(key, count)
            envelope = pack(value, key, about, now_us)
            tag = tags[at]
            yield RowMessage(Placed(envelope, tag, size_of(envelope, tag)))

    def _abouts(self, batch: pyarrow.RecordBatch) -> Iterator[About | None]:
        if not self._about and "event_time" not in self.names:
            yield from itertools.repeat(None)
            return
        said = {name: batch.column(name).to_pylist() for name in self._about}
        times: list[int | None] | None = None
        if "event_time" in self.names:
            times = batch.column("event_time").cast(_TIME).cast(_MICROS).to_pylist()
        for row in range(batch.num_rows):
            headers = said["headers"][row] if "headers" in said else None
            if headers is not None and len(dict(headers)) < len(headers):
                raise SinkError("two headers of a row have one name")
            yield About(
                headers=None if headers is None else dict(headers),
                content_type=_text(said, "content_type", row),
                schema_name=_text(said, "schema_name", row),
                causation_id=_text(said, "causation_id", row),
                event_time_us=None if times is None else times[row],
            )


def _part(name: str) -> str:
    """Return the part of a message that a column's name is, in any case; else the name."""
    return name.lower() if name.lower() in _KINDS else name


def checked_keys(keys: list[bytes | None]) -> list[bytes | None]:
    """Return messages' keys; raises ``InvalidRequest`` for one that is too long."""
    longest = max(map(len, filter(None, keys)), default=0)
    if longest > MAX_KEY_BYTES:
        raise InvalidRequest(f"a key of {longest} bytes; {MAX_KEY_BYTES} are the most")
    return keys


def _text(said: dict[str, list[Any]], name: str, row: int) -> str:
    return (said[name][row] or "") if name in said else ""


def _kind(of: pyarrow.DataType) -> str:
    types = pyarrow.types
    if types.is_string(of) or types.is_large_string(of):
        return "string"
    if types.is_binary(of) or types.is_large_binary(of):
        return "binary"
    if types.is_map(of):
        parts = (_kind(of.key_type), _kind(of.item_type))
        return "map" if parts in (("string", "binary"), ("string", "string")) else "other"
    return "timestamp" if types.is_timestamp(of) and of.tz is not None else "other"


def _bytes(column: pyarrow.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pyarrow.binary()).to_pylist()
    return found
