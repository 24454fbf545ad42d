"""The parts of the benchmark: what each measures, as figures of a report."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.deliver.away import beside_a_stopped_one, caught_up
from benchmarks.deliver.delays import (
    Delays,
    Side,
    ahead,
    apply_delays,
    in_turns,
    player_delays,
)
from benchmarks.deliver.fleet import Fleet, Rivals
from benchmarks.deliver.messages import stream_of
from benchmarks.deliver.publishing import Kafka, KafkaTransactions, Publisher, Redis, Rifl
from benchmarks.deliver.report import Report
from benchmarks.deliver.sustained import sustained
from benchmarks.deliver.worker import Worker
from benchmarks.log.kafka import KafkaServer
from benchmarks.pairs import Spread
from chaos.redis_server import RedisServer

__all__ = ["PARTS", "measured"]

PARTS = ("delays", "stopped", "unsynced", "away", "sustained")
_MOST_DELAY, _LEAST_AHEAD, _MOST_CHANGE, _LEAST_CATCHING, _LEAST_RATE = 1.3, 10.0, 1.1, 0.5, 0.5
# Targets of which so much is asked.
_MANY = 10
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - files that no disk has
# Of what stands beside, by the kinds of its consumers.
_NAMES = {
    "kafka-committed": "Kafka's transactions",
    "kafka": "plain Kafka, no fsync",
    "redis": "Redis Streams, no fsync",
}
_PUBLISHERS: dict[str, Callable[[str], Publisher]] = {
    "kafka-committed": KafkaTransactions,
    "kafka": Kafka,
    "redis": Redis,
}


def measured(
    folder: Path, parts: Sequence[str], options: argparse.Namespace, report: Report
) -> Iterator[str]:
    """Measure; yields the part's name whenever there is more to be told."""
    most = max(options.targets)
    if "delays" in parts or "stopped" in parts:
        with _kept(folder, options, durable=True) as where, Fleet(folder / "ours", most) as fleet:
            if "delays" in parts:
                yield from _delays(where, fleet, folder, options, report)
            if "stopped" in parts:
                _stopped(fleet, most, options, report)
                yield "stopped"
    if "unsynced" in parts:
        with tempfile.TemporaryDirectory(prefix="rifl-bench-", dir=_memory()) as name:
            memory = Path(name)
            with (
                _kept(memory, options, durable=False) as where,
                Fleet(memory / "ours", most) as fleet,
            ):
                yield from _unsynced(where, fleet, memory, options, report)
    if "away" in parts:
        with Fleet(folder / "away", 2) as fleet:
            _away(fleet, options, report)
        yield "away"
    if "sustained" in parts:
        with Fleet(folder / "sustained", 4) as fleet:
            _sustained(fleet, options, report)
        yield "sustained"


def _memory() -> Path | None:
    return _IN_MEMORY if _IN_MEMORY.is_dir() else None


@contextmanager
def _kept(folder: Path, options: argparse.Namespace, *, durable: bool) -> Iterator[dict[str, str]]:
    """Start the servers of others; where they are, by the kinds of their consumers."""
    where: dict[str, str] = {}
    with ExitStack() as stack:
        if options.kafka is not None:
            topics = {stream_of(each): 1 for each in range(max(options.targets))}
            kafka = KafkaServer(options.kafka, topics, durable=durable, within=folder)
            stack.callback(kafka.stop)
            where["kafka-committed" if durable else "kafka"] = kafka.where
        if not durable:
            kept = folder / "redis-server"
            kept.mkdir()
            redis = RedisServer(kept, appendonly="no")
            stack.callback(redis.stop)
            where["redis"] = redis.url()
        yield where


def _delays(
    where: dict[str, str],
    fleet: Fleet,
    folder: Path,
    options: argparse.Namespace,
    report: Report,
) -> Iterator[str]:
    with ExitStack() as stack:
        board = str(fleet.folder / "board")
        fanout = stack.enter_context(Worker("fanout", board, *fleet.bare_ports))
        rivals = _rivals(stack, where, folder)
        for count in options.targets:
            fleet.play([fleet.declared(each) for each in range(count)])
            found = player_delays(fleet, fanout, count, options.rounds, options.transactions)
            mine = statistics.median(each.median for each in found["player"])
            for way, named in (("stream", "streams"), ("unary", "calls")):
                theirs = statistics.median(each.median for each in found[way])
                report.add(
                    f"player delay, {count} targets, to a fan-out by {named}",
                    Spread.of(
                        [
                            ours.median / other.median
                            for ours, other in zip(found["player"], found[way], strict=True)
                        ]
                    ),
                    f"{mine:.2f} ms to {theirs:.2f} ms",
                    most=_MOST_DELAY,
                    ms=round(mine, 3),
                    theirs_ms=round(theirs, 3),
                )
            yield "delays"
            _beside(fleet, rivals, count, options, report)
            yield "delays"


