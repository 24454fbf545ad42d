"""The systems measured side by side: how each is published to by one thread, and followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import sharedlog
from benchmarks.log.kafka import IdempotentPublisher, TransactionalPublisher, read_kafka
from sharedlog import Log

__all__ = ["READERS", "SYSTEMS", "Plain", "Publisher", "System"]

_STREAM = "orders"
# How far the ids of rows may be apart that transactions commit side by side.
_ASIDE = 1000


class Publisher(Protocol):
    """One thread's way to publish; each message is durable when that returns."""

    def publish(self, body: bytes) -> None:
        """Publish a message."""

    def close(self) -> None:
        """Let go."""


class System(NamedTuple):
    """``open``: makes the publishers of so many threads, of what is at an address.

    ``reader``: by which of ``READERS`` it is followed.
    """

    name: str
    server: str
    reader: str
    open: Callable[[str, int], list[Publisher]]


class Plain:
    """Messages by themselves, at one log for all threads of the process."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def publish(self, body: bytes) -> None:
        """See ``Publisher``."""
        self._log.publish(_STREAM, body)

    def close(self) -> None:
        """See ``Publisher``."""
        self._log.close()


class _Transactional:
    """Each message in a transaction of its own."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._producer = log.producer()

    def publish(self, body: bytes) -> None:
        with self._producer.transaction() as transaction:
            transaction.publish(_STREAM, body)

    def close(self) -> None:
        self._log.close()


class _Xadd:
    """A connection to Redis."""

    def __init__(self, where: str) -> None:
        import redis

        self._redis = redis.Redis.from_url(where)

    def publish(self, body: bytes) -> None:
        self._redis.xadd(_STREAM, {"body": body})

    def close(self) -> None:
        self._redis.close()


class _Insert:
    """A connection to PostgreSQL; a row and its notification are one statement."""

    def __init__(self, where: str) -> None:
        import psycopg

        self._connection = psycopg.connect(where, autocommit=True)

    def publish(self, body: bytes) -> None:
        self._connection.execute(
            "WITH message AS (INSERT INTO bench_message (body) VALUES (%s) RETURNING id) "
            "SELECT pg_notify('bench_message', '') FROM message",
            (body,),
        )

    def close(self) -> None:
        self._connection.close()


def _at_log(kind: Callable[[Log], Publisher]) -> Callable[[str, int], list[Publisher]]:
    def open_all(where: str, count: int) -> list[Publisher]:
        log = sharedlog.open(where)
        return [kind(log) for _ in range(count)]

    return open_all


def _each(kind: Callable[[str], Publisher]) -> Callable[[str, int], list[Publisher]]:
    return lambda where, count: [kind(where) for _ in range(count)]


def _numbered(kind: Callable[[str, int], Publisher]) -> Callable[[str, int], list[Publisher]]:
    return lambda where, count: [kind(where, number) for number in range(count)]


def _insert(where: str, count: int) -> list[Publisher]:
    import psycopg

    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS bench_message "
            "(id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body BYTEA NOT NULL)"
        )
    return [_Insert(where) for _ in range(count)]


def _follow(where: str) -> Iterator[bytes]:
    with sharedlog.open(where) as log:
        for message in log.follow(_STREAM, after="end"):
            yield message.value


def _xread(where: str) -> Iterator[bytes]:
    import redis

    client: Any = redis.Redis.from_url(where)
    last: Any = "$"
    while True:
        for _, found in client.xread({_STREAM: last}, count=1000, block=1000):
            for last, fields in found:  # noqa: B007 - the last one is where it goes on
                yield fields[b"body"]


def _listen(where: str) -> Iterator[bytes]:
    import psycopg

    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("LISTEN bench_message")
        last, seen = 0, set[int]()
        while True:
            # A row may become visible after one with a higher id.
            rows = connection.execute(
                "SELECT id, body FROM bench_message WHERE id > %s ORDER BY id", (last - _ASIDE,)
            ).fetchall()
            for number, body in rows:
                if number not in seen:
                    yield body
            if rows:
                last, seen = rows[-1][0], {number for number, _ in rows}
            for _ in connection.notifies(timeout=1.0, stop_after=1):
                pass


SYSTEMS = (
    System("sharedlog in SQLite", "sqlite", "log", _at_log(Plain)),
    System("the same, transactions", "sqlite", "log", _at_log(_Transactional)),
    System("sharedlog in Redis", "redis-log", "log", _at_log(Plain)),
    System("XADD, XREAD", "redis", "redis", _each(_Xadd)),
    System("sharedlog in PostgreSQL", "postgresql-log", "log", _at_log(Plain)),
    System("a table, LISTEN/NOTIFY", "postgresql", "postgresql", _insert),
    System("Kafka, idempotent", "kafka", "kafka", _numbered(IdempotentPublisher)),
    System("Kafka, transactions", "kafka", "kafka", _numbered(TransactionalPublisher)),
)
READERS: dict[str, Callable[[str], Iterator[bytes]]] = {
    "log": _follow,
    "redis": _xread,
    "postgresql": _listen,
    "kafka": read_kafka,
}
