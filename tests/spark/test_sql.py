"""The formats in SQL: views with options, and inserted rows (DESIGN §8, DESIGN-LOG §16)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

import sharedlog
import sharedlog.spark
from rifl.spark import PlanError
from rifl.spark._options import WriteOptions
from sharedlog.spark._options import SinkError, SinkOptions, SourceError, SourceOptions
from tests.spark.conftest import METHOD, BankProcess


@pytest.mark.parametrize("given", [{}, {"option.log": "sqlite:///log.db", "option.stream": "s"}])
def test_the_options_of_a_table_do_not_arrive(given: dict[str, str]) -> None:
    """The error says what to write instead (§8, §16)."""
    for read, kind in (
        (WriteOptions.read, PlanError),
        (SourceOptions.read, SourceError),
        (SinkOptions.read, SinkError),
    ):
        with pytest.raises(kind, match=r"CREATE TEMPORARY VIEW v .*INSERT INTO t WITH"):
            read(given)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_views_are_read_and_written_in_sql(
    spark: Any, bank: BankProcess, log: sharedlog.Log, tmp_path: Any
) -> None:
    """A view has options; a table's are given with each statement (§8, §16)."""
    sharedlog.spark.register(spark)
    log.publish("orders", "r1", key="alice")
    url = f"sqlite:///{tmp_path / 'log.db'}"
    columns = "reference STRING, account STRING, cents BIGINT"
    for name, parts in (("orders", "key BINARY, value BINARY"), ("paid", "value STRING")):
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {name} ({parts}) USING sharedlog "
            f"OPTIONS (log '{url}', stream '{name}')"
        )
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW deposits ({columns})"
        f" USING rifl OPTIONS (target '{bank.target}', method '{METHOD}', key 'reference')"
    )
    rows = "SELECT cast(value AS STRING) AS reference, cast(key AS STRING) AS account, 5L AS cents"
    spark.sql(f"INSERT INTO deposits {rows} FROM orders")
    assert bank.effects() == {"r1": 1}
    spark.sql("INSERT INTO paid SELECT cast(value AS STRING) FROM orders")
    spark.sql("CREATE TABLE made (value STRING) USING sharedlog OPTIONS (stream 'paid')")
    spark.sql(f"CREATE TABLE booked ({columns}) USING rifl OPTIONS (key 'reference')")
    try:
        with pytest.raises(PySparkException, match="none of a CREATE TABLE's"):
            spark.sql("INSERT INTO made VALUES ('lost')")
        given = f"'log' = '{url}', 'stream' = 'paid', 'name' = 'daily'"
        spark.sql(" ".join(("INSERT INTO made WITH", f"({given})", "VALUES ('more')")))
        given = f"'target' = '{bank.target}', 'method' = '{METHOD}', 'key' = 'reference'"
        spark.sql(" ".join(("INSERT INTO booked WITH", f"({given})", "VALUES ('r2', 'bob', 7)")))
        assert bank.effects() == {"r1": 1, "r2": 1}
    finally:
        spark.sql("DROP TABLE made")
        spark.sql("DROP TABLE booked")
        for name in ("orders", "paid", "deposits"):
            spark.catalog.dropTempView(name)
    assert sorted(each.text for at in range(3) for each in log.read("paid", at)) == ["more", "r1"]
