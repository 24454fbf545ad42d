"""Kafka's transactional consume and produce, and Redis Streams with an inbox, as workers."""

from __future__ import annotations

import sqlite3
from typing import Any

from benchmarks.consume import databases
from benchmarks.consume.worker import BATCH, INPUT, OUTPUT, SUBSTREAMS, body_of, read

__all__ = ["Kafka", "RedisInbox"]

_WAIT_S = 0.1
_TIMEOUT_S = 30.0


class Kafka:
    """See ``Worker``: outputs and offsets are one transaction; the state is in memory."""

    def __init__(self, where: str) -> None:
        """``where``: the broker."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

        settings: dict[str, Any] = {"bootstrap.servers": where, "log_level": 0}
        self._filling = Producer({**settings, "acks": "all", "enable.idempotence": True})
        self._producer = Producer({**settings, "transactional.id": "bench", "linger.ms": 0})
        self._producer.init_transactions(_TIMEOUT_S)
        self._consumer = Consumer(
            {
                **settings,
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        # It takes what it has assigned to itself; a group's rebalancing costs no more.
        self._assigned = [TopicPartition(INPUT, each) for each in range(SUBSTREAMS)]
        self._consumer.assign(
            [TopicPartition(INPUT, each, OFFSET_BEGINNING) for each in range(SUBSTREAMS)]
        )
        self._state = dict.fromkeys(range(1000), 0)

    def fill(self, count: int) -> None:
        """See ``Worker``."""
        for number in range(count):
            self._filling.produce(INPUT, body_of(number), partition=number % SUBSTREAMS)
            self._filling.poll(0)
        self._filling.flush()

    def take(self) -> list[bytes]:
        """See ``Worker``."""
        first = self._consumer.poll(_WAIT_S)
        if first is None:
            return []
        messages = [first, *self._consumer.consume(BATCH - 1, 0)]
        bodies = [each.value() for each in messages if each.error() is None]
        if not bodies:
            return []
        self._producer.begin_transaction()
        for body in bodies:
            self._state[read(body)[0]] += 1
            self._producer.produce(OUTPUT, body)
        self._producer.send_offsets_to_transaction(
            self._consumer.position(self._assigned), self._consumer.consumer_group_metadata()
        )
        self._producer.commit_transaction(_TIMEOUT_S)
        return bodies

    def close(self) -> None:
        """See ``Worker``."""
        self._consumer.close()


class RedisInbox:
    """See ``Worker``: a stream's group, and a table of the messages whose effects are there."""

    def __init__(self, where: str, store: str) -> None:
        """``store``: of SQLite."""
        import redis

        self._redis: Any = redis.Redis.from_url(where)
        self._redis.xgroup_create(INPUT, "group", id="0", mkstream=True)
        databases.create(store)
        self._connection: sqlite3.Connection = databases.connected(store)
        self._connection.execute("CREATE TABLE inbox (message TEXT PRIMARY KEY)")

    def fill(self, count: int) -> None:
        """See ``Worker``."""
        pipeline = self._redis.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd(INPUT, {"body": body_of(number)})
        pipeline.execute()

    def take(self) -> list[bytes]:
        """See ``Worker``."""
        wait_ms = round(1000 * _WAIT_S)
        found = self._redis.xreadgroup("group", "one", {INPUT: ">"}, BATCH, wait_ms)
        if not found:
            return []
        messages = found[0][1]
        self._connection.execute("BEGIN IMMEDIATE")
        for name, fields in messages:
            added = self._connection.execute(
                "INSERT INTO inbox VALUES (?) ON CONFLICT DO NOTHING", (name.decode(),)
            )
            if added.rowcount:
                databases.update(self._connection, read(fields[b"body"])[0])
        self._connection.execute("COMMIT")
        pipeline = self._redis.pipeline(transaction=True)
        for _, fields in messages:
            pipeline.xadd(OUTPUT, {"body": fields[b"body"]})
        pipeline.xack(INPUT, "group", *[name for name, _ in messages])
        pipeline.execute()
        return [fields[b"body"] for _, fields in messages]

    def close(self) -> None:
        """See ``Worker``."""
        self._connection.close()
        self._redis.close()
