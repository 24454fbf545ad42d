"""Rows that come one by one become the Arrow batches that they were (PySpark 4.0)."""

from __future__ import annotations

import datetime
import decimal
import os
import time
from collections.abc import Iterator

import pyarrow
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rifl.spark._arrow import arrow_schema, record_batches
from rifl.spark._errors import RowError

_SCHEMA = (
    StructType()
    .add("at", TimestampType())
    .add("clock", TimestampNTZType())
    .add("data", BinaryType())
    .add("price", DecimalType(5, 2))
    .add("inner", StructType().add("at", TimestampType()).add("tags", ArrayType(StringType())))
    .add("by", MapType(StringType(), TimestampType()))
    .add("day", DateType())
    .add("all", ArrayType(TimestampType()))
)


@pytest.fixture(params=["UTC", "America/New_York"])
def zone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers live in some time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def test_a_row_has_the_values_of_its_batch(zone: None) -> None:
    """An instant stays the same one, though Spark hands it on as local time (DESIGN §8)."""
    instants = [
        datetime.datetime(2013, month, 3, 4, 30, tzinfo=datetime.UTC) for month in (1, 7, 12)
    ]
    clock = datetime.datetime(2013, 11, 3, 1, 30)
    rows = []
    for instant in instants:
        local = instant.astimezone().replace(tzinfo=None)
        rows.append(
            Row(
                at=local,
                clock=clock,
                data=bytearray(b"x"),
                price=decimal.Decimal("1.50"),
                inner=Row(at=local, tags=["a", None]),
                by={"k": local, "n": None},
                day=datetime.date(2013, 11, 3),
                all=[local, None],
            )
        )
    rows.append(Row(**dict.fromkeys(_SCHEMA.names)))
    schema = arrow_schema(_SCHEMA)
    (batch,) = record_batches(rows, schema)
    assert batch.schema == schema
    *full, empty = pyarrow.Table.from_batches([batch]).to_pylist()
    assert [row["at"] for row in full] == instants
    assert [row["inner"]["at"] for row in full] == instants
    assert [row["all"][0] for row in full] == instants
    assert [dict(row["by"]) for row in full] == [{"k": at, "n": None} for at in instants]
    assert all(
        (row["clock"], row["data"], row["price"]) == (clock, b"x", decimal.Decimal("1.50"))
        for row in full
    )
    assert full[0]["inner"]["tags"] == ["a", None]
    assert set(empty.values()) == {None}


@pytest.mark.parametrize("zone", ["America/New_York"], indirect=True)
def test_an_hour_that_is_there_twice_is_refused(zone: None) -> None:
    """Two instants are never taken for one: their rows would be, too (DESIGN §8)."""
    schema = arrow_schema(StructType().add("at", TimestampType()))
    for hour in (5, 6):
        instant = datetime.datetime(2013, 11, 3, hour, 30, tzinfo=datetime.UTC)
        rows = [Row(at=instant.astimezone().replace(tzinfo=None))]
        with pytest.raises(RowError, match="TZ=UTC"):
            list(record_batches(rows, schema))
