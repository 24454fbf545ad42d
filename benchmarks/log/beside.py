"""The log beside Redis Streams, a table with LISTEN/NOTIFY, and Kafka: publish, and until read.

One publisher and 16, each a thread that publishes its next message once the last is durable; one
follower in another process. Every system takes its turn in each round, on the same disk.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import sharedlog
from benchmarks.log.kafka import KafkaServer
from benchmarks.log.reader import Reader, stamped
from benchmarks.log.systems import SYSTEMS, Publisher
from benchmarks.pairs import Spread
from chaos.postgres_server import PostgresServer
from chaos.redis_server import RedisServer

__all__ = ["beside"]

_THREADS = (1, 16)
# Who is compared, of whom ahead of whom is asked.
_OURS, _THEIRS = "the same, transactions", "Kafka, transactions"
_ROW = "  {:24} {:>2}  {:>7}  {:>19} {:>20}  {:>19} {:>20}"


class _Round(NamedTuple):
    """Of one system and so many publishers; milliseconds."""

    per_s: float
    publish_p50: float
    publish_p99: float
    read_p50: float
    read_p99: float


def beside(rounds: int, seconds: float, kafka: Path | None) -> tuple[str, dict[str, Any]]:
    """Return a table, and its figures."""
    measured: dict[tuple[str, int], list[_Round]] = {}
    with ExitStack() as stack:
        where = _servers(stack, kafka)
        readers: dict[str, Reader] = {}
        parties = []
        for system in SYSTEMS:
            server = system.server
            if server not in where:
                continue
            publishers = system.open(where[server], max(_THREADS))
            for each in publishers:
                stack.callback(each.close)
            if server not in readers:
                readers[server] = Reader(system.reader, where[server])
                stack.callback(readers[server].close)
                readers[server].meet(publishers[0])
            parties.append((system.name, publishers, readers[server]))
        numbers = itertools.count(1)
        # The first round is for what a server compiles and makes when it is first used.
        for counted in range(rounds + 1):
            for name, publishers, reader in parties:
                for threads in _THREADS:
                    found = _round(publishers[:threads], reader, next(numbers), seconds)
                    if counted:
                        measured.setdefault((name, threads), []).append(found)
    return _told(measured)


def _servers(stack: ExitStack, kafka: Path | None) -> dict[str, str]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    redis = RedisServer(folder)
    stack.callback(redis.stop)
    postgres = PostgresServer()
    stack.callback(postgres.stop)
    where = {
        "sqlite": f"sqlite:///{folder}/log.db",
        "redis": redis.url(),
        "redis-log": redis.url(log="log"),
        "postgresql": postgres.url(),
        "postgresql-log": postgres.url(log="log"),
    }
    for name in ("sqlite", "redis-log", "postgresql-log"):
        with sharedlog.create(where[name]) as log:
            log.stream("orders")
    if kafka is not None:
        server = KafkaServer(kafka)
        stack.callback(server.stop)
        where["kafka"] = server.where
    return where


def _round(publishers: list[Publisher], reader: Reader, number: int, seconds: float) -> _Round:
    took: list[list[float]] = [[] for _ in publishers]
    failed: list[BaseException] = []
    end = time.perf_counter() + seconds

    def run(publisher: Publisher, mine: list[float]) -> None:
        try:
            while (began := time.perf_counter()) < end:
                publisher.publish(stamped(number))
                mine.append(time.perf_counter() - began)
        except BaseException as error:  # noqa: BLE001 - the measuring thread's to raise
            failed.append(error)

    began = time.perf_counter()
    threads = [
        threading.Thread(target=run, args=each) for each in zip(publishers, took, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lasted = time.perf_counter() - began
    if failed:
        raise failed[0]
    published = [each for mine in took for each in mine]
    read = reader.seconds(publishers[0], number, len(published))
    return _Round(len(published) / lasted, *_percentiles(published), *_percentiles(read))


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    ranked = sorted(seconds)
    return 1000 * statistics.median(ranked), 1000 * ranked[int(0.99 * (len(ranked) - 1))]


def _told(measured: dict[tuple[str, int], list[_Round]]) -> tuple[str, dict[str, Any]]:
    lines = [_ROW.format("", "", "a second", "publish p50, ms", "p99", "until read p50, ms", "p99")]
    figures: dict[str, Any] = {}
    for (name, threads), found in measured.items():
        spreads = {
            field: Spread.of([getattr(each, field) for each in found]) for field in _Round._fields
        }
        figures[f"{name}, {threads}"] = {name: _rounded(each) for name, each in spreads.items()}
        lines.append(
            _ROW.format(
                name,
                threads,
                f"{spreads['per_s'].median:,.0f}",
                *(_spread(spreads[field]) for field in _Round._fields[1:]),
            )
        )
    for threads in _THREADS:
        if (_THEIRS, threads) not in measured:
            continue
        ahead = {
            field: Spread.of(
                [
                    getattr(theirs, field) / getattr(ours, field)
                    for ours, theirs in zip(
                        measured[_OURS, threads], measured[_THEIRS, threads], strict=True
                    )
                ]
            )
            for field in _Round._fields[1:]
        }
        figures[f"ahead_of_kafka_{threads}"] = {
            name: _rounded(each) for name, each in ahead.items()
        }
        lines.append(
            _ROW.format(
                "Kafka's transactions to ours",
                threads,
                "",
                *(_spread(ahead[field]) for field in _Round._fields[1:]),
            )
        )
    return "\n".join(lines) + "\n", figures


def _rounded(spread: Spread) -> list[float]:
    return [round(each, 3) for each in spread]


def _spread(spread: Spread) -> str:
    return f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}]"
