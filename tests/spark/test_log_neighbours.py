"""Neighbours of a query: changed columns, a consumer behind it, its progress (§16)."""

from __future__ import annotations

import collections
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.errors import PySparkException

import sharedlog
import sharedlog.spark
from sharedlog._core.stream_schema import forget_schema
from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S
from tests.spark.log_chain import Chain, failing
from tests.spark.raising import RaisingDataSource
from tests.spark.starting import LIMITED, run_on_what_is_there

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_ARROW = sharedlog.About(content_type="application/vnd.apache.arrow.stream")
_BEFORE = pyarrow.schema([("account", pyarrow.string()), ("cents", pyarrow.int64())])
_AFTER = _BEFORE.append(pyarrow.field("currency", pyarrow.string()))


def _publish(log: sharedlog.Log, columns: pyarrow.Schema, row: dict[str, Any]) -> None:
    """Publish a row as a program does that knows these columns."""
    value = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(value, columns) as writer:
        writer.write_batch(pyarrow.RecordBatch.from_pylist([row], columns))
    log.publish("orders", value.getvalue().to_pybytes(), key=row["account"], about=_ARROW)


def test_a_source_whose_columns_changed_between_two_runs(chain: Chain) -> None:
    """Behind the last row of before a query goes on with the new ones, and reads no other (§16)."""
    log, reads = chain.log, {"valueFormat": "arrow"}

    def run() -> None:
        chain.run(lambda frame: frame.selectExpr("to_json(struct(*)) as value"), reads=reads)

    def written() -> list[dict[str, Any]]:
        rows = [json.loads(each.text) for at in range(3) for each in log.read("paid", at)]
        return sorted(rows, key=lambda row: row["cents"])

    first = {"account": "a", "cents": 1}
    before = sharedlog.spark.declare_columns(log, "orders", _BEFORE)
    _publish(log, before, first)
    run()
    assert written() == [first]
    assert log._run(forget_schema("orders"))
    after = sharedlog.spark.declare_columns(log, "orders", _AFTER)
    second = {"account": "b", "cents": 2, "currency": "EUR"}
    _publish(log, after, second)
    run()
    assert written() == [first, second]
    # Two kinds in one micro-batch, as of a program that was not told.
    _publish(log, after, {"account": "c", "cents": 3, "currency": "EUR"})
    _publish(log, before, {"account": "d", "cents": 4})
    with pytest.raises(PySparkException, match=r"SchemaChanged.*other columns \(currency is miss"):
        run()
    assert written() == [first, second]
    query = chain.query()
    assert query is not None
    assert query.closed == 1


def test_a_consumer_behind_a_query_has_each_row_once_while_its_batch_runs_again(
    chain: Chain, tmp_path: Path
) -> None:
    """It follows all the while: attempts that fail, and a commit whose answer is lost.

    Spark aborts that one with every task's message, and commits the same batch again (§16).
    """
    marks, mark, bills = tmp_path / "marks", tmp_path / "mark", tmp_path / "bills.db"
    marks.mkdir()
    with sqlite3.connect(bills) as made:
        made.execute("CREATE TABLE bill (name TEXT)")
    consumer = sharedlog.Consumer(chain.log, "billing", ["paid"], f"sqlite:///{bills}")

    @consumer.on("paid", str)
    def bill(name: str, effects: sharedlog.Effects) -> None:
        effects.connection.execute("INSERT INTO bill VALUES (?)", (name,))

    def billed() -> collections.Counter[str]:
        with sqlite3.connect(bills) as reading:
            return collections.Counter(name for (name,) in reading.execute("SELECT * FROM bill"))

    chain.spark.dataSource.register(RaisingDataSource)
    following = threading.Thread(target=consumer.run)
    following.start()
    try:
        chain.publish(20)
        given = {"form": "sharedlog-raising", "mark": str(mark)}
        with pytest.raises(PySparkException, match="the answer was lost"):
            chain.run(failing(marks), **given)
        assert len(list(marks.iterdir())) == 2
        # Aborted, and what was committed stays.
        assert mark.read_text().startswith("0: ")
        assert chain.written() == chain.wanted()
        until(lambda: billed().total() >= 20, "what was committed", SLOW_S)
        chain.publish(5)
        chain.run(**given)
        until(lambda: billed().total() >= 25, "what was committed then", SLOW_S)
    finally:
        consumer.close()
        following.join()
    assert consumer.once() == 0
    assert chain.written() == chain.wanted()
    assert billed() == chain.wanted()


def test_the_progress_of_a_query_tells_how_far_it_has_read(chain: Chain) -> None:
    """Spark's own counts, and offsets of which the log says how many entries lie behind (§16)."""
    chain.publish(12)
    (progress,) = chain.run().recentProgress
    (source,) = progress["sources"]
    assert (progress["batchId"], progress["numInputRows"], source["numInputRows"]) == (0, 12, 12)
    query, end = chain.query(), _lsn(source["endOffset"])
    assert query is not None
    assert query.rows == 12
    assert end < query.lsn
    assert end == max(each.position.lsn for at in range(2) for each in chain.log.read("orders", at))
    if LIMITED:
        assert _lsn(source["latestOffset"]) == end


def _lsn(offset: Any) -> int:
    said = json.loads(offset) if isinstance(offset, str) else offset
    return int(said["lsn"])


def test_a_query_begins_before_any_has_written_its_columns(chain: Chain, tmp_path: Path) -> None:
    """It takes them from ``.schema(...)``, and the first message is held to them (§16)."""
    chain.log.publish("orders", "o")
    given = {"valueFormat": "arrow", "log": chain.url, "stream": "paid"}
    seen: list[Any] = []

    def run(columns: str, checkpoint: str) -> None:
        rows = chain.spark.readStream.format("sharedlog").options(**given).schema(columns).load()
        writer = rows.writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        run_on_what_is_there(writer.trigger(availableNow=True).start, tmp_path / checkpoint)

    with pytest.raises(PySparkException, match=r"not declared as arrow.*\.schema"):
        chain.spark.read.format("sharedlog").options(**given).load()
    run("account string, cents bigint", "second")
    assert seen == []
    columns = ("cast(value as string) as account", "7L as cents")
    chain.run(lambda frame: frame.selectExpr(*columns), key="account", valueFormat="arrow")
    run("account string, cents bigint", "second")
    assert [tuple(row) for row in seen] == [("o", 7)]
    with pytest.raises(
        PySparkException, match=r"SchemaChanged.*cents is int32, and declared as int"
    ):
        run("account string, cents int", "other")
