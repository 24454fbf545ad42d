"""Events at a rate that no reader slows down, and how long after its event time a row is there.

An event's time is when it is due by the wall clock. A late event is late for its reader:
neither publishing nor reading slows down the clock.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow

import sharedlog
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.saturation import Delays
from benchmarks.nexmark.schemas import SUBSTREAMS
from benchmarks.nexmark.streams import ABOUT, arrow_values, json_rows

__all__ = ["PATIENCE_S", "KafkaLoad", "Load", "LogLoad", "Step", "run_step"]

# Between two publications.
_SLICE_S = 0.05
# How long is waited for a next row: before one of a step's last seconds came, and behind that.
PATIENCE_S, _QUIET_S = 20.0, 0.5
# At most, however late the last one was.
_LATE_S = 4.0
_LAST_S = 2.0
# Behind a step, of each slice: one person, three auctions, and bids.
_FEW = 50
_SECOND_US = 1_000_000
Encoded = list[tuple[str, bytes]]


class Step(NamedTuple):
    """A rate, for a while; ``first``: the number of its first event."""

    rate: int
    seconds: float
    first: int

    @property
    def events(self) -> int:
        """How many events it has."""
        return int(self.rate * self.seconds)

    @property
    def slice_events(self) -> int:
        """How many events are published at once."""
        return max(1, int(self.rate * _SLICE_S))


class Load:
    """How a system is published to and followed: by a thread each."""

    def encode(self, tables: dict[str, pyarrow.Table]) -> Encoded:
        """Return messages with these rows."""
        raise NotImplementedError

    def send(self, messages: Encoded) -> None:
        """Publish messages."""
        raise NotImplementedError

    def arrivals(self, stream: str, over: threading.Event) -> Iterator[tuple[float, list[int]]]:
        """Yield when rows came, and their event times, until it is over; first nothing at once."""
        raise NotImplementedError


class LogLoad(Load):
    """A log's."""

    def __init__(self, log: sharedlog.Log) -> None:
        self._log = log
        self._producer = log.producer()

    def encode(self, tables: dict[str, pyarrow.Table]) -> Encoded:
        """Return Arrow messages."""
        return [(name, value) for name, table in tables.items() for value in arrow_values(table)]

    def send(self, messages: Encoded) -> None:
        """Publish them in one transaction."""
        with self._producer.transaction() as transaction:
            for stream, value in messages:
                transaction.publish(stream, value, about=ABOUT)

    def arrivals(self, stream: str, over: threading.Event) -> Iterator[tuple[float, list[int]]]:
        """Yield what a follower gets."""
        following = self._log.follow(stream, after="end")
        yield time.time(), []
        while not over.is_set():
            for message in following.poll(timeout_s=0.1):
                with pyarrow.ipc.open_stream(message.value) as reader:
                    column = reader.read_all().columns[-1]
                yield time.time(), column.cast(pyarrow.int64()).to_pylist()


class KafkaLoad(Load):
    """A Kafka's."""

    def __init__(self, where: str) -> None:
        from confluent_kafka import Producer

        self._where = where
        self._producer = Producer(
            {"bootstrap.servers": where, "acks": "all", "linger.ms": 5, "log_level": 0}
        )

    def encode(self, tables: dict[str, pyarrow.Table]) -> Encoded:
        """Return a message in JSON for each row."""
        return [(name, value) for name, table in tables.items() for value in json_rows(table)]

    def send(self, messages: Encoded) -> None:
        """Publish them."""
        for stream, value in messages:
            while True:
                try:
                    self._producer.produce(stream, value)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def arrivals(self, stream: str, over: threading.Event) -> Iterator[tuple[float, list[int]]]:
        """Yield what a consumer gets."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._where,
                "group.id": "delays",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        ends = []
        for each in range(SUBSTREAMS):
            _, end = consumer.get_watermark_offsets(TopicPartition(stream, each))
            ends.append(TopicPartition(stream, each, end))
        consumer.assign(ends)
        yield time.time(), []
        while not over.is_set():
            found = consumer.consume(1000, 0.1)
            values = [each.value() for each in found if each.error() is None]
            if values:
                yield time.time(), [_time_of(value) for value in values]
        consumer.close()


def _time_of(row: bytes) -> int:
    """Return the last column of a row in JSON: as few steps as an Arrow column needs."""
    return int(row[row.rindex(b":") + 1 : -1])


def run_step(load: Load, output: str, step: Step, patience_s: float = PATIENCE_S) -> Delays:
    """Publish a step's events in time; the delays of the rows that came of them.

    They are endless where none of its last seconds came. Behind it a few events go on until its
    rows are there: windows close, and joins give up waiting, by what comes later. Those have the
    numbers behind the step's.
    """
    begin_s, end_s = float("inf"), 0.0
    over, following = threading.Event(), threading.Event()
    delays: list[float] = []
    latest = [time.monotonic()]
    reached = threading.Event()

    def follow() -> None:
        for now, times in load.arrivals(output, over):
            following.set()
            # Another row is of the step before.
            seconds = [each / _SECOND_US for each in times]
            rows = [each for each in seconds if begin_s <= each <= end_s]
            delays.extend(now - each for each in rows)
            # One of a few that follow says nothing of those before.
            if any(each <= end_s for each in seconds):
                latest[0] = time.monotonic()
            if rows and max(rows) > end_s - _LAST_S:
                reached.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    following.wait(PATIENCE_S)
    slices, events = _encoded(load, step)
    begin_s = events.at_us(step.first) / _SECOND_US
    end_s = events.at_us(step.first + step.events) / _SECOND_US

    def wait_for(slice_number: int) -> None:
        # A slice is published when its last event was.
        left_s = begin_s + (slice_number + 1) * _SLICE_S - time.time()
        if left_s > 0:
            time.sleep(left_s)

    for at, messages in enumerate(slices):
        wait_for(at)
        load.send(messages)
    published = time.monotonic()
    many = step.slice_events
    for at in itertools.count(len(slices)):
        # A pipeline that is late takes its time for the next row, too.
        wait_s = _QUIET_S + min(delays[-1], _LATE_S) if reached.is_set() else patience_s
        if time.monotonic() - max(latest[0], published) > wait_s:
            break
        wait_for(at)
        load.send(load.encode(events.tables(step.first + at * many, min(many, _FEW))))
    over.set()
    thread.join(PATIENCE_S)
    return Delays.of(delays, all_came=reached.is_set())


def _encoded(load: Load, step: Step) -> tuple[list[Encoded], Events]:
    """Return a step's slices, whose events are all still to come."""
    ahead_s = 1.0
    while True:
        began_s = time.time()
        begin_us = int((began_s + ahead_s) * _SECOND_US)
        events = Events(rate=step.rate, begin_us=begin_us - step.first * _SECOND_US // step.rate)
        many = step.slice_events
        slices = [
            load.encode(events.tables(at, min(many, step.first + step.events - at)))
            for at in range(step.first, step.first + step.events, many)
        ]
        if begin_us / _SECOND_US > time.time():
            return slices, events
        # It took longer.
        ahead_s = 1.0 + 1.5 * (time.time() - began_s)
