"""``format("sharedlog")``: a stream of a log as a source of queries (DESIGN-LOG §16)."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import sharedlog
import sharedlog.spark
from sharedlog import TrimmedLog
from sharedlog._log.place import Place
from sharedlog.spark._options import SourceError, SourceOptions
from sharedlog.spark._source import StreamReader
from tests.spark.starting import LIMITED, run_on_what_is_there

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sharedlog.Log]:
    """A log with a stream of 40 messages, six of which are one transaction."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as made:
        made.stream("orders", 3)
        made.stream("other", 1)
        for number in range(17):
            made.publish("orders", f"a{number}", key=f"k{number}", headers={"n": str(number)})
            made.publish("other", "x")
        with made.producer().transaction() as transaction:
            for number in range(6):
                transaction.publish("orders", f"b{number}", key=f"k{number}")
        for number in range(17):
            made.publish("orders", f"c{number}", key=f"k{number}")
        yield made


def _reader(spark: Any, tmp_path: Path, *, streams: bool = False, **options: str) -> Any:
    sharedlog.spark.register(spark)
    reader = (spark.readStream if streams else spark.read).format("sharedlog")
    given = {"log": f"sqlite:///{tmp_path / 'log.db'}", "stream": "orders", **options}
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader


def _rows(frame: Any) -> list[tuple[int, int, int, str]]:
    found = frame.select("substream", "lsn", "ordinal", "value").collect()
    return sorted((row[0], row[1], row[2], bytes(row[3]).decode()) for row in found)


def _wanted(log: sharedlog.Log) -> list[tuple[int, int, int, str]]:
    messages = [each for at in range(3) for each in log.read("orders", at)]
    return sorted(
        (each.substream, each.position.lsn, each.position.ordinal, each.text) for each in messages
    )


