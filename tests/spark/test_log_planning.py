"""The plans of a log's source, as Spark's planner asks for them, without a session (§16)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import datasource
from pyspark.sql.types import StructType

import sharedlog
from sharedlog._core.holds import all_holds
from sharedlog._core.query.attempt import batch_of
from sharedlog._core.query.state import Ticket, draw_plan
from sharedlog._core.streams import tag_of
from sharedlog.spark import _source
from sharedlog.spark._filters import Selection, wanted_by
from sharedlog.spark._messages import RawRows
from sharedlog.spark._offsets import Offset
from sharedlog.spark._opened import place_of
from sharedlog.spark._options import SinkOptions, SourceError, SourceOptions
from sharedlog.spark._sink import Writing, commit
from sharedlog.spark._source import BatchReader, FilteredReader, StreamReader, read_range
from sharedlog.spark._tasks import TaskWriter
from tests.helpers.waiting import until
from tests.spark.starting import LIMITED

_LIMITED = pytest.mark.skipif(
    _source._ReadMaxBytes is None, reason="nobody tells a source a limit before PySpark 4.2"
)
_FILTERED = pytest.mark.skipif(
    not hasattr(datasource, "EqualTo"), reason="nobody hands filters on before PySpark 4.1"
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Where the log is."""
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.fixture
def log(url: str) -> Iterator[sharedlog.Log]:
    """A log with a stream of two substreams."""
    with sharedlog.create(url) as made:
        made.stream("orders", 2)
        yield made


def _publish(log: sharedlog.Log, first: int, end: int, size: int = 1) -> None:
    for number in range(first, end):
        log.publish("orders", f"{number}" + "." * size, key=f"k{number}")


def _reader(url: str, **options: str) -> StreamReader:
    return StreamReader(SourceOptions.read({"log": url, "stream": "orders", **options}))


def _numbers(url: str, reader: StreamReader, start: Any, end: Any) -> list[int]:
    """What the tasks of a micro-batch read."""
    options = SourceOptions.read({"log": url, "stream": "orders"})
    return sorted(
        int(bytes(value).rstrip(b"."))
        for partition in reader.partitions(start, end)
        for batch in read_range(options, partition)
        for value in batch.column("value").to_pylist()
    )


@_LIMITED
def test_a_micro_batch_has_about_as_many_bytes_as_were_asked_for(
    log: sharedlog.Log, url: str
) -> None:
    """Each message is in one of them, and one that is larger than all of it alone (§16)."""
    _publish(log, 0, 20, 1000)
    _publish(log, 20, 21, 9000)
    _publish(log, 21, 24, 1000)
    reader = _reader(url, maxBytesPerTrigger="4500")
    limit = reader.getDefaultReadLimit()
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, limit)) != at:
        found.append(_numbers(url, reader, at, end))
        at = end
    assert [number for each in found for number in each] == list(range(24))
    assert len(found) >= 6
    assert max(map(len, found)) <= 5


