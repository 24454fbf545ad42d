"""A client of Spark Connect that does what it is told: a process has one kind of session.

``python -m tests.spark.connect_client URL [ZIP ...]``: adds packages of Python; each line of its
input is a step's name and arguments as JSON; it prints what the step returned, or
``{"error": ...}``. Functions of ``foreachBatch`` run on the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import rifl.spark
import sharedlog.spark
from rifl.spark import call, write
from tests.helpers.waiting import until
from tests.spark.conftest import METHOD, SLOW_S
from tests.spark.starting import run_to_its_end

_COLUMNS = "reference string, account string, cents bigint"


def batches(spark: Any, target: str, log: str, rows: int) -> dict[str, Any]:
    """Run jobs under their names, and read what they wrote."""
    given = {"target": target, "method": METHOD, "key": "reference"}
    frame = spark.range(rows, numPartitions=2).selectExpr(
        "string(id) as reference", "'alice' as account", "id as cents"
    )
    bad = frame.selectExpr("reference", "if(cents = 0, 'bad-x', account) as account", "cents")
    to = frame.selectExpr("reference as value").write.format("sharedlog").mode("append")
    to.options(log=log, stream="orders", name="daily").save()
    to = _renamed(frame, "job-batch-").write.format("rifl").mode("append")
    to.options(**given, session="daily").save()
    dead = write(_renamed(bad, "job-write-"), **given, session="written")
    called = call(_renamed(frame, "job-call-"), **given, session="called")
    read = spark.read.format("sharedlog").options(log=log, stream="orders").load()
    return {
        "dead": [each.reference for each in dead.collect()],
        "called": called.where("reply.entry > 0").count(),
        "read": sorted(each.value for each in read.selectExpr("string(value)").collect()),
    }


def streams(spark: Any, target: str, log: str, checkpoints: str) -> None:
    """Read the log by queries that write to both sinks, and call."""
    given = {"target": target, "method": METHOD, "key": "reference", "name": "risk"}
    read = spark.readStream.format("sharedlog").options(log=log, stream="orders").load()
    rows = read.selectExpr("string(value) as reference", "'alice' as account", "1L as cents")
    for name, frame, form, options in (
        ("sink", _renamed(rows, "job-sink-"), "rifl", {**given, "name": None}),
        ("log", rows.selectExpr("reference as value"), "sharedlog", {"log": log, "stream": "paid"}),
        ("call", call(_renamed(rows, "job-risk-"), **given), "noop", {}),
    ):
        writer = frame.writeStream.format(form).trigger(availableNow=True)
        writer = writer.options(**{key: each for key, each in options.items() if each})
        run_to_its_end(writer.option("checkpointLocation", f"{checkpoints}/{name}").start)


def books(spark: Any, directory: str, target: str, log: str, name: str) -> None:
    """Run a query whose ``foreachBatch`` writes in each way, by a name and its number.

    ``name`` begins those of its writes to the service, and of its rows there. Where a file is named
    as the number, what runs the function is killed when all is written; where it is ``N.wait`` it
    waits instead.
    """
    given = {"target": target, "method": METHOD, "key": "reference", "batchRows": 4}
    append = sharedlog.spark.appending(log=log, stream="paid", name="paid")
    columns = {"log": log, "stream": "columns", "name": "columns", "valueFormat": "arrow"}

    def book(frame: Any, number: int) -> None:
        # Its client of the server waits for one that was killed, for minutes.
        Path(directory, f"{os.getpid()}.pid").touch()
        to = _renamed(frame, f"{name}-save-").write.format("rifl").mode("append")
        to.options(**given, name=f"{name}-save", batchId=number).save()
        ids = {**given, "batch_id": number}
        assert write(_renamed(frame, f"{name}-write-"), **ids, name=f"{name}-write").isEmpty()
        called = call(_renamed(frame, f"{name}-call-"), **ids, name=f"{name}-call")
        assert called.where("reply.entry > 0").count() == frame.count()
        append(frame.selectExpr("concat('paid-', reference) as value"), number)
        to = frame.write.format("sharedlog").options(**columns, batchId=number)
        to.mode("append").save()
        _reached(Path(directory), number)

    _each(spark, directory, "books", book)


def unnamed(spark: Any, directory: str, target: str, log: str) -> dict[str, str]:
    """Write within ``foreachBatch`` and outside, without the number; return how each ended."""
    given = {"target": target, "method": METHOD, "key": "reference"}
    to_log = {"log": log, "stream": "paid"}
    said = Path(directory, "said")

    def writes(frame: Any, where: str, *names: str) -> dict[str, str]:
        rows, values = _renamed(frame, where), frame.selectExpr("reference as value")

        def save(of: Any, form: str, options: dict[str, str]) -> Callable[[], None]:
            return lambda: of.write.format(form).options(**options).mode("append").save()

        ways: dict[str, Callable[[], Any]] = {
            "sink": save(rows, "rifl", given),
            "write": lambda: write(rows, **given),
            "call": lambda: call(rows, **given).collect(),
            "log": save(values, "sharedlog", to_log),
            "log by name": save(values, "sharedlog", {**to_log, "name": where}),
            "no number": save(rows, "rifl", {**given, "name": "x"}),
        }
        return {f"{where} {name}": _ended(ways[name]) for name in names or ways}

    def book(frame: Any, number: int) -> None:
        if number == 0:
            said.write_text(json.dumps(writes(frame, "each")))

    _each(spark, directory, "unnamed", book)
    frame = spark.read.schema(_COLUMNS).json(f"{directory}/input")
    return {**json.loads(said.read_text()), **writes(frame, "batch", "sink", "log")}


def version(spark: Any) -> str:
    """Return the server's."""
    found: str = spark.version
    return found


def _each(spark: Any, directory: str, name: str, book: Callable[[Any, int], None]) -> None:
    rows = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", "1")
    writer = rows.json(f"{directory}/input").writeStream.foreachBatch(book)
    writer = writer.option("checkpointLocation", f"{directory}/{name}")
    run_to_its_end(writer.trigger(availableNow=True).start)


def _ended(way: Callable[[], Any]) -> str:
    try:
        way()
    except PySparkException as error:
        return str(error)
    return ""


def _renamed(frame: Any, prefix: str) -> Any:
    return frame.selectExpr(f"concat('{prefix}', reference) as reference", "account", "cents")


def _reached(directory: Path, number: int) -> None:
    """Be killed, or wait to be, where a file says so."""
    if (directory / f"{number}.wait").exists():
        (directory / f"{number}.wait").rename(directory / f"{number}.reached")
        parent = os.getppid()
        # Of the server, which started this process.
        until(lambda: os.getppid() != parent, "the kill", SLOW_S)
        os._exit(1)
    if (directory / str(number)).exists():
        (directory / str(number)).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Take steps until the input ends."""
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    if sys.argv[2:]:
        spark.addArtifacts(*sys.argv[2:], pyfile=True)
    rifl.spark.register(spark)
    sharedlog.spark.register(spark)
    steps = {each.__name__: each for each in (batches, streams, books, unnamed, version)}
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            told = steps[name](spark, **arguments)
        except PySparkException as error:
            told = {"error": str(error)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
