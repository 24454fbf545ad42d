"""The source: ``spark.readStream.format("sharedlog")`` and ``spark.read`` (DESIGN-LOG §16).

Its hooks run in processes of Spark's own, none of which is the user's. What travels between them
are offsets and ranges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rifl.spark._arrow import arrow_schema, nullable
from rifl.spark._freezing import freeze
from sharedlog._core.catalog import find_stream, hold_retention_us
from sharedlog._core.errors import LogForked, SchemaChanged, TrimmedLog
from sharedlog._core.holds import Hold, move, take
from sharedlog._core.ranges import Range, RangeReader, last_offset
from sharedlog._core.reading import place_at
from sharedlog._core.steps import Rule
from sharedlog._core.streams import substream_number, tag_of
from sharedlog._log.following import start_of
from sharedlog._log.resending import until_answered
from sharedlog.spark._columns import (
    SCHEMA,
    Columns,
    RawColumns,
    arrow_schema_of,
    columns_of,
    differences,
    schema_of,
)
from sharedlog.spark._filters import Selection, wanted_by
from sharedlog.spark._offsets import Offset, behind_trimmed, first_offset, ranges_of
from sharedlog.spark._opened import place_of
from sharedlog.spark._options import SourceError, SourceOptions
from sharedlog.spark._telling import tell_scan

try:
    from pyspark.sql.streaming import datasource as _limits
except ImportError:
    _limits = None  # type: ignore[assignment]

# From PySpark 4.2 on a source says how much a micro-batch may have.
_ReadMaxRows: Any = getattr(_limits, "ReadMaxRows", None)
_ReadMaxBytes: Any = getattr(_limits, "ReadMaxBytes", None)
_ReadAllAvailable: Any = getattr(_limits, "ReadAllAvailable", None)
_AvailableNow: Any = getattr(_limits, "SupportsTriggerAvailableNow", object)
_T = TypeVar("_T")
_ROWS = 10_000
# A hold is moved so often at most: each time is a wait for the disk.
_MOVED_S = 1.0


class LogRange(InputPartition):
    """What one task reads, of which incarnation of the log."""

    def __init__(self, of: Range, incarnation: str) -> None:
        self.range = of
        self.incarnation = incarnation


def columns(options: SourceOptions, given: StructType | None = None) -> Columns:
    """Return how messages are rows; raises ``SourceError``, ``SchemaChanged``.

    ``given``: the columns that the query was planned with, also its user's own. Where none are
    declared yet Arrow's are these, and the first message is held to them.
    """
    place, form = place_of(options.url()), options.values.format
    try:
        found = schema_of(place, options.stream, options.values)
    except ValueError as error:
        raise SourceError(str(error)) from error
    planned = None if given is None else nullable(arrow_schema(given))
    if form == "raw":
        if planned is None or planned.names == SCHEMA.names:
            return RawColumns()
        known = pyarrow.schema([each for each in nullable(SCHEMA) if each.name in planned.names])
        if others := differences(known, planned, ordered=False):
            raise SourceError(f"the query has columns that a message has not: {others}")
        return RawColumns(planned.names)
    if found is None and planned is not None and form == "arrow":
        found = arrow_schema_of(planned)
    if found is None:
        raise SourceError(
            f"the values of stream {options.stream!r} are not declared as {form}: no query has "
            "written them so. Of arrow say what they will be, .schema(...); of protobuf name the "
            "message, and its module or descriptorFile"
        )
    made = columns_of(found)
    if planned is not None:
        declared = nullable(arrow_schema(from_arrow_schema(made.schema)))
        if others := differences(declared, planned):
            raise SchemaChanged(
                f"the values of stream {options.stream!r} have other columns than the query: "
                f"{others}"
            )
    return made


class Planner:
    """The log as a query's planner sees it."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.place = place_of(options.url())
        self.stream = self.run(lambda: find_stream(options.stream))
        self.tags = [tag_of(options.stream, each) for each in range(self.stream.substreams)]

    def run(self, rule: Callable[[], Rule[_T]]) -> _T:
        """Run a rule until the log answers: a query does not end for what passes."""
        return until_answered(self.place, rule)

    def at(self, where: Any) -> Offset:
        """Return the offset behind which a place begins."""
        start = start_of(self.place, self.stream, where)
        found = self.run(lambda: first_offset(self.tags, self.place.incarnation, start))
        return found._replace(stream=self.options.stream)

    def last(self, after: int, most: int | None, most_bytes: int | None = None) -> Offset:
        """Return the offset through which to read next."""
        try:
            lsn = self.run(lambda: last_offset(self.options.stream, after, most, most_bytes))
        except TrimmedLog as error:
            raise behind_trimmed(after, error) from error
        return Offset(lsn, self.place.incarnation, stream=self.options.stream)

    def ranges(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks' ranges; raises ``LogForked`` for offsets of another log."""
        for each in (start, end):
            if each.incarnation != self.place.incarnation:
                raise LogForked(
                    f"the query's checkpoint is of incarnation {each.incarnation}, the log is "
                    f"{self.place.incarnation}: another log, or one that was restored; begin a "
                    "new checkpoint behind a position"
                )
        rows = self.options.partition_rows
        try:
            found = self.run(lambda: ranges_of(self.tags, start, end, rows))
        except TrimmedLog as error:
            raise behind_trimmed(start.lsn, error) from error
        return [LogRange(each, self.place.incarnation) for each in found]


class BatchReader(DataSourceReader):
    """One batch query: what was committed between two places, as of its planning."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        if options.most_rows or options.most_bytes or options.hold is not None:
            raise SourceError(
                "maxRowsPerTrigger, maxBytesPerTrigger and name are of streaming queries"
            )
        self._options = options
        self._schema = schema
        self.wanted = Selection()

    def partitions(self) -> list[InputPartition]:
        """Return what the tasks read."""
        planner = Planner(self._options)
        if "@" in str(self._options.end):
            raise SourceError("endingPosition: a time, or end; a position might cut a commit")
        start, end = planner.at(self._options.start), planner.at(self._options.end)
        wanted = self.wanted
        if wanted.since is not None:
            since = planner.at(wanted.since)
            start = since if since.lsn > start.lsn else start
        planner.tags = [each for each in planner.tags if wanted.has(each, len(planner.tags))]
        found = [
            each
            for each in planner.ranges(start, end)
            if not isinstance(each, LogRange) or wanted.reaches(each.range)
        ]
        tell_scan(self._options, planner.place.name, start, end, len(found))
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a range, on an executor."""
        return read_range(self._options, partition, self._schema)


class FilteredReader(BatchReader):
    """One batch query that reads no more than its filters leave.

    Spark refuses a reader that takes filters unless its own setting allows them.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        """Take what they say of places, keys and times; Spark applies all of them, too."""
        self.wanted = wanted_by(filters)
        return filters


class StreamReader(DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """One streaming query; its planning is in one process, its tasks in others."""

    def __init__(self, options: SourceOptions, schema: StructType | None = None) -> None:
        if options.end != "end":
            raise SourceError("endingPosition: a streaming query has none")
        if _ReadMaxRows is None and (options.most_rows or options.most_bytes):
            raise SourceError("maxRowsPerTrigger and maxBytesPerTrigger need PySpark 4.2 or newer")
        self._options = options
        self._schema = schema
        self._planner: Planner | None = None
        # Where a query ends that takes what is available now.
        self._end: int | None = None
        self._held: dict[str, Hold] = {}
        # Through where Spark is done, if the holds are not there yet; when they were moved last.
        self._done: Offset | None = None
        self._moved_s = float("-inf")
        # Whether the log of the driver has what this run reads; progress has each micro-batch.
        self._told = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins; the log keeps what is behind it from here on."""
        first = self._plan().at(self._options.start)
        self._hold(first)
        return first.json()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return through where the next micro-batch reads; ``start`` if there is nothing."""
        planner = self._plan()
        self._follow()
        self._renew()
        if start is None:
            # Before PySpark 4.2: it is unknown where the query is.
            return planner.at("end").json()
        begin = Offset.read(start)
        most = limit.max_rows if _ReadMaxRows and isinstance(limit, _ReadMaxRows) else None
        most_bytes = None
        if _ReadMaxBytes and isinstance(limit, _ReadMaxBytes):
            most_bytes = limit.max_bytes
        found = planner.last(begin.lsn, most, most_bytes)
        self._take(begin)
        if self._end is not None and found.lsn > self._end:
            found = found._replace(lsn=max(self._end, begin.lsn))
        return start if found.lsn == begin.lsn else found.json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return how much a micro-batch may have."""
        options = self._options
        if options.most_bytes is not None:
            return _ReadMaxBytes(options.most_bytes)
        return _ReadAllAvailable() if options.most_rows is None else _ReadMaxRows(options.most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what is there now for the query's end."""
        self._end = self._plan().at("end").lsn

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the log's end, for the query's progress."""
        return self._plan().at("end").json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what the tasks of a micro-batch read: the same for the same offsets."""
        begin, last = Offset.read(start), Offset.read(end)
        planner = self._plan()
        found = planner.ranges(begin, last)
        self._take(begin)
        if not self._told:
            self._told = True
            tell_scan(self._options, planner.place.name, begin, last, len(found))
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a range, on an executor."""
        return read_range(self._options, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Have the log keep what is behind the offset only: Spark plans nothing older again.

        Not with each micro-batch where they are many a second: until then it keeps more.
        """
        self._done = Offset.read(end)
        self._follow()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def _follow(self) -> None:
        """Move the holds to where Spark is done, if they were not moved a moment ago."""
        if self._done is not None and time.monotonic() - self._moved_s >= _MOVED_S:
            self._hold(self._done)
            self._done, self._moved_s = None, time.monotonic()

    def _take(self, at: Offset) -> None:
        """Have the query's holds, behind an offset where they are not there yet.

        Also where a query goes on: one whose holds were dropped is told so before it reads
        (``TrimmedLog``), and one to which nothing comes renews them.
        """
        name = self._options.hold
        if name is None or self._held:
            return
        planner = self._plan()
        starts = dict.fromkeys(planner.tags, at.lsn + 1)
        times = (time.time_ns() // 1000, hold_retention_us(planner.stream))
        incarnation, limit = planner.place.incarnation, self._options.limit
        self._held = planner.run(lambda: take(name, starts, incarnation, *times, note=limit))
        # Of a run that had another limit.
        told = {tag: None for tag, hold in self._held.items() if hold.note != limit}
        if told:
            self._held = planner.run(lambda: move(self._held, told, times[0], note=limit))

    def _hold(self, at: Offset) -> None:
        """Have the log keep what is behind an offset, and from there on only."""
        self._take(at)
        behind = [tag for tag, hold in self._held.items() if at.lsn > hold.place[0]]
        if not behind:
            return
        planner, now_us = self._plan(), time.time_ns() // 1000
        found = planner.run(lambda: place_at(at.lsn, planner.place.incarnation))
        if found is not None:
            places = {tag: found._replace(substream=substream_number(tag)) for tag in behind}
            self._held = planner.run(lambda: move(self._held, places, now_us))

    def _renew(self) -> None:
        """Show that the query is there, where nothing came for it."""
        now_us = time.time_ns() // 1000
        silent = {
            tag: None
            for tag, hold in self._held.items()
            if 4 * (now_us - hold.renewed_us) > hold.retention_us
        }
        if silent:
            self._held = self._plan().run(lambda: move(self._held, silent, now_us))


def read_range(
    options: SourceOptions, partition: InputPartition, schema: StructType | None = None
) -> Iterator[Any]:
    """Yield a range's messages as Arrow batches.

    Raises ``LogForked`` if this machine's log is another one, ``TrimmedLog``, ``SealedMessage``.
    """
    if not isinstance(partition, LogRange):
        if partition.value is None:
            # Spark's own, where there is nothing to read.
            return
        raise SourceError(f"a task was given {partition!r:.100}, no range of the log")
    place = place_of(options.url(), partition.incarnation)
    if place.incarnation != partition.incarnation:
        raise LogForked(f"the query was planned for {partition.incarnation}: this is another log")
    reader = RangeReader(partition.range, partition.incarnation)
    rows = columns(options, schema)
    while found := until_answered(place, lambda: reader.read(_ROWS)):
        yield from rows.batches(found, place.seals)
    freeze("read")
