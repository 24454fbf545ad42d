"""The publishing of transactions of ten keys, each to its target's stream, by each system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from benchmarks.deliver.messages import APPLY, START, body_of, stream_of
from sharedlog import Log

__all__ = ["Kafka", "KafkaTransactions", "Publisher", "Redis", "Rifl"]

_TIMEOUT_S = 30.0


class Publisher(Protocol):
    """One thread's way to publish: what is published is durable when that returns."""

    def publish(self, shares: Mapping[int, Sequence[int]]) -> None:
        """Publish the messages of these numbers, by their targets."""

    def close(self) -> None:
        """Let go."""


class Rifl:
    """Transactions of one producer; each message is a call of ``Apply``, or of ``Start``."""

    def __init__(self, log: Log, *, effects: bool = True) -> None:
        self._producer = log.producer()
        self._method = APPLY if effects else START

    def publish(self, shares: Mapping[int, Sequence[int]]) -> None:
        """See ``Publisher``."""
        with self._producer.transaction() as transaction:
            for target, number in _each(shares):
                transaction.publish_call(stream_of(target), self._method, body_of(number))

    def close(self) -> None:
        """See ``Publisher``; the log is its owner's."""


class Kafka:
    """An idempotent producer; what it sends is acknowledged before it goes on."""

    def __init__(self, where: str, **settings: Any) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": where,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                **settings,
            }
        )
        self._error: Any = None

    def publish(self, shares: Mapping[int, Sequence[int]]) -> None:
        """See ``Publisher``."""
        self._send(shares)
        self._producer.flush()
        if self._error is not None:
            raise RuntimeError(f"Kafka: {self._error}")

    def close(self) -> None:
        """See ``Publisher``."""
        self._producer.flush()

    def _send(self, shares: Mapping[int, Sequence[int]]) -> None:
        for target, number in _each(shares):
            self._producer.produce(
                stream_of(target), body_of(number), partition=0, on_delivery=self._delivered
            )

    def _delivered(self, error: Any, _: Any) -> None:
        self._error = self._error or error


class KafkaTransactions(Kafka):
    """Kafka's transactions."""

    def __init__(self, where: str) -> None:
        super().__init__(where, **{"transactional.id": "publisher"})
        self._producer.init_transactions(_TIMEOUT_S)

    def publish(self, shares: Mapping[int, Sequence[int]]) -> None:
        """See ``Publisher``."""
        self._producer.begin_transaction()
        self._send(shares)
        self._producer.commit_transaction(_TIMEOUT_S)


class Redis:
    """MULTI, XADD, EXEC."""

    def __init__(self, where: str) -> None:
        import redis

        self._redis = redis.Redis.from_url(where)

    def publish(self, shares: Mapping[int, Sequence[int]]) -> None:
        """See ``Publisher``."""
        with self._redis.pipeline(transaction=True) as pipeline:
            for target, number in _each(shares):
                pipeline.xadd(stream_of(target), {"body": body_of(number)})
            pipeline.execute()

    def close(self) -> None:
        """See ``Publisher``."""
        self._redis.close()


def _each(shares: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    for target, numbers in shares.items():
        for number in numbers:
            yield target, number
