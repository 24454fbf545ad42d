"""The parts of the benchmark: sources and sinks alone, and each query at rising rates."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet

from benchmarks.log.kafka import KafkaServer
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.fleet import DriverProcess, environment
from benchmarks.nexmark.load import Delays, KafkaLoad, Load, LogLoad, Step, run_step
from benchmarks.nexmark.plain import FORM
from benchmarks.nexmark.schemas import SCHEMAS, SUBSTREAMS
from benchmarks.nexmark.streams import KafkaStreams, LogStreams, create_log

__all__ = [
    "SIDES",
    "TARGETS",
    "Found",
    "alone",
    "alone_summary",
    "rising",
    "summary",
    "system",
]

# ``plain`` is the log without the guarantee; ``synced`` is a Kafka that syncs each message.
SIDES = ("log", "plain", "kafka", "synced")
# What is to be reached of these ratios: at least, or at most.
TARGETS = {
    "source to kafka": "at least 1",
    "source to parquet": "at least 0.5",
    "sink to synced": "at least 1",
    "saturation to kafka": "at least 1.5",
    "saturation to kafka, least": "at least 1",
    "p50 to kafka": "at most 1",
    "p99 to kafka": "at most 1",
    "p50 to plain": "at most 1.2",
    "p99 to plain": "at most 1.2",
}
_ROOT = Path(__file__).parents[2]
_PUBLISHED = 50_000
# Of an idle pipeline's, that is one which holds a rate no longer.
_SATURATED = 4.0


class Found(NamedTuple):
    """What came of a query over a system: for each rate, the slowest first, its delays."""

    steps: list[tuple[int, Delays]]

    @property
    def held(self) -> int:
        """The highest rate whose p99 is within four times the idle pipeline's; 0: not even that."""
        idle = self.steps[0][1].p99
        held = [rate for rate, at in self.steps if at.rows and at.p99 <= _SATURATED * idle]
        return max(held, default=0)

    @property
    def figures(self) -> dict[str, Any]:
        """It as JSON has it."""
        steps = [
            {"rate": rate, "rows": at.rows, "p50_s": round(at.p50, 3), "p99_s": round(at.p99, 3)}
            for rate, at in self.steps
            if at.rows
        ]
        return {"held": self.held, "steps": steps}


def alone(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return rows a second of sources and sinks alone, by their names."""
    count = options.rows
    events = Events(rate=10_000)
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'alone.db'}"
        published: list[Any] = [LogStreams(stack.enter_context(create_log(url)))]
        command = ["--log", url, "--parquet", str(folder / "bids"), "--rounds", str(options.rounds)]
        if options.kafka is not None:
            command += ["--jars", jars_of(options.spark_kafka), "--kafka"]
            for name in ("kafka", "synced"):
                server = _kafka(options.kafka, durable=name == "synced")
                stack.callback(server.stop)
                command.append(f"{name}={server.where}")
                if name == "kafka":
                    published.append(KafkaStreams(server.where))
        (folder / "bids").mkdir()
        rows = 0
        for at in range(0, count, _PUBLISHED):
            bids = events.tables(at, _PUBLISHED)["bids"]
            rows += bids.num_rows
            for each in published:
                each.publish({"bids": bids})
            pyarrow.parquet.write_table(bids, folder / "bids" / f"{at}.parquet")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.nexmark.alone", *command],
            cwd=_ROOT,
            env=environment(folder),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return {name: rows / statistics.median(each) for name, each in seconds.items()}


def rising(folder: Path, options: argparse.Namespace, query: str, side: str) -> Found:
    """Return how a query is over a system as the rate rises, until it holds it no longer."""
    folder.mkdir(parents=True)
    longest_us = Events(rate=min(options.rates)).longest_us
    with system(folder, options, side) as (load, told):
        driver = DriverProcess(
            *told,
            *("--queries", query),
            *("--directory", str(folder)),
            *("--longest", f"{longest_us} microseconds"),
            *("--late", "200 milliseconds", "--window", "1 second", "--slide", "200 milliseconds"),
            *("--conf", *options.conf),
            log=folder / "driver.log",
        )
        steps: list[tuple[int, Delays]] = []
        with driver:
            first = 0
            # The first one again: what Spark compiles, and how its processes start.
            for rate in (options.rates[0], *options.rates):
                step = Step(rate, options.seconds, first)
                found = run_step(load, query, step)
                first += step.events
                steps.append((rate, found))
                if len(steps) > 2 and found.p99 > _SATURATED * steps[1][1].p99:
                    break
    return Found(steps[1:])


@contextmanager
def system(
    folder: Path, options: argparse.Namespace, side: str
) -> Iterator[tuple[Load, list[str]]]:
    """Yield how a system is published to and followed, and what a driver is told of it."""
    with ExitStack() as stack:
        if side in ("log", "plain"):
            url = f"sqlite:///{folder / 'log.db'}"
            load = LogLoad(stack.enter_context(create_log(url)))
            yield load, ["--log", url, *(["--form", FORM] if side == "plain" else [])]
            return
        server = _kafka(options.kafka, durable=side == "synced")
        stack.callback(server.stop)
        told = ["--kafka", server.where, "--jars", jars_of(options.spark_kafka)]
        yield KafkaLoad(server.where), told


def alone_summary(found: dict[str, float]) -> dict[str, float]:
    """Return what is to be reached, of sources and sinks alone: ratios."""
    pairs = {
        "source to kafka": ("source log", "source kafka"),
        "source to parquet": ("source log", "source parquet"),
        "sink to kafka": ("sink log", "sink kafka"),
        "sink to synced": ("sink log", "sink synced"),
    }
    return {
        name: found[ours] / found[theirs]
        for name, (ours, theirs) in pairs.items()
        if ours in found and theirs in found
    }


def summary(found: dict[str, dict[str, Found]]) -> dict[str, float]:
    """Return what is to be reached, of all queries: ratios, geometric means of them."""
    told = {}
    for other in ("kafka", "synced"):
        held = [
            each["log"].held / each[other].held
            for each in found.values()
            if other in each and each[other].held and each["log"].held
        ]
        if held:
            told[f"saturation to {other}"] = statistics.geometric_mean(held)
            told[f"saturation to {other}, least"] = min(held)
    for other in ("plain", "kafka"):
        for quantile in ("p50", "p99"):
            ratios = [
                getattr(ours, quantile) / getattr(theirs, quantile)
                for each in found.values()
                if other in each
                for ours, theirs in _beside(each["log"], each[other])
            ]
            if ratios:
                told[f"{quantile} to {other}"] = statistics.geometric_mean(ratios)
    return told


def _beside(ours: Found, theirs: Found) -> list[tuple[Delays, Delays]]:
    """Return the delays of both at the highest rate that is at most half of what they hold."""
    both, other = dict(ours.steps), dict(theirs.steps)
    rates = [rate for rate in both if rate in other and rate <= max(theirs.held / 2, min(other))]
    pairs = [(both[rate], other[rate]) for rate in sorted(rates)]
    return [pair for pair in pairs if all(each.rows for each in pair)][-1:]


def jars_of(folder: Path) -> str:
    """Return what Spark needs for Kafka, as it is told."""
    return ",".join(str(each.absolute()) for each in sorted(folder.glob("*.jar")))


def _kafka(jars: Path, *, durable: bool) -> KafkaServer:
    return KafkaServer(jars, dict.fromkeys(SCHEMAS, SUBSTREAMS), durable=durable)
