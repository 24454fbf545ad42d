"""Streams as programs without Spark see them: events are published there, and outputs are read.

Outputs are read from the streams themselves: from a log as any reader has it, and from Kafka
message by message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow

import sharedlog
from benchmarks.nexmark.answers import Answer
from benchmarks.nexmark.schemas import SCHEMAS, SUBSTREAMS, TIME
from sharedlog._core.stream_schema import declare_schema
from sharedlog.spark._column_rows import ARROW
from sharedlog.spark._columns import arrow_schema_of

__all__ = [
    "ABOUT",
    "KafkaStreams",
    "LogStreams",
    "Streams",
    "arrow_values",
    "create_log",
    "json_rows",
]

ABOUT = sharedlog.About(content_type=ARROW)
# Of a message, about: well below a mebibyte.
_BYTES = 400_000


class Streams(Protocol):
    """Where events go, and outputs come from."""

    def publish(self, tables: Mapping[str, pyarrow.Table]) -> None:
        """Publish events, and wait until they are there."""

    def rows(self, stream: str) -> Answer:
        """Return a stream's rows, with how often each is there; times in microseconds."""


def create_log(url: str) -> sharedlog.Log:
    """Create a log with NEXMark's streams, whose columns are declared."""
    log = sharedlog.create(url)
    for name in SCHEMAS:
        log.stream(name, SUBSTREAMS)
        declared = arrow_schema_of(SCHEMAS[name])
        log._run(declare_schema(name, declared))
    return log


class LogStreams:
    """Those of a log."""

    def __init__(self, log: sharedlog.Log) -> None:
        self._log = log
        self._producer = log.producer()

    def publish(self, tables: Mapping[str, pyarrow.Table]) -> None:
        """Publish events, in one transaction."""
        with self._producer.transaction() as transaction:
            for stream, table in tables.items():
                for value in arrow_values(table):
                    transaction.publish(stream, value, about=ABOUT)

    def rows(self, stream: str) -> Answer:
        """Return what committed readers have."""
        found: Answer = Counter()
        for substream in range(SUBSTREAMS):
            for message in self._log.read(stream, substream):
                found.update(arrow_rows(message.value))
        return found


class KafkaStreams:
    """Those of a Kafka, whose topics have the streams' names."""

    def __init__(self, where: str) -> None:
        from confluent_kafka import Producer

        self._where = where
        self._producer = Producer(
            {"bootstrap.servers": where, "acks": "all", "enable.idempotence": True, "log_level": 0}
        )

    def publish(self, tables: Mapping[str, pyarrow.Table]) -> None:
        """Publish events, each a message."""
        for stream, table in tables.items():
            for value in json_rows(table):
                self._producer.produce(stream, value)
            self._producer.poll(0)
        if self._producer.flush(60):
            raise RuntimeError("Kafka did not take all events in time")

    def rows(self, stream: str) -> Answer:
        """Return what the topic has, from its first message to the last there is now."""
        names = SCHEMAS[stream].names
        found: Answer = Counter()
        for value in self._values(stream):
            row = json.loads(value)
            found[tuple(row.get(name) for name in names)] += 1
        return found

    def _values(self, topic: str) -> Iterator[bytes]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._where,
                "group.id": "counts",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            for partition in range(SUBSTREAMS):
                first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition))
                consumer.assign([TopicPartition(topic, partition, first)])
                while first < end:
                    for message in consumer.consume(1000, 10.0):
                        if message.error():
                            raise RuntimeError(f"Kafka: {message.error()}")
                        first = message.offset() + 1
                        yield message.value()
        finally:
            consumer.close()


def arrow_values(table: pyarrow.Table) -> Iterator[bytes]:
    """Yield rows as the values of messages: Arrow streams."""
    rows = max(1, _BYTES * table.num_rows // max(1, table.nbytes))
    for batch in table.combine_chunks().to_batches(max_chunksize=rows):
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield sink.getvalue().to_pybytes()


def arrow_rows(value: bytes) -> Iterable[tuple[Any, ...]]:
    """Return the rows of a message's value."""
    with pyarrow.ipc.open_stream(value) as reader:
        table = _in_microseconds(reader.read_all())
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def json_rows(table: pyarrow.Table) -> list[bytes]:
    """Return rows as the values of messages in JSON."""
    if not table.num_rows:
        return []
    lines: str = _in_microseconds(table).to_pandas().to_json(orient="records", lines=True)
    return lines.encode().splitlines()


def _in_microseconds(table: pyarrow.Table) -> pyarrow.Table:
    columns = [
        column.cast(pyarrow.int64()) if column.type == TIME else column for column in table.columns
    ]
    return pyarrow.table(columns, names=table.column_names)
