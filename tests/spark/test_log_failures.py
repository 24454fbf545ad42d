"""Failures of queries from a stream of a log to another: each row is there once (§16)."""

from __future__ import annotations

import collections
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import sharedlog
import sharedlog.spark
from tests.sharedlog.places import url_of
from tests.spark.failing import losing_its_shuffle
from tests.spark.log_chain import Chain, failing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.long
def test_a_task_that_fails_for_good_ends_the_query_and_leaves_nothing(
    chain: Chain, tmp_path: Path
) -> None:
    """Its attempts have appended, and no marker names them; started again all is there, once."""
    marks = tmp_path / "marks"
    marks.mkdir()
    chain.publish(20)
    with pytest.raises(PySparkException, match="meant to fail"):
        chain.run(failing(marks, times=4))
    assert len(list(marks.iterdir())) >= 4
    assert not chain.written()
    chain.run()
    assert chain.written() == chain.wanted()
    assert list(chain.log._engine.scan("query-task/")) == []


@pytest.mark.long
def test_a_stage_that_runs_again_adds_nothing(chain: Chain, tmp_path: Path) -> None:
    """Its shuffle was lost when tasks had appended: what Spark took is committed, once (§16)."""
    effects, seen = tmp_path / "effects", tmp_path / "seen"
    chain.publish(40)
    effects.write_text("\n".join(chain.wanted()))
    local = chain.spark.conf.get("spark.local.dir")
    frame = (
        chain.spark.read.format("sharedlog")
        .options(log=chain.url, stream="orders")
        .load()
        .selectExpr("cast(value as string) as reference")
    )
    lost = losing_its_shuffle(effects, "", local, seen)
    again = frame.repartition(2).mapInArrow(lost, frame.schema).selectExpr("reference as value")
    given = {"log": chain.url, "stream": "paid"}
    again.write.format("sharedlog").options(**given).mode("append").save()
    # Partition 0 began twice as the first attempt of a stage.
    assert seen.read_text().split().count("0") == 2
    assert chain.written() == chain.wanted()
    assert list(chain.log._engine.scan("query")) == ["query-tasks"]


@pytest.mark.long
def test_a_stage_of_a_micro_batch_that_runs_again_adds_nothing(
    chain: Chain, tmp_path: Path
) -> None:
    """The marker names one attempt of each task, of whichever run of the stage (§16)."""
    effects, seen = tmp_path / "effects", tmp_path / "seen"
    chain.publish(40)
    effects.write_text("\n".join(chain.wanted()))
    local = chain.spark.conf.get("spark.local.dir")

    def change(frame: Any) -> Any:
        named = frame.selectExpr("cast(value as string) as reference")
        lost = losing_its_shuffle(effects, "", local, seen)
        again = named.repartition(2).mapInArrow(lost, named.schema)
        return again.selectExpr("reference as value")

    chain.run(change)
    assert seen.read_text().split().count("0") == 2
    assert chain.written() == chain.wanted()
    assert list(chain.log._engine.scan("query-task/")) == []


@pytest.mark.long
@pytest.mark.parametrize("engine", ["redis", "postgres", "etcd"])
def test_a_query_over_each_engine_whose_tasks_fail_and_whose_batch_runs_again(
    spark: Any, tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    """Source and sink, each row once (§16)."""
    url, marks = url_of(engine, tmp_path, request.getfixturevalue), tmp_path / "marks"
    marks.mkdir()
    with sharedlog.create(url) as log:
        log.stream("orders", 2)
        log.stream("paid", 3)
        chain = Chain(spark, log, tmp_path, url)
        chain.publish(20)
        chain.run(failing(marks))
        assert len(list(marks.iterdir())) == 2
        assert chain.written() == chain.wanted()
        chain.forget_commit()
        chain.publish(10)
        chain.run()
        assert chain.written() == chain.wanted()
        query = chain.query()
        assert query is not None
        assert (query.closed, query.rows) == (1, 10)


@pytest.mark.long
def test_a_query_whose_messages_were_trimmed_ends_and_goes_on_as_it_is_told(
    spark: Any, tmp_path: Path
) -> None:
    """Nothing is skipped silently: a new checkpoint, adopted by the sink, reads what is kept."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as log:
        log.stream("orders", 2, timedelta(0))
        log.stream("paid", 3, timedelta(0))
        chain = Chain(spark, log, tmp_path)
        chain.publish(10)
        chain.run()
        chain.publish(10)
        log.trim()
        with pytest.raises(PySparkException, match="trimmed while it was away"):
            chain.run()
        query = chain.query()
        assert query is not None
        assert (query.closed, query.rows) == (0, 10)
        kept = collections.Counter(each.text for at in range(2) for each in log.read("orders", at))
        before = chain.written()
        assert 0 < kept.total() < 10
        chain.run(checkpoint=tmp_path / "new", adopt="true")
        assert chain.written() - before == kept


def test_other_columns_between_two_runs_are_refused_before_a_row_is_written(chain: Chain) -> None:
    """The query goes on where it was once it has the columns that were declared (§16)."""
    chain.publish(10)
    given = {"key": "account", "valueFormat": "arrow"}
    columns = ("cast(key as string) as account", "cast(value as string) as name")
    chain.run(lambda frame: frame.selectExpr(*columns), **given)
    chain.publish(10)
    with pytest.raises(PySparkException, match=r"SchemaChanged.*size of type int32 is not decl"):
        chain.run(lambda frame: frame.selectExpr(*columns, "length(value) as size"), **given)
    chain.run(lambda frame: frame.selectExpr(*columns), **given)
    found = (
        chain.spark.read.format("sharedlog")
        .options(log=chain.url, stream="paid", valueFormat="arrow")
        .load()
        .collect()
    )
    assert collections.Counter(row.name for row in found) == chain.wanted()
