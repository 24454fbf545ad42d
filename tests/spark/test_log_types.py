"""Rows of any type come back from a stream of Arrow messages as from Parquet (§16)."""

from __future__ import annotations

import datetime
import decimal
import itertools
import random
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some
from pyspark.sql import functions as sql
from pyspark.sql import types as t

from sharedlog._core.envelope import unpack
from sharedlog.spark._column_rows import ArrowRows
from tests.spark.log_chain import Chain

_SOME: dict[Any, list[Any]] = {
    t.StringType(): ["", "a", "ä" * 40],
    t.BinaryType(): [b"", b"\0\xff"],
    t.BooleanType(): [True, False],
    t.ByteType(): [-128, 127],
    t.ShortType(): [-7, 1 << 14],
    t.IntegerType(): [0, -(1 << 31)],
    t.LongType(): [1 << 62, -1],
    t.FloatType(): [0.5, float("nan")],
    t.DoubleType(): [-0.0, float("inf")],
    t.DecimalType(38, 3): [decimal.Decimal("12345678901234567890.123"), decimal.Decimal(0)],
    t.DateType(): [datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    t.TimestampType(): [datetime.datetime(2026, 11, 20, 12, 0, 0, 1)],
    t.TimestampNTZType(): [datetime.datetime(2026, 3, 29, 2, 30)],
    t.DayTimeIntervalType(): [datetime.timedelta(days=-1, microseconds=1)],
}
_TYPES: Any = some.recursive(
    some.sampled_from(list(_SOME)),
    lambda inner: some.one_of(
        some.builds(t.ArrayType, inner, some.booleans()),
        some.builds(lambda of, null: t.MapType(t.StringType(), of, null), inner, some.booleans()),
        some.lists(some.tuples(inner, some.booleans()), min_size=1, max_size=3).map(
            lambda parts: t.StructType(
                [t.StructField(f"f{at}", of, null) for at, (of, null) in enumerate(parts)]
            )
        ),
    ),
    max_leaves=5,
)


def _value(of: t.DataType, null: bool, draw: random.Random) -> Any:
    if null and draw.random() < 0.3:
        return None
    if isinstance(of, t.StructType):
        return tuple(_value(each.dataType, each.nullable, draw) for each in of)
    if isinstance(of, t.ArrayType):
        return [_value(of.elementType, of.containsNull, draw) for _ in range(draw.randrange(3))]
    if isinstance(of, t.MapType):
        # Of one entry: Spark tells of no order.
        value = _value(of.valueType, of.valueContainsNull, draw)
        return {"k": value} if draw.random() < 0.7 else {}
    return draw.choice(_SOME[of])


_GENERATED = settings(
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
_COLUMNS = some.lists(_TYPES, min_size=12, max_size=12)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(_GENERATED, max_examples=2)
@given(_COLUMNS, some.integers(0, 2**32))
def test_nested_values_with_nulls_come_back_as_from_parquet(
    chain: Chain, kinds: list[Any], seed: int
) -> None:
    """Also a null struct whose fields are not nullable, as a left join has it (§16)."""
    _come_back(chain, kinds, seed)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3000)
@settings(_GENERATED, max_examples=20)
@given(_COLUMNS, some.integers(0, 2**32))
def test_many_nested_values_come_back_as_from_parquet(
    chain: Chain, kinds: list[Any], seed: int
) -> None:
    """Twelve types at a time (§16)."""
    _come_back(chain, kinds, seed)


def _come_back(chain: Chain, kinds: list[Any], seed: int) -> None:
    """Write rows of these types into a stream and into Parquet, and read both."""
    draw = random.Random(seed)
    whole = t.StructType([t.StructField(f"c{at}", of, False) for at, of in enumerate(kinds)])
    rows = [(at, at % 3 > 0, _value(whole, False, draw)) for at in range(30)]
    schema = t.StructType().add("id", t.IntegerType()).add("there", t.BooleanType())
    frame = chain.spark.createDataFrame(rows, schema.add("all", whole, False)).select(
        "id",
        sql.when(sql.col("there"), sql.col("all")).alias("all"),
        *(
            sql.when(sql.col("id") % 5 > 0, sql.col("all")[f"c{at}"]).alias(f"c{at}")
            for at in range(len(kinds))
        ),
    )
    name = f"types{len(chain.log.streams())}"
    chain.log.stream(name, 2)
    to = {"log": chain.url, "stream": name, "key": "id", "valueFormat": "arrow"}
    frame.write.format("sharedlog").options(**to).mode("append").save()
    frame.write.mode("overwrite").parquet(f"{chain.directory}/parquet")
    del to["key"]
    ours = chain.spark.read.format("sharedlog").options(**to).load()
    theirs = chain.spark.read.parquet(f"{chain.directory}/parquet")
    assert ours.schema == theirs.schema
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))


def test_a_null_struct_may_have_fields_that_are_not_nullable() -> None:
    """As Spark sends a left join: of those fields it sends nulls (§16)."""
    field = pyarrow.field("a", pyarrow.int64(), nullable=False)
    mask = pyarrow.array([False, True])
    joined = pyarrow.StructArray.from_arrays([pyarrow.array([1, None])], fields=[field], mask=mask)
    lists = pyarrow.ListArray.from_arrays([0, 1, 2], joined)
    maps = pyarrow.MapArray.from_arrays([0, 1, 2], ["k", "l"], joined)
    batch = pyarrow.RecordBatch.from_arrays([joined, lists, maps], ["s", "l", "m"])
    rows = ArrowRows(batch.schema, None)
    (told,) = rows.messages(batch, ["s/0"], itertools.count(), 1)
    assert told.rows == 2
    envelope = unpack(told.message.envelope)
    (found,) = pyarrow.ipc.open_stream(envelope.body)
    assert found.schema == rows.schema
    assert found.to_pylist() == batch.to_pylist()