def _micro_batches(
    spark: Any, tmp_path: Path, checkpoint: Path, **options: str
) -> dict[int, list[tuple[int, int, int, str]]]:
    """Run a query on what is available now; return its micro-batches."""
    batches: dict[int, list[tuple[int, int, int, str]]] = {}
    writer = (
        _reader(spark, tmp_path, streams=True, **options)
        .load()
        .writeStream.foreachBatch(lambda frame, batch: batches.update({batch: _rows(frame)}))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    run_on_what_is_there(writer.start, checkpoint)
    return batches


def test_a_batch_query_has_every_committed_message_once(
    spark: Any, log: sharedlog.Log, tmp_path: Path
) -> None:
    """As the log's own readers have them, however many tasks read (DESIGN-LOG §16)."""
    frame = _reader(spark, tmp_path, partitionRows="7").load().cache()
    assert _rows(frame) == _wanted(log)
    row = next(each for each in frame.collect() if bytes(each.value) == b"a3")
    message = next(each for at in range(3) for each in log.read("orders", at) if each.text == "a3")
    assert bytes(row.key) == message.key
    assert {name: bytes(value) for name, value in row.headers.items()} == message.headers
    assert row.position == str(message.position)
    assert row.append_time.astimezone(UTC) == message.append_time
    # Behind one message, in the midst of a commit.
    commit = next(each for at in range(3) for each in log.read("orders", at) if each.text == "b0")
    rest = _rows(_reader(spark, tmp_path, startingPosition=str(commit.position)).load())
    follower = log.follow("orders", after=commit.position)
    wanted = sorted(each.text for each in follower.poll())
    assert wanted
    assert sorted(each[3] for each in rest) == wanted


def test_a_micro_batch_that_is_planned_again_has_the_same_rows(
    spark: Any, log: sharedlog.Log, tmp_path: Path
) -> None:
    """Each message is in one of them; replayed after a crash it is the same (DESIGN-LOG §16)."""
    checkpoint, limit = tmp_path / "checkpoint", {"maxRowsPerTrigger": "9"} if LIMITED else {}
    first = _micro_batches(spark, tmp_path, checkpoint, name="q", **limit)
    assert sorted(row for rows in first.values() for row in rows) == _wanted(log)
    if LIMITED:
        assert len(first) >= 4
        assert max(map(len, first.values())) <= 9
    # What Spark had not noted as done when it was killed it does again.
    last = max(first)
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    for number in range(5):
        log.publish("orders", f"d{number}", key=f"k{number}")
    second = _micro_batches(spark, tmp_path, checkpoint, name="q", **limit)
    assert second.pop(last) == first[last]
    found = [row for rows in (*first.values(), *second.values()) for row in rows]
    assert sorted(found) == _wanted(log)
    # What it has not read stays in the log.
    held = {each.tag: each.place[0] for each in log.holds("@query:q")}
    assert len(held) == 3
    assert all(0 < lsn <= found[-1][1] for lsn in held.values())


def test_a_checkpoint_of_another_log_is_refused(
    spark: Any, log: sharedlog.Log, tmp_path: Path
) -> None:
    """Offsets of one log name nothing in another one (DESIGN-LOG §12)."""
    checkpoint = tmp_path / "checkpoint"
    _micro_batches(spark, tmp_path, checkpoint)
    offsets = checkpoint / "offsets"
    newest = max(
        (each for each in offsets.iterdir() if each.name.isdigit()), key=lambda p: int(p.name)
    )
    lines = newest.read_text().splitlines()
    said = json.loads(lines[-1]) | {"incarnation": "0" * 16}
    newest.write_text("\n".join([*lines[:-1], json.dumps(said)]))
    (offsets / f".{newest.name}.crc").unlink(missing_ok=True)
    shutil.rmtree(checkpoint / "commits")
    with pytest.raises(PySparkException, match="another log, or one that was restored"):
        _micro_batches(spark, tmp_path, checkpoint)


def test_holds_are_not_moved_with_each_of_many_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is noted at once, later ones after a while, if nothing more comes, too (L6)."""
    now_s = [100.0]
    monkeypatch.setattr("sharedlog.spark._source.time.monotonic", lambda: now_s[0])
    url = f"sqlite:///{tmp_path / 'held.db'}"
    with sharedlog.create(url) as log:
        log.stream("orders", 1)
        reader = StreamReader(SourceOptions.read({"log": url, "stream": "orders", "name": "q"}))
        offsets = [reader.initialOffset()]
        held = []
        for number in range(4):
            log.publish("orders", f"a{number}")
            offsets.append(reader.latestOffset(offsets[-1]))
            reader.commit(offsets[-1])
            held.append(log.holds("@query:q")[0].place[0])
            now_s[0] += 0.4
        assert held == [offsets[at]["lsn"] for at in (1, 1, 1, 3)]
        now_s[0] += 1.0
        assert reader.latestOffset(offsets[-1]) == offsets[-1]
        assert log.holds("@query:q")[0].place[0] == offsets[-1]["lsn"]


def test_a_query_waits_for_a_log_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it does for what it appends: planning, tasks and holds go on (L3)."""
    run, failing = Place.run, itertools.cycle([True, False])

    def fails(place: Place, rule: Any) -> Any:
        if next(failing):
            raise sharedlog.LogUnavailable("it is started again")
        return run(place, rule)

    url = f"sqlite:///{tmp_path / 'away.db'}"
    with sharedlog.create(url) as log:
        log.stream("orders", 1)
        log.publish("orders", "a")
        monkeypatch.setattr(Place, "run", fails)
        reader = StreamReader(SourceOptions.read({"log": url, "stream": "orders", "name": "q"}))
        begun = reader.initialOffset()
        end = reader.latestOffset(begun)
        (task,) = reader.partitions(begun, end)
        rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
        reader.commit(end)
        assert reader.latestOffset(end) == end
        monkeypatch.undo()
        assert [row["value"] for row in rows] == [b"a"]
        assert log.holds("@query:q")[0].place[0] == end["lsn"]


def test_a_query_that_was_away_for_longer_than_messages_are_kept_is_told_what_to_do(
    tmp_path: Path,
) -> None:
    """Nothing is skipped: it ends; what a named query has not read is kept (DESIGN-LOG §12, L6)."""
    url = f"sqlite:///{tmp_path / 'short.db'}"
    given = {"log": url, "stream": "orders"}
    with sharedlog.create(url) as log:
        log.stream("orders", 2, timedelta(0))
        for number in range(6):
            log.publish("orders", f"a{number}", key=f"k{number}")
        reader = StreamReader(SourceOptions.read(given))
        named = StreamReader(SourceOptions.read({**given, "name": "q"}))
        begun = reader.initialOffset()
        kept = named.initialOffset()
        end = reader.latestOffset(begun)
        assert reader.partitions(begun, end)
        log.trim()
        assert named.latestOffset(kept) == end
        log.forget_hold("@query:q")
        log.trim()
        with pytest.raises(TrimmedLog, match="new checkpoint") as told:
            reader.latestOffset(begun)
        assert told.value.lost == (1, told.value.first - 1)
        # A PySpark that does not say where a query is asks for the end alone.
        assert reader.latestOffset() == end


def test_what_is_asked_wrongly_is_said_when_the_query_is_planned(
    spark: Any, log: sharedlog.Log, tmp_path: Path
) -> None:
    """An error names the option, or the stream that is not there."""
    with pytest.raises(PySparkException, match="there is no stream 'nothing'"):
        _reader(spark, tmp_path, stream="nothing").load()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name the log once"),
        ({"logEnv": "A", "logFile": "b"}, "name the log once"),
        ({"stream": "a b"}, "cannot name a stream"),
        ({"startingPosition": "yesterday"}, "startingPosition"),
        ({"startingPosition": "2026-01-31T12:00:00"}, "with its zone"),
        ({"startingPosition": "1.x@y"}, "no position"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger"),
        ({"shards": "3"}, "unknown option"),
        ({"path": "here"}, "takes no path"),
        ({"name": "a/b"}, "cannot name a query"),
    ],
)
def test_options_are_checked(given: dict[str, str], said: str) -> None:
    """What cannot be is refused before anything is read."""
    whole = {"stream": "orders"} | given
    if given and not {"logEnv", "logFile"} & set(given):
        whole["log"] = "sqlite:///x"
    with pytest.raises(SourceError, match=said):
        SourceOptions.read(whole)


def test_a_url_with_a_password_is_in_no_plan(monkeypatch: Any, tmp_path: Path) -> None:
    """An option names the variable or the file that has it."""
    monkeypatch.setenv("LOG_URL", "postgresql://u:secret@h/db")
    file = tmp_path / "url"
    file.write_text("redis://:secret@h\n")
    by_name = SourceOptions.read({"logEnv": "LOG_URL", "stream": "s"})
    by_file = SourceOptions.read({"logFile": str(file), "stream": "s"})
    assert (by_name.url(), by_file.url()) == ("postgresql://u:secret@h/db", "redis://:secret@h")
    assert "secret" not in repr(by_name) + repr(by_file)
