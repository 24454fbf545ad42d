"""``python -m benchmarks.deliver.consumer KIND WHERE NUMBER DATABASE BOARD``: others' targets.

One consumer of one topic, that writes what it gets into a SQLite file: what is at hand is one
transaction. ``kafka-committed`` reads what is committed, and stores its offset in that transaction;
``kafka`` commits it to the broker afterwards, ``redis`` acknowledges in a group of Redis Streams.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.deliver.board import Board
from benchmarks.deliver.messages import number_of, stream_of
from benchmarks.deliver.target import INSERT, create

_MOST = 100
_WAIT_S = 1.0
# What came, and what to do once it is in the database.
_Batch = tuple[Sequence[bytes], int, Callable[[], object]]


def _kafka(where: str, topic: str, offset: int, *, committed: bool) -> Iterator[_Batch]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": where,
            "group.id": f"group-{topic}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    while True:
        first = consumer.poll(_WAIT_S)
        if first is None:
            continue
        found = [first, *consumer.consume(_MOST - 1, 0)]
        messages = [each for each in found if each.error() is None]
        if messages:
            last = messages[-1]
            after = _nothing if committed else partial(consumer.commit, last)
            yield [each.value() for each in messages], last.offset() + 1, after


def _redis(where: str, topic: str) -> Iterator[_Batch]:
    import redis

    client: Any = redis.Redis.from_url(where)
    client.xgroup_create(topic, "group", "0", mkstream=True)
    wait_ms = int(1000 * _WAIT_S)
    print("ready", flush=True)
    while True:
        for _, found in client.xreadgroup("group", "one", {topic: ">"}, _MOST, wait_ms):
            names = [name for name, _ in found]
            bodies = [fields[b"body"] for _, fields in found]
            yield bodies, 0, partial(client.xack, topic, "group", *names)


def _nothing() -> None:
    """What was read is noted with its effects."""


def main(kind: str, where: str, topic: str, database: Path, board: Board) -> None:
    """Consume until it is killed."""
    create(database)
    connection = sqlite3.connect(database, isolation_level=None)
    # As a Deduplicator opens it: each commit is durable.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE taken (topic TEXT PRIMARY KEY, offset INT)")
    committed = kind == "kafka-committed"
    if kind == "redis":
        batches = _redis(where, topic)
    else:
        batches = _kafka(where, topic, 0, committed=committed)
        print("ready", flush=True)
    for bodies, offset, after in batches:
        now = time.monotonic_ns()
        numbers = [number_of(body) for body in bodies]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, zip(numbers, bodies, strict=True))
        if committed:
            connection.execute("INSERT OR REPLACE INTO taken VALUES (?, ?)", (topic, offset))
        connection.execute("COMMIT")
        done = time.monotonic_ns()
        after()
        for each in numbers:
            board.started[each], board.committed[each] = now, done


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        stream_of(int(sys.argv[3])),
        Path(sys.argv[4]),
        Board(Path(sys.argv[5])),
    )
