"""The two systems that a chain runs over: the shared log, and Spark's own Kafka.

What Spark's processes need of each: how a stream is read, and how it is written. Rows are Arrow
batches in the log, and JSON in Kafka, whose times are whole microseconds, which is what Spark
parses soonest.
"""

from __future__ import annotations

from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

import sharedlog.spark
from benchmarks.nexmark.schemas import SCHEMAS

__all__ = ["KafkaSide", "LogSide", "Side"]


class Side(Protocol):
    """How a chain's streams are read and written by Spark."""

    def read(self, spark: SparkSession, stream: str, reader: str) -> DataFrame:
        """Return a stream's rows, for one stage."""

    def write(self, frame: DataFrame, stream: str) -> DataStreamWriter:
        """Return what writes rows into a stream."""


class LogSide:
    """A shared log. ``most``: about how many messages a micro-batch takes, None: all there are.

    ``form``: the data source that writes.
    """

    def __init__(self, url: str, most: int | None = None, form: str = "sharedlog") -> None:
        self._url, self._form = url, form
        self._limit = {} if most is None else {"maxRowsPerTrigger": str(most)}

    def read(self, spark: SparkSession, stream: str, reader: str) -> DataFrame:
        """Return a stream's rows; the log keeps what a stage has not read."""
        sharedlog.spark.register(spark)
        options = {"log": self._url, "stream": stream, "valueFormat": "arrow", **self._limit}
        named = {"name": f"{reader}.{stream}"}
        return spark.readStream.format("sharedlog").options(**options, **named).load()

    def write(self, frame: DataFrame, stream: str) -> DataStreamWriter:
        """Return what writes rows, each micro-batch at once."""
        options = {"log": self._url, "stream": stream, "valueFormat": "arrow", "name": stream}
        return frame.writeStream.format(self._form).options(**options)


class KafkaSide:
    """A Kafka, by Spark's own source and sink; ``most``: rows of a micro-batch."""

    def __init__(self, where: str, most: int | None = None) -> None:
        self._where = where
        self._limit = {} if most is None else {"maxOffsetsPerTrigger": str(most)}

    def read(self, spark: SparkSession, stream: str, reader: str) -> DataFrame:
        """Return a stream's rows, parsed."""
        rows = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._where)
            .option("subscribe", stream)
            .option("startingOffsets", "earliest")
            .options(**self._limit)
            .load()
        )
        return parsed(rows, stream)

    def write(self, frame: DataFrame, stream: str) -> DataStreamWriter:
        """Return what writes rows; ``acks=all`` is Kafka's own choice."""
        return (
            written(frame)
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", self._where)
            .option("topic", stream)
        )


def parsed(rows: DataFrame, stream: str) -> DataFrame:
    """Return the columns of messages in JSON."""
    schema: StructType = from_arrow_schema(SCHEMAS[stream])
    plain = StructType([StructField(each.name, _plain(each.dataType)) for each in schema])
    found = rows.select(f.from_json(f.col("value").cast("string"), plain).alias("row"))
    return found.select(
        [
            f.timestamp_micros(f"row.{each.name}").alias(each.name)
            if isinstance(each.dataType, TimestampType)
            else f.col(f"row.{each.name}")
            for each in schema
        ]
    )


def written(frame: DataFrame) -> DataFrame:
    """Return messages in JSON of columns."""
    columns = [
        f.unix_micros(each.name).alias(each.name)
        if isinstance(each.dataType, TimestampType)
        else f.col(each.name)
        for each in frame.schema
    ]
    return frame.select(f.to_json(f.struct(*columns)).alias("value"))


def _plain(kind: Any) -> Any:
    return LongType() if isinstance(kind, TimestampType) else kind
