"""The options of source and sink, checked; no secret is among them if its URL is named elsewhere.

Options end up in plans, event logs and checkpoints. A URL with a password is named by an
environment variable or a file, which each process reads for itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rifl.spark._checkpoints import plain_location
from rifl.spark._options import NO_NAME, NO_TABLE, of_a_table, read_batch_id
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.names import NameKind, check_hold_name, own_name
from sharedlog._core.position import Position
from sharedlog._core.streams import check_name

_VALUES = ("valueFormat", "message", "module", "descriptorFile")
# Spark's own, which reach every source.
_SPARKS = {"checkpointlocation", "queryname"}
_NAMES = (
    *("log", "logEnv", "logFile", "stream", "startingPosition", "endingPosition"),
    *("maxRowsPerTrigger", "maxBytesPerTrigger", "partitionRows", "name"),
    "pushFilters",
    *_VALUES,
)
_SINK_NAMES = (
    *("log", "logEnv", "logFile", "stream", "key", "name", "batchId", "adopt"),
    *_VALUES,
)
# Entries of a range beyond which a substream's part of it is read by several tasks.
_PARTITION_ROWS = 500_000


class ValueOptions(NamedTuple):
    """How the values of messages are columns: ``raw``, ``arrow`` or ``protobuf``.

    ``message``: the full name of a protobuf message, of a ``module`` or a ``descriptor_file``;
    empty: as the stream has it.
    """

    format: str = "raw"
    message: str = ""
    module: str = ""
    descriptor_file: str = ""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ValueOptions:
        """Read it of options in small letters; raises ``ValueError``."""
        found = cls(*(options.get(name.lower(), "") for name in _VALUES))
        found = found._replace(format=found.format or "raw")
        if found.format not in ("raw", "arrow", "protobuf"):
            raise ValueError(f"valueFormat is raw, arrow or protobuf, not {found.format!r}")
        described = bool(found.module) + bool(found.descriptor_file)
        if described != bool(found.message) or (found.message and found.format != "protobuf"):
            raise ValueError(
                "a protobuf message is named by option message, and described by module or "
                "descriptorFile"
            )
        return found


RAW = ValueOptions()


class SourceError(ValueError):
    """What is asked of the source cannot be; it is said where the query is planned."""


class SinkError(ValueError):
    """What is asked of the sink cannot be, or Spark does not say what a task belongs to.

    Nothing of it is in the log.
    """


class LogPlace(NamedTuple):
    """Where a log is: its URL by option ``log``, or what names it by ``logenv``, ``logfile``."""

    kind: str
    value: str

    @classmethod
    def read(cls, options: Mapping[str, str]) -> LogPlace:
        """Read it of options in small letters; raises ``ValueError``."""
        named = [name for name in ("log", "logenv", "logfile") if options.get(name)]
        if len(named) != 1:
            raise ValueError("name the log once: option log, logEnv or logFile")
        return cls(named[0], options[named[0]])

    def url(self) -> str:
        """Return where the log is, as this process finds it; raises ``ValueError``."""
        kind, value = self
        if kind == "logenv":
            found = os.environ.get(value)
            if found is None:
                raise ValueError(f"logEnv: the environment variable {value} is not set here")
            return found
        if kind == "logfile":
            try:
                return Path(value).read_text().strip()
            except OSError as error:
                raise ValueError(f"logFile: {error}") from error
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Which stream is read, from where on, and how much at a time. Picklable.

    ``start``, ``end``: ``"beginning"``, ``"end"``, a position or a time. ``most_rows``: about how
    many rows a micro-batch has, ``most_bytes`` how many bytes; None: all that is there. ``hold``:
    by which name the log keeps what the query has not read.
    """

    place: LogPlace
    stream: str
    start: str | datetime = "beginning"
    end: str | datetime = "end"
    most_rows: int | None = None
    partition_rows: int = _PARTITION_ROWS
    hold: str | None = None
    most_bytes: int | None = None
    values: ValueOptions = RAW
    filters: bool = False

    @property
    def limit(self) -> str:
        """How much a micro-batch has, as the user asked for it; empty: all that is there."""
        if self.most_bytes is not None:
            return f"maxBytesPerTrigger={self.most_bytes}"
        return "" if self.most_rows is None else f"maxRowsPerTrigger={self.most_rows}"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SourceOptions:
        """Read a source's options; names in any case. Raises ``SourceError``."""
        options = {name.lower(): value for name, value in given.items()}
        if of_a_table(options):
            raise SourceError(NO_TABLE.format("sharedlog"))
        known = {name.lower() for name in _NAMES} | _SPARKS
        for name in options:
            if name == "path":
                raise SourceError('load() takes no path: option("stream", ...) says what is read')
            if name not in known:
                raise SourceError(f"unknown option {name!r}; there are: {', '.join(_NAMES)}")
        if options.get("maxrowspertrigger") and options.get("maxbytespertrigger"):
            raise SourceError("maxRowsPerTrigger or maxBytesPerTrigger: one of them")
        stream, hold = options.get("stream", ""), options.get("name")
        try:
            _check_stream(stream)
            if hold is not None:
                check_name(hold, "query")
                check_hold_name(own_name(NameKind.QUERY, hold))
        except InvalidRequest as error:
            raise SourceError(str(error)) from error
        try:
            place, values = LogPlace.read(options), ValueOptions.read(options)
        except ValueError as error:
            raise SourceError(str(error)) from error
        return cls(
            place=place,
            stream=stream,
            start=_at(options.get("startingposition", "beginning"), "startingPosition"),
            end=_at(options.get("endingposition", "end"), "endingPosition"),
            most_rows=_number("maxRowsPerTrigger", options),
            partition_rows=_number("partitionRows", options) or _PARTITION_ROWS,
            hold=None if hold is None else own_name(NameKind.QUERY, hold),
            most_bytes=_number("maxBytesPerTrigger", options),
            values=values,
            filters=_filters(options.get("pushfilters", "false"), values),
        )

    def url(self) -> str:
        """Return where the log is, as this process finds it; raises ``SourceError``."""
        try:
            return self.place.url()
        except ValueError as error:
            raise SourceError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Which stream is written to, and what of a row is a message's key. Picklable.

    ``name``: of the query, or of a batch job, by which the log knows what it has committed; None:
    Spark's id of the query, or a name of this write alone. ``batch_id``: the micro-batch of a write
    within ``foreachBatch``. ``adopt``: it goes on with this
    checkpoint, whichever query used the name. ``checkpoint``: where Spark keeps it, "" if options
    do not say; then it is below the session's setting, by the query's own name, ``query``.
    """

    place: LogPlace
    stream: str
    key: str | None = None
    name: str | None = None
    batch_id: int | None = None
    adopt: bool = False
    checkpoint: str = ""
    query: str = ""
    values: ValueOptions = RAW

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read a sink's options; names in any case. Raises ``SinkError``."""
        options = {name.lower(): value for name, value in given.items()}
        if of_a_table(options):
            raise SinkError(NO_TABLE.format("sharedlog"))
        known = {name.lower() for name in _SINK_NAMES} | _SPARKS
        for name in options:
            if name == "path":
                raise SinkError('save() and start() take no path: option("stream", ...) names it')
            if name not in known:
                raise SinkError(f"unknown option {name!r}; there are: {', '.join(_SINK_NAMES)}")
        adopt = options.get("adopt", "false").lower()
        if adopt not in ("true", "false"):
            raise SinkError(f"adopt is true or false, not {adopt!r}")
        stream, query = options.get("stream", ""), options.get("name")
        try:
            _check_stream(stream)
            if query is not None:
                check_name(query, "query")
            place, values = LogPlace.read(options), ValueOptions.read(options)
            batch_id = read_batch_id(options)
            if batch_id is not None and query is None:
                raise InvalidRequest(NO_NAME)
        except ValueError as error:
            raise SinkError(str(error)) from error
        key = options.get("key") or None
        return cls(
            place=place,
            stream=stream,
            key=key,
            name=query,
            batch_id=batch_id,
            adopt=adopt == "true",
            checkpoint=plain_location(options.get("checkpointlocation", ""), links=True),
            query=options.get("queryname", ""),
            values=values,
        )

    def url(self) -> str:
        """Return where the log is, as this process finds it; raises ``SinkError``."""
        try:
            return self.place.url()
        except ValueError as error:
            raise SinkError(str(error)) from error


def _at(text: str, option: str) -> str | datetime:
    if text in ("beginning", "end"):
        return text
    if "@" in text:
        try:
            return str(Position.parse(text))
        except InvalidRequest as error:
            raise SourceError(f"{option}: {error}") from error
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise SourceError(
            f"{option}: {text!r} is none of: beginning, end, a position, a time with its zone such "
            "as 2026-01-31T12:00:00+00:00"
        )
    return found


def _check_stream(stream: str) -> None:
    if not stream:
        raise InvalidRequest('name the stream: option("stream", "...")')
    check_name(stream)


def _filters(text: str, values: ValueOptions) -> bool:
    if text.lower() not in ("true", "false"):
        raise SourceError(f"pushFilters is true or false, not {text!r}")
    if text.lower() == "true" and values.format != "raw":
        raise SourceError("pushFilters: only raw messages have columns for filters")
    return text.lower() == "true"


def _number(option: str, options: Mapping[str, str]) -> int | None:
    text = options.get(option.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise SourceError(f"{option}: {text!r} is no whole number from 1 on")
    return int(text)
