"""``make demo-nexmark``: a chain of Spark queries gives each answer once, whatever is killed.

NEXMark's eight queries, eleven stages of them, read events from a log and write what they find into
it. Tasks fail now and then; Python workers, executors and the driver are killed by SIGKILL and
started again. Beside it the same chain over Spark's own Kafka source and sink. All rows are read
from the streams afterwards and compared with answers that DuckDB computes over all events at once.
Exits with 1 if a row of the log's is wrong, missing or there twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from benchmarks.log.kafka import KafkaServer
from benchmarks.nexmark.answers import Answer, Difference, answers, before, compare
from benchmarks.nexmark.events import Events
from benchmarks.nexmark.fleet import KINDS, DriverProcess
from benchmarks.nexmark.schemas import OUTPUTS, SCHEMAS, SUBSTREAMS
from benchmarks.nexmark.streams import KafkaStreams, LogStreams, Streams, create_log

__all__ = ["main", "parser"]

# Events that are published at once, and that a micro-batch has about.
_SLICE, _BATCH = 500, 5000
# By how many events one may be later than another, as a stream gives it: in Kafka a message in one
# partition waits for no other, and a reader has a part of a micro-batch.
_LATE, _LATER = 1000, 10_000
# Of a slice each stream has a message in the log: one commit has three.
_MESSAGES = 3 * _BATCH // _SLICE
# How far the driver has to get between two kills: micro-batches of all queries.
_BATCHES_A_QUERY = 1
_LOOK_S = 0.2
_STUCK_S = 1800.0


def parser() -> argparse.ArgumentParser:
    """Return what reads the demo's arguments."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.nexmark.demo", description=__doc__)
    made.add_argument("--events", type=int, default=24_000)
    # So few that there are hundreds of windows.
    made.add_argument("--rate", type=int, default=10, help="events a second of event time")
    made.add_argument("--queries", nargs="+", choices=OUTPUTS, default=list(OUTPUTS))
    made.add_argument("--kills", type=int, default=4)
    made.add_argument("--failing", type=int, default=10, help="of a hundred tasks")
    made.add_argument("--seed", type=int, default=1, help="of the events, and of who is killed")
    made.add_argument("--kafka", type=Path, metavar="FOLDER", help="of its jars; else without")
    made.add_argument("--spark-kafka", type=Path, metavar="FOLDER", help="of Spark's jars for it")
    # Two executors beside the driver: processes that can be killed.
    made.add_argument("--master", default="local-cluster[2,1,512]")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    options = parser().parse_args(arguments)
    # A terminated demo cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else 100)
    folder = Path(tempfile.mkdtemp(prefix="rifl-nexmark-"))
    try:
        found, killed = _run(console, options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _report(console, found, killed)
    print(json.dumps({"events": options.events, **found, "killed": killed}), flush=True)
    return 0 if all(_is_right(each) for each in found["log"].values()) else 1


Found = dict[str, dict[str, dict[str, int]]]
Killed = dict[str, dict[str, int]]


def _run(console: Console, options: argparse.Namespace, folder: Path) -> tuple[Found, Killed]:
    """Return how each system's streams differ from the answers, and what was killed."""
    events = Events(options.seed, options.rate)
    wanted = answers(events.tables(0, options.events), options.queries)
    sides = ["log"] if options.kafka is None else ["log", "kafka"]
    found: Found = {}
    killed: Killed = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bars = {each: progress.add_task(each, total=options.events) for each in sides}
        for side, bar in bars.items():
            with _side(side, options, folder) as (streams, arguments):
                chain = _Chain(options, folder / side, events, streams, arguments)
                killed[side] = chain.run(progress, bar)
                time_us = events.closed_us(options.events)
                rows = {each: before(streams.rows(each), time_us) for each in options.queries}
            found[side] = _differences(rows, wanted)
    return found, killed


def _differences(found: dict[str, Answer], wanted: dict[str, Answer]) -> dict[str, dict[str, int]]:
    return {query: dict(compare(found[query], wanted[query])) for query in wanted}


@contextmanager
def _side(
    side: str, options: argparse.Namespace, folder: Path
) -> Iterator[tuple[Streams, tuple[str, ...]]]:
    """Yield a system's streams, and what a driver is told of it."""
    with ExitStack() as stack:
        if side == "log":
            url = f"sqlite:///{folder / 'log.db'}"
            log = stack.enter_context(create_log(url))
            yield LogStreams(log), ("--log", url, "--most", str(_MESSAGES))
            return
        server = KafkaServer(options.kafka, dict.fromkeys(SCHEMAS, SUBSTREAMS), durable=False)
        stack.callback(server.stop)
        jars = ",".join(str(each.absolute()) for each in options.spark_kafka.glob("*.jar"))
        told = ("--kafka", server.where, "--jars", jars, "--most", str(_BATCH))
        yield KafkaStreams(server.where), told


class _Chain:
    """A chain under failures: events are published in parts, and in each something is killed."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        events: Events,
        streams: Streams,
        arguments: tuple[str, ...],
    ) -> None:
        folder.mkdir()
        self._options, self._folder = options, folder
        self._events, self._streams = events, streams
        self._driver = DriverProcess(
            *arguments,
            *("--queries", *options.queries),
            *("--directory", str(folder)),
            *("--master", options.master),
            *("--every", "200 milliseconds"),
            *("--failing", str(options.failing)),
            *("--longest", f"{events.longest_us} microseconds"),
            *("--late", f"{_LATE * 1000 // options.rate} milliseconds"),
            *("--later", f"{_LATER * 1000 // options.rate} milliseconds"),
            log=folder / "driver.log",
        )

    def run(self, progress: Progress, bar: TaskID) -> dict[str, int]:
        """Publish all, kill, and wait for the end; how often what was killed."""
        options, dice = self._options, Random(self._options.seed)  # noqa: S311 - repeatable
        killed = dict.fromkeys((*KINDS, "failed"), 0)
        count, parts = options.events, options.kills + 1
        with self._driver:
            for part in range(parts):
                batches = self._batches()
                self._publish(count * part // parts, count * (part + 1) // parts, progress, bar)
                if part == options.kills:
                    break
                self._until_further(batches, progress, bar)
                kind = KINDS[part % len(KINDS)]
                killed[kind] += self._driver.kill(kind, dice)
            self._streams.publish(self._events.closing(count))
            progress.update(bar, description="its end")
            self._driver.finish()
            killed["failed"] = self._driver.failures
        return killed

    def _publish(self, first: int, end: int, progress: Progress, bar: TaskID) -> None:
        for at in range(first, end, _SLICE):
            self._streams.publish(self._events.tables(at, min(_SLICE, end - at)))
            progress.update(bar, completed=min(at + _SLICE, end))

    def _batches(self) -> int:
        return sum(1 for each in self._folder.glob("*/commits/*") if each.name.isdecimal())

    def _until_further(self, batches: int, progress: Progress, bar: TaskID) -> None:
        """Wait until the chain got on, and so has a micro-batch in progress."""
        end = time.monotonic() + _STUCK_S
        wanted = batches + _BATCHES_A_QUERY * len(self._options.queries)
        while self._batches() < wanted:
            self._driver.mend()
            if time.monotonic() > end:
                raise RuntimeError(f"the chain does not get on: {self._driver.said}")
            time.sleep(_LOOK_S)


def _is_right(found: dict[str, int]) -> bool:
    return Difference(found).is_none


def _report(console: Console, found: Found, killed: Killed) -> None:
    table = Table(title="The streams, read afterwards, and the answers over all events at once")
    table.add_column("query")
    table.add_column("rows", justify="right")
    sides = list(found)
    names = {"log": "the log", "kafka": "Kafka"}
    for side in sides:
        for what in ("wrong", "missing", "duplicates"):
            table.add_column(f"{names[side]}:\n{what}", justify="right")
    for query, ours in found["log"].items():
        counts = [
            f"{found[side][query][what]:,}"
            for side in sides
            for what in ("wrong", "missing", "duplicates")
        ]
        table.add_row(query, f"{ours['rows']:,}", *counts)
    console.print(table)
    for side in sides:
        told = ", ".join(f"{kind}: {many}" for kind, many in killed[side].items())
        console.print(f"killed over {names[side]}: {told}")


if __name__ == "__main__":
    sys.exit(main())
