"""The schema of a stream whose values have columns: declared once, by who writes it first (§16).

``schema/STREAM`` has the format, a name, and what describes it; every program that writes or reads
by columns is held to it, so that it learns of a changed schema before it gets or writes a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.errors import CorruptLog, NewerFormat, SchemaChanged
from sharedlog._core.steps import Get, Rule
from sharedlog._core.streams import check_name

_PREFIX = "schema/"
_VERSION = b"\x01"


class StreamSchema(NamedTuple):
    """``format``: ``arrow`` or ``protobuf``; ``name``: the message's; ``data``: what describes it.

    Of Arrow its schema, of protobuf a ``FileDescriptorSet``.
    """

    format: str
    name: str
    data: bytes


def declare_schema(
    stream: str,
    schema: StreamSchema,
    differ: Callable[[StreamSchema, StreamSchema], str] = lambda declared, given: "",
) -> Rule[None]:
    """Have a stream's values be so from now on; raises ``SchemaChanged`` if they are others.

    ``differ``: names the columns in which two of one format and name differ.
    """
    check_name(stream)
    key = _PREFIX + stream
    while True:
        value = (yield Get((key,)))[key]
        if value is not None:
            found = _read(stream, value)
            if found != schema:
                others = ""
                if found[:2] == schema[:2]:
                    columns = differ(found, schema)
                    others = f" with other columns{columns and f' ({columns})'}"
                raise SchemaChanged(
                    f"the values of stream {stream!r} are {_told(found)}, and these are "
                    f"{_told(schema)}{others}: nothing is written; an operator may have others "
                    "declared (sharedlog queries URL --forget-schema STREAM)"
                )
            return
        try:
            yield Commit((Condition(key, None),), (Put(key, _written(schema)),))
        except Refused:
            continue
        return


def find_schema(stream: str) -> Rule[StreamSchema | None]:
    """Return what was declared of a stream's values, or None."""
    key = _PREFIX + stream
    value = (yield Get((key,)))[key]
    return None if value is None else _read(stream, value)


def forget_schema(stream: str) -> Rule[bool]:
    """Have the next writer declare a stream's schema; False: there is none."""
    key = _PREFIX + stream
    while True:
        value = (yield Get((key,)))[key]
        if value is None:
            return False
        try:
            yield Commit((Condition(key, value),), (Put(key, None),))
        except Refused:
            continue
        return True


def _told(schema: StreamSchema) -> str:
    return f"{schema.format} {schema.name}".strip()


def _written(schema: StreamSchema) -> bytes:
    return _VERSION + f"{schema.format} {schema.name}\n".encode() + schema.data


def _read(stream: str, value: bytes) -> StreamSchema:
    head, line, data = value[1:].partition(b"\n")
    if value[:1] > _VERSION:
        raise NewerFormat(f"the schema of stream {stream!r} is of version {value[0]}")
    form, _, name = head.decode(errors="replace").partition(" ")
    if value[:1] != _VERSION or not line or not form:
        raise CorruptLog(f"what is kept of the schema of {stream!r} is not what was written")
    return StreamSchema(form, name, data)