def test_limits_are_refused_where_spark_tells_nobody_of_them(
    log: sharedlog.Log, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before PySpark 4.2 they would be ignored: it is said when the query is planned (§16)."""
    monkeypatch.setattr(_source, "_ReadMaxRows", None)
    for name in ("maxRowsPerTrigger", "maxBytesPerTrigger"):
        with pytest.raises(SourceError, match=r"PySpark 4\.2"):
            _reader(url, **{name: "10"})
    assert _reader(url).initialOffset()["lsn"] == 0


def test_a_streaming_query_begins_at_the_end_or_at_a_time(log: sharedlog.Log, url: str) -> None:
    """What was appended before is not read, and all behind it is (DESIGN-LOG §16)."""
    _publish(log, 0, 5)
    newest = max(each.append_time for at in range(2) for each in log.read("orders", at))
    after = newest + timedelta(microseconds=1)
    until_later = after + timedelta(milliseconds=1)
    until(lambda: datetime.now(UTC) > until_later, "a later time", 10)
    at_end = _reader(url, startingPosition="end")
    begun = at_end.initialOffset()
    _publish(log, 5, 9)
    assert _numbers(url, at_end, begun, at_end.latestOffset(begun)) == [5, 6, 7, 8]
    timed = _reader(url, startingPosition=after.isoformat())
    begun = timed.initialOffset()
    assert _numbers(url, timed, begun, timed.latestOffset(begun)) == [5, 6, 7, 8]
    # A time before everything is the beginning.
    early = _reader(url, startingPosition=(newest - timedelta(days=1)).isoformat())
    begun = early.initialOffset()
    assert _numbers(url, early, begun, early.latestOffset(begun)) == list(range(9))


@_FILTERED
def test_filters_narrow_what_is_read_by_what_they_say_and_no_further(
    log: sharedlog.Log, url: str
) -> None:
    """A position is one LSN; of times only a lower bound narrows: Spark applies both (§16)."""
    _publish(log, 0, 3)
    message = next(iter(log.read("orders", 0)))
    lsn, time = message.position.lsn, message.append_time
    position = datasource.EqualTo(("position",), str(message.position))
    assert wanted_by([position]) == Selection(first=lsn, last=lsn)
    assert wanted_by([datasource.EqualTo(("position",), "none")]) == Selection()
    assert wanted_by([datasource.GreaterThan(("position",), str(message.position))]) == Selection()
    later = time + timedelta(seconds=1)
    between = [
        datasource.GreaterThanOrEqual(("append_time",), time),
        datasource.LessThan(("append_time",), later),
    ]
    assert wanted_by(between) == Selection(since=time - timedelta(microseconds=1))
    assert wanted_by(between[1:]) == Selection()


@_FILTERED
@pytest.mark.parametrize(
    ("kind", "there"), [("GreaterThanOrEqual", True), ("EqualTo", True), ("GreaterThan", False)]
)
def test_a_filter_from_a_time_on_has_what_was_appended_then(
    log: sharedlog.Log, url: str, kind: str, there: bool
) -> None:
    """A place by time is behind it: of an inclusive bound nothing may be lost (§16)."""
    _publish(log, 0, 9)
    messages = [each for at in range(2) for each in log.read("orders", at)]
    options = SourceOptions.read({"log": url, "stream": "orders", "pushFilters": "true"})
    for message in messages:
        reader = FilteredReader(options)
        reader.pushFilters([getattr(datasource, kind)(("append_time",), message.append_time)])
        positions = [
            position
            for partition in reader.partitions()
            for batch in read_range(options, partition)
            for position in batch.column("position").to_pylist()
        ]
        assert (str(message.position) in positions) is there


def test_a_commit_tells_its_counts_on_the_drivers_log(
    log: sharedlog.Log, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows, entries, appends and the marker's LSN, as the log has them; then the offset (§16)."""
    place, options = place_of(url), SinkOptions.read({"log": url, "stream": "orders", "name": "q"})
    ticket = Ticket("q", "identity", "run", place.run(draw_plan()), 0)

    rows = pyarrow.RecordBatch.from_pylist([{"value": b"7"}] * 6)
    tags = [tag_of("orders", each) for each in range(2)]
    told = list(RawRows(rows.schema, None).messages(rows, tags, itertools.count(), 1))
    results = [TaskWriter(place, ticket).write(told[:4]), TaskWriter(place, ticket).write(told[4:])]
    begun = Offset(0, log.incarnation).json()
    with caplog.at_level(logging.INFO, "sharedlog.spark"):
        closed = commit(place, options, results)
    said = caplog.messages[-1]
    assert batch_of(results).rows == 6
    assert f"q: batch=0 stream=orders rows=6 entries=6 appends=2 bytes={_size(results)}" in said
    assert said.endswith(f"undone=0 lsn={closed.query.lsn}")
    # What Spark's progress shows of a source that reads it.
    reader = _reader(url)
    assert reader.reportLatestOffset()["lsn"] >= closed.query.lsn
    assert reader.latestOffset(begun)["lsn"] >= closed.query.lsn
    assert _numbers(url, reader, begun, reader.latestOffset(begun)) == [7] * 6


def test_a_plan_tells_what_is_read_and_written_on_the_drivers_log(
    log: sharedlog.Log, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each scan and write: a Python source adds no text to ``explain`` (§16)."""
    _publish(log, 0, 5)
    caplog.set_level(logging.INFO, "sharedlog.spark")
    end = 5
    reader = _reader(url, name="revenue", **({"maxRowsPerTrigger": "3"} if LIMITED else {}))
    first, last = reader.initialOffset(), Offset(3, log.incarnation).json()
    reader.partitions(first, last)
    reader.partitions(last, Offset(end, log.incarnation).json())
    (said,) = _planned(caplog)
    for told in ("scan_planned", "stream='orders'", "name='revenue'", "after=0", "through=3"):
        assert told in said
    assert f"limit={'maxRowsPerTrigger=3' if LIMITED else None!r}" in said
    caplog.clear()
    BatchReader(SourceOptions.read({"log": url, "stream": "orders"})).partitions()
    (said,) = _planned(caplog)
    assert "scan_planned" in said
    assert f"through={end}" in said
    caplog.clear()
    given = {"log": url, "stream": "orders", "name": "q", "key": "word"}
    schema = StructType().add("value", "string").add("word", "string")
    for stream in (True, True, False, False):
        Writing(SinkOptions.read(given), schema, stream=stream)
    # Of a stream once, of each batch write.
    assert len(_planned(caplog)) == 3
    for told in ("write_planned", "stream='orders'", "name='q'", "key='word'", "compared=True"):
        assert told in _planned(caplog)[0]
    caplog.clear()
    # Arrow rows cost time to compare: only those of a name are.
    unnamed = {"log": url, "stream": "orders", "valueFormat": "arrow"}
    for stream in (True, False):
        Writing(SinkOptions.read(unnamed), schema, stream=stream)
    Writing(SinkOptions.read({**unnamed, "name": "q"}), schema, stream=False)
    assert ["compared=True" in each for each in _planned(caplog)] == [False, False, True]


def test_a_hold_says_how_much_its_query_takes_at_a_time(log: sharedlog.Log, url: str) -> None:
    """Of the run that has it now, however it was made and moved (DESIGN-LOG §16)."""
    _publish(log, 0, 5)
    options = SourceOptions.read({"log": url, "stream": "orders", "name": "q"})

    def run(**limit: int) -> set[str]:
        reader = StreamReader(replace(options, **limit))
        begun = reader.initialOffset()
        reader.commit(reader.latestOffset(begun))
        return {each.note for each in log._run(all_holds())}

    assert run() == {""}
    assert run(most_rows=7) == {"maxRowsPerTrigger=7"}
    assert run(most_bytes=70) == {"maxBytesPerTrigger=70"}
    _publish(log, 5, 9)
    assert run(most_bytes=70) == {"maxBytesPerTrigger=70"}
    assert run() == {""}


def _planned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "_planned'" in each]


def _size(results: list[Any]) -> int:
    return sum(each.bytes for each in results)
