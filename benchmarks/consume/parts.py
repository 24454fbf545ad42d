"""The parts of the measurement: pairs that take turns, one part after the other."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import sharedlog
from benchmarks.consume.by_hand import ByHand
from benchmarks.consume.idle import idle
from benchmarks.consume.others import Kafka, RedisInbox
from benchmarks.consume.ours import IN_LOG, Ours
from benchmarks.consume.pacer import Pacer
from benchmarks.consume.recovery import recovered
from benchmarks.consume.takeover import taken_over
from benchmarks.consume.worker import BATCH, INPUT, OUTPUT, SUBSTREAMS, Worker, read
from benchmarks.deliver.report import Report
from benchmarks.log.kafka import KafkaServer
from benchmarks.pairs import Spread
from chaos.etcd_cluster import EtcdCluster
from chaos.postgres_server import PostgresServer
from chaos.redis_server import RedisServer

__all__ = ["PARTS", "Party", "Size", "latencies", "parties", "rate", "run"]

PARTS = ("throughput", "latency", "takeover", "recovery", "idle")
# After which a round is taken for stuck.
_STUCK_S = 60.0
_MS = 1e6
# Which sides must be ahead, and of which others.
_AIMED, _OTHERS = ("sqlite consumer", "one file"), ("redis", "kafka")


class Size(NamedTuple):
    """How much: pairs, messages of a half, a second while latency is measured, kills, changes,
    idle processes, and for how long these are measured.

    Of what is done message by message a half has a tenth of the messages.
    """

    rounds: int
    messages: int
    pace: float
    paced: int
    kills: int
    changes: int
    idle: int = 20
    idle_s: float = 10.0


class Party(NamedTuple):
    """A worker, and the pacer of what it consumes."""

    worker: Worker
    pacer: Pacer
    slow: bool


class Latency(NamedTuple):
    """From the publication to effect and output, milliseconds."""

    p50: float
    p99: float


def parties(
    stack: ExitStack, folder: Path, kafka: Path | None, *, postgresql: bool
) -> dict[str, Party]:
    """Start all servers, and return who is compared."""
    found: dict[str, Party] = {}

    def add(name: str, kind: str, where: str, worker: Worker, *, slow: bool = False) -> None:
        stack.callback(worker.close)
        pacer = Pacer(kind, where)
        stack.callback(pacer.close)
        found[name] = Party(worker, pacer, slow)

    def url(log: str) -> str:
        with sharedlog.create(log) as made:
            made.stream(INPUT, substreams=SUBSTREAMS)
            made.stream(OUTPUT, substreams=SUBSTREAMS)
        return log

    def at_log(engine: str, log: Callable[[str], str], store: Callable[[str], str]) -> None:
        for name, guarantee in (("consumer", True), ("without", False)):
            at = url(log(name))
            add(f"{engine} {name}", "log", at, Ours(at, store(name), name, guarantee=guarantee))
        for name, batch in (("single", 1), ("batched", BATCH)):
            at = url(log(name))
            add(
                f"{engine} {name}", "log", at, ByHand(at, store(name), batch=batch), slow=batch == 1
            )

    at_log(
        "sqlite",
        lambda name: f"sqlite:///{folder / f'{name}-log.db'}",
        lambda name: f"sqlite:///{folder / f'{name}.db'}",
    )
    at = url(f"sqlite:///{folder / 'one-file.db'}")
    add("one file", "log", at, Ours(at, at, "one"))
    at = url(f"sqlite:///{folder / 'state-log.db'}")
    add("state", "log", at, Ours(at, IN_LOG, "state"))
    if postgresql:
        server = PostgresServer()
        stack.callback(server.stop)
        with server.connect(autocommit=True) as connection:
            connection.execute("CREATE DATABASE effects")
        effects = server.url().removesuffix("postgres") + "effects"
        at_log("postgresql", lambda name: server.url(log=name), lambda _: effects)
        at = url(server.url(log="one"))
        add("one database", "log", at, Ours(at, server.url(), "one"))
    (folder / "redis").mkdir()
    redis = RedisServer(folder / "redis")
    stack.callback(redis.stop)
    inbox = RedisInbox(redis.url(), f"sqlite:///{folder / 'inbox.db'}")
    add("redis", "redis", redis.url(), inbox)
    if kafka is not None:
        broker = KafkaServer(kafka)
        stack.callback(broker.stop)
        add("kafka", "kafka", broker.where, Kafka(broker.where))
    return found


def rate(party: Party, count: int) -> float:
    """Return how many messages a second it consumes, of so many that wait."""
    if party.slow:
        count = max(1, count // 10)
    party.worker.fill(count)
    began = time.perf_counter()
    _take(party.worker, count)
    return count / (time.perf_counter() - began)


def latencies(party: Party, pace: float, count: int) -> Latency:
    """Return how long messages took that are published at a pace."""
    party.pacer.start(pace, count)
    took = sorted(_take(party.worker, count))
    party.pacer.wait()
    return Latency(statistics.median(took) / _MS, took[int(0.99 * (len(took) - 1))] / _MS)


def _take(worker: Worker, count: int) -> list[int]:
    """Take so many; nanoseconds since each was sent."""
    took: list[int] = []
    end = time.monotonic() + _STUCK_S
    while len(took) < count:
        bodies = worker.take()
        now = time.monotonic_ns()
        took += [now - read(body)[1] for body in bodies]
        if time.monotonic() > end:
            raise RuntimeError(f"{len(took)} of {count} messages were taken")
    return took


def run(
    folder: Path,
    parts: Sequence[str],
    size: Size,
    report: Report,
    kafka: Path | None,
    *,
    postgresql: bool,
) -> None:
    """Measure these parts."""
    if {"throughput", "latency"} & {*parts}:
        with ExitStack() as stack:
            compared = parties(stack, folder, kafka, postgresql=postgresql)
            for party in compared.values():
                # What is compiled, made and cached when it is first used.
                rate(party, max(BATCH, size.messages // 10))
            if "throughput" in parts:
                _throughput(compared, size, report)
            if "latency" in parts:
                _latency(compared, size, report)
    if "takeover" in parts:
        for engine, log in _logs(folder, "takeover"):
            spread = Spread.of(taken_over(log, folder / f"takeover-{engine}", size.kills))
            told, most = f"{size.kills} kills", 2.0 if engine == "sqlite" else None
            report.add(f"takeover: seconds, {engine}", spread, told, most=most)
    if "idle" in parts:
        for engine, log in _logs(folder, "idle"):
            found = [idle(log, folder, size.idle, size.idle_s)]
            told = f"{size.idle} processes"
            report.add(f"idle: cores, {engine}", Spread.of(found), told, most=0.15)
    if "recovery" in parts:
        (folder / "recovery").mkdir()
        without, snapshot = recovered(folder / "recovery", size.changes, min(3, size.rounds))
        told = f"of {size.changes:,} changes"
        report.add("recovery: seconds, without a snapshot", Spread.of(without), told, most=10.0)
        report.add("recovery: seconds, with a snapshot", Spread.of(snapshot), told, most=0.5)


def _logs(folder: Path, part: str) -> Iterator[tuple[str, str]]:
    """Yield URLs of logs that are not there, by the engine."""
    yield "sqlite", f"sqlite:///{folder / f'{part}.db'}"
    with EtcdCluster(folder / f"etcd-{part}", nodes=1) as cluster:
        yield "etcd", cluster.url(log=part)


def _rounds(
    compared: dict[str, Party], size: Size, measure: Callable[[Party], object], what: str
) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {name: [] for name in compared}
    for turn in range(size.rounds):
        names = list(compared) if turn % 2 else list(reversed(compared))
        for name in names:
            found[name].append(measure(compared[name]))
        sys.stderr.write(f"  {what}: round {turn + 1} of {size.rounds}\n")
    return found


def _throughput(compared: dict[str, Party], size: Size, report: Report) -> None:
    found = _rounds(compared, size, lambda party: rate(party, size.messages), "throughput")
    rates = {name: [float(each) for each in values] for name, values in found.items()}  # type: ignore[arg-type]

    def ratio(ours: str, theirs: str, told: str, least: float | None) -> None:
        if ours not in rates or theirs not in rates:
            return
        pairs = [one / other for one, other in zip(rates[ours], rates[theirs], strict=True)]
        one, other = statistics.median(rates[ours]), statistics.median(rates[theirs])
        report.add(
            f"messages a second: {told}",
            Spread.of(pairs),
            f"{one:,.0f} to {other:,.0f}",
            least=least,
        )

    for engine, aims in (("sqlite", (3.0, 0.8, 0.75)), ("postgresql", (None, None, 0.75))):
        ours = f"{engine} consumer"
        ratio(ours, f"{engine} single", f"{engine}, to one transaction a message by hand", aims[0])
        ratio(ours, f"{engine} batched", f"{engine}, to the same batches by hand", aims[1])
        ratio(ours, f"{engine} without", f"{engine}, to it without the guarantee", aims[2])
    told = "sqlite, one file, to one transaction a message by hand"
    ratio("one file", "sqlite single", told, 3.0)
    ratio("one file", "sqlite batched", "sqlite, one file, to the same batches by hand", 0.8)
    ratio("one file", "redis", "sqlite, one file, to Redis Streams with an inbox", 1.0)
    told = "postgresql, one database, to one transaction a message by hand"
    ratio("one database", "postgresql single", told, None)
    told = "postgresql, one database, to the same batches by hand"
    ratio("one database", "postgresql batched", told, None)
    ratio("one database", "postgresql consumer", "postgresql, one database, to two", None)
    told = "state in the log, to one transaction a message by hand in SQLite"
    ratio("state", "sqlite single", told, None)
    ratio("state", "sqlite batched", "state in the log, to batches by hand in SQLite", None)
    for ours, name, least in (
        ("sqlite consumer", "sqlite", 1.0),
        ("postgresql consumer", "postgresql", None),
        ("state", "state in the log", None),
    ):
        ratio(ours, "kafka", f"{name}, to Kafka's transactions", least)
        ratio(ours, "redis", f"{name}, to Redis Streams with an inbox", least)


def _latency(compared: dict[str, Party], size: Size, report: Report) -> None:
    found = _rounds(
        compared, size, lambda party: latencies(party, size.pace, size.paced), "latency"
    )
    times: dict[str, list[Latency]] = found  # type: ignore[assignment]
    others = ("sqlite single", "sqlite batched", "sqlite without", "redis", "kafka")
    compared_to = [
        *[("sqlite consumer", theirs) for theirs in others],
        *[("one file", theirs) for theirs in ("sqlite single", "sqlite batched", "redis", "kafka")],
        *[
            ("postgresql consumer", theirs)
            for theirs in ("postgresql single", "postgresql batched", "redis", "kafka")
        ],
        ("one database", "postgresql batched"),
        ("one database", "postgresql consumer"),
        *[("state", theirs) for theirs in ("sqlite single", "sqlite batched", "redis", "kafka")],
    ]
    for field in Latency._fields:
        for mine, theirs in compared_to:
            if mine not in times or theirs not in times:
                continue
            ours = [getattr(each, field) for each in times[mine]]
            other = [getattr(each, field) for each in times[theirs]]
            report.add(
                f"{field}: {theirs}, to our {mine}",
                Spread.of([one / each for each, one in zip(ours, other, strict=True)]),
                f"{statistics.median(other):.1f} ms to {statistics.median(ours):.1f} ms",
                least=1.0 if theirs in _OTHERS and mine in _AIMED else None,
            )