def _unsynced(
    where: dict[str, str],
    fleet: Fleet,
    folder: Path,
    options: argparse.Namespace,
    report: Report,
) -> Iterator[str]:
    with ExitStack() as stack:
        rivals = _rivals(stack, where, folder)
        for count in options.targets:
            fleet.play([fleet.declared(each) for each in range(count)])
            _beside(fleet, rivals, count, options, report)
            yield "unsynced"


def _rivals(
    stack: ExitStack, where: dict[str, str], folder: Path
) -> dict[str, tuple[Rivals, Side]]:
    found = {}
    for kind, at in where.items():
        rivals = stack.enter_context(Rivals(kind, at, folder))
        publisher = _PUBLISHERS[kind](at)
        stack.callback(publisher.close)
        found[kind] = (rivals, Side(publisher, rivals.board, rivals.numbers))
    return found


def _beside(
    fleet: Fleet,
    rivals: dict[str, tuple[Rivals, Side]],
    count: int,
    options: argparse.Namespace,
    report: Report,
) -> None:
    sides = {"ours": Side(Rifl(fleet.log), fleet.board, fleet.numbers)}
    for kind, (consumers, side) in rivals.items():
        consumers.enough(count)
        sides[kind] = side
    ways: dict[str, Callable[[], list[int]]] = {
        name: partial(apply_delays, side, count, options.transactions)
        for name, side in sides.items()
    }
    found = in_turns(ways, options.rounds)
    for kind in rivals:
        least = _LEAST_AHEAD if kind == "kafka-committed" and count >= _MANY else None
        _ahead(report, kind, count, found["ours"], found[kind], least)


def _ahead(
    report: Report,
    kind: str,
    count: int,
    ours: Sequence[Delays],
    theirs: Sequence[Delays],
    least: float | None,
) -> None:
    parts = {"average": lambda each: each.mean, "p99": lambda each: each.p99}
    for named, part in parts.items():
        mine, other = (statistics.median(map(part, each)) for each in (ours, theirs))
        report.add(
            f"apply delay, {count} targets, {named}, {_NAMES[kind]} to ours",
            ahead(ours, theirs, part),
            f"{other:.1f} ms to {mine:.1f} ms",
            least=least,
            ms=round(mine, 3),
            theirs_ms=round(other, 3),
        )


def _stopped(fleet: Fleet, most: int, options: argparse.Namespace, report: Report) -> None:
    side = Side(Rifl(fleet.log), fleet.board, fleet.numbers)
    found = beside_a_stopped_one(fleet, side, most, options.rounds, 2 * options.transactions)
    without, with_it = (
        statistics.median(each.p99 for each in found[name]) for name in ("stopped", "all")
    )
    report.add(
        f"apply delay of {most - 1} targets, p99, one more stopped to none",
        ahead(found["all"], found["stopped"], lambda each: each.p99),
        f"{without:.1f} ms to {with_it:.1f} ms",
        most=_MOST_CHANGE,
        ms=round(without, 3),
        theirs_ms=round(with_it, 3),
    )


def _away(fleet: Fleet, options: argparse.Namespace, report: Report) -> None:
    found = caught_up(fleet, options.away, options.away_rounds, options.pace, options.alone)
    alone, beside = statistics.median(found.alone), statistics.median(found.beside)
    main = statistics.median(found.main)
    report.add(
        f"catching up with {options.away:,} messages, beside the main stream to alone",
        Spread.of([one / two for one, two in zip(found.beside, found.alone, strict=True)]),
        f"{beside:,.0f} to {alone:,.0f} a second, beside {main:,.0f} a second to another target",
        least=_LEAST_CATCHING,
        per_s=round(beside),
        alone_per_s=round(alone),
        main_per_s=round(main),
    )


def _sustained(fleet: Fleet, options: argparse.Namespace, report: Report) -> None:
    found = sustained(fleet, options.rounds, options.seconds)
    mine, theirs = statistics.median(found.deliveries), statistics.median(found.calls)
    report.add(
        "small messages to four targets, to batched calls of rifl's client",
        Spread.of([one / two for one, two in zip(found.deliveries, found.calls, strict=True)]),
        f"{mine:,.0f} to {theirs:,.0f} a second",
        least=_LEAST_RATE,
        deliveries_per_s=round(mine),
        calls_per_s=round(theirs),
    )
