"""The systems that are measured, sources and sinks alone over them, and the targets."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from benchmarks.log.kafka import KafkaServer
from benchmarks.nexmark.alone import RAW, SOURCE_RAW
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.fleet import environment
from benchmarks.nexmark.load import KafkaLoad, Load, LogLoad
from benchmarks.nexmark.plain import FORM
from benchmarks.nexmark.schemas import SCHEMAS, SUBSTREAMS
from benchmarks.nexmark.streams import KafkaStreams, LogStreams, create_log, json_rows

__all__ = [
    "SIDES",
    "TARGETS",
    "alone",
    "alone_summary",
    "system",
]

# ``plain`` is the log without the guarantee; ``synced`` is a Kafka that syncs each message, which
# it does for each part of a request.
SIDES = ("log", "plain", "kafka", "synced")
# The targets of these ratios: at least, or at most.
TARGETS = {
    "source to kafka": "at least 1",
    "source to parquet": "at least 0.5",
    "sink to flushed": "at least 1",
    "sink to synced": "at least 1",
    "sink named to plain": "at least 0.75",
    "saturation to kafka": "at least 1.5",
    "saturation to kafka, least": "at least 1",
    "p50 to kafka": "at most 1",
    "p99 to kafka": "at most 1",
    "p50 to plain": "at most 1.2",
    "p99 to plain": "at most 1.2",
}
_ROOT = Path(__file__).parents[2]
_PUBLISHED = 50_000
# A message a row takes longer: so much less of them.
_RAW_SHARE = 4


def alone(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return rows a second of sources and sinks alone, by their names."""
    count = options.rows
    events = Events(rate=10_000)
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'alone.db'}"
        log = stack.enter_context(create_log(url))
        log.stream(RAW, SUBSTREAMS)
        published: list[Any] = [LogStreams(log)]
        command = ["--log", url, "--parquet", str(folder / "bids"), "--rounds", str(options.rounds)]
        if options.kafka is not None:
            command += ["--jars", jars_of(options.spark_kafka)]
            for name in ("kafka", "synced"):
                server = _kafka(options.kafka, durable=name == "synced")
                stack.callback(server.stop)
                command += ["--kafka", f"{name}={server.where}"]
                if name == "kafka":
                    published.append(KafkaStreams(server.where))
                    command += ["--flushed", str(server.data)]
        (folder / "bids").mkdir()
        rows = raw = 0
        producer = log.producer()
        for at in range(0, count, _PUBLISHED):
            bids = events.tables(at, _PUBLISHED)["bids"]
            rows += bids.num_rows
            if at < count // _RAW_SHARE:
                raw += bids.num_rows
                with producer.transaction() as transaction:
                    for value in json_rows(bids):
                        transaction.publish(RAW, value)
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
    return {
        name: (raw if name == SOURCE_RAW else rows) / statistics.median(each)
        for name, each in seconds.items()
    }


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
    """Return the ratios with a target, of sources and sinks alone."""
    pairs = {
        "source to kafka": ("source log", "source kafka"),
        "source to parquet": ("source log", "source parquet"),
        "sink to kafka": ("sink log", "sink kafka"),
        "sink to flushed": ("sink log", "sink flushed"),
        "sink to synced": ("sink log", "sink synced"),
        "sink named to plain": ("sink log, named", "sink log"),
    }
    return {
        name: found[ours] / found[theirs]
        for name, (ours, theirs) in pairs.items()
        if ours in found and theirs in found
    }


def jars_of(folder: Path) -> str:
    """Return the jars that Spark needs for Kafka, as its option lists them."""
    return ",".join(str(each.absolute()) for each in sorted(folder.glob("*.jar")))


def _kafka(jars: Path, *, durable: bool) -> KafkaServer:
    return KafkaServer(jars, dict.fromkeys(SCHEMAS, SUBSTREAMS), durable=durable)
