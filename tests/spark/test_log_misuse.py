"""Mistakes of users and operators: one name twice, another log under the URL (§16)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.errors import PySparkException

import sharedlog
import sharedlog.spark
from sharedlog._core.incarnation import replace_incarnation
from sharedlog.spark._messages import RawRows
from sharedlog.spark._opened import place_of
from tests.spark.log_chain import Chain
from tests.spark.starting import run_on_what_is_there

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _append(frame: Any, chain: Chain, **options: str) -> None:
    given = {"log": chain.url, "stream": "paid", "name": "pay", **options}
    frame.write.format("sharedlog").options(**given).mode("append").save()


def test_a_jobs_name_is_of_one_stream(chain: Chain, log: sharedlog.Log) -> None:
    """The same rows for another stream are another write: it was told to be done, and was not."""
    log.stream("billed", 3)
    frame = chain.spark.createDataFrame([("a", "b")], "key string, value string")
    _append(frame, chain, name="daily")
    with pytest.raises(PySparkException, match=r"AlreadyCommitted.*another stream"):
        _append(frame, chain, name="daily", stream="billed")
    _append(frame, chain, name="daily")
    assert chain.written() == {"b": 1}


def test_raw_rows_are_no_columns(chain: Chain, log: sharedlog.Log) -> None:
    """Of a stream that is declared they say what they are, or who reads columns is stuck."""
    sharedlog.spark.declare_columns(log, "paid", pyarrow.schema([("cents", pyarrow.int64())]))
    frame = chain.spark.createDataFrame([("a", "b")], "key string, value string")
    with pytest.raises(PySparkException, match=r"SchemaChanged.*content_type.*nothing is written"):
        _append(frame, chain)
    assert chain.written() == {}


def test_another_log_under_the_url_is_opened_anew(chain: Chain, log: sharedlog.Log) -> None:
    """Spark keeps its Python processes: they had the old files open, and refused for ever."""
    frame = chain.spark.createDataFrame([("a", "b")], "key string, value string")
    _append(frame, chain)
    log.close()
    for each in chain.directory.glob("log.db*"):
        each.unlink()
    with sharedlog.create(chain.url) as now:
        chain.log = now
        now.stream("orders", 2)
        now.stream("paid", 3)
        chain.publish(5)
        read = chain.spark.read.format("sharedlog").options(log=chain.url, stream="orders").load()
        assert read.count() == 5
        _append(frame, chain)
        assert chain.written() == {"b": 1}


@pytest.mark.parametrize("saw_more", [False, True])
def test_a_log_that_is_declared_restored_is_opened_anew(
    log: sharedlog.Log, tmp_path: Path, monkeypatch: Any, saw_more: bool
) -> None:
    """Until an operator says so a handle that saw more than there is stays away."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    before = place_of(url)
    if saw_more:

        def damaged(keys: object) -> None:
            raise sharedlog.CorruptLog(f"less than this process saw: {keys}")

        monkeypatch.setattr(before.engine, "get", damaged)
    assert place_of(url) is before
    log._run(replace_incarnation("ab" * 8))
    assert place_of(url).incarnation == "ab" * 8


def test_a_query_whose_hold_was_dropped_does_not_go_on(chain: Chain, log: sharedlog.Log) -> None:
    """Also where nothing came since: nothing keeps what it has not read (DESIGN-LOG §12)."""
    chain.publish(5)
    chain.run(reads={"name": "pay"}, change=lambda frame: frame.select("key", "value"))
    log.drop_hold("@query:pay")
    with pytest.raises(PySparkException, match="was dropped"):
        chain.run(reads={"name": "pay"}, change=lambda frame: frame.select("key", "value"))


def test_a_served_log_is_refused_before_it_is_looked_for(spark: Any) -> None:
    """Nobody has to wait for a server that is not what is needed."""
    sharedlog.spark.register(spark)
    reader = spark.read.format("sharedlog").options(log="grpc://127.0.0.1:1", stream="orders")
    with pytest.raises(PySparkException, match=r"InvalidRequest.*opens the log itself"):
        reader.load()


def test_a_key_is_as_long_as_any_messages() -> None:
    """A longer one is refused where it is written, as ``publish`` does."""
    schema = pyarrow.schema([("key", pyarrow.string()), ("value", pyarrow.string())])
    rows = RawRows(schema, None)

    def written(length: int) -> int:
        batch = pyarrow.RecordBatch.from_pylist([{"key": "k" * length, "value": "v"}], schema)
        return len(list(rows.messages(batch, ["tag"], itertools.count(), 1)))

    assert written(1024) == 1
    with pytest.raises(sharedlog.InvalidRequest, match="1024"):
        written(1025)


def test_two_writes_of_a_micro_batch_under_one_name_are_refused(
    chain: Chain, log: sharedlog.Log, tmp_path: Path
) -> None:
    """The second one was taken for the first one run again, and its rows were lost silently."""
    log.stream("billed", 3)
    chain.publish(10)

    def run(stream: str, other: str) -> None:
        def write(frame: Any, batch: int) -> None:
            mine = frame.filter("key < 'k3'")
            _append(mine, chain)
            # The same rows again are what a function gives that tries again.
            _append(mine, chain)
            _append(frame.filter(other), chain, stream=stream)

        writer = (
            chain.source()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_on_what_is_there(writer.start, tmp_path / "checkpoint")

    refused = r"AlreadyCommitted.*a name of its own"
    with pytest.raises(PySparkException, match=refused):
        run("paid", "key >= 'k3'")
    # Another run knows what the first write did, and refuses what comes under its name again.
    with pytest.raises(PySparkException, match=refused):
        run("billed", "key < 'k3'")
    assert chain.written() == {f"o{at}": 1 for at in range(10) if at % 7 < 3}
