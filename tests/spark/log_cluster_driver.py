"""A driver on a cluster with speculation: from a stream of a log to another, by job and by query.

``python -m tests.spark.log_cluster_driver``; prints the name of each write when Spark has
committed it, and then waits for the end of its zombie.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import sharedlog.spark
from tests.helpers.waiting import until
from tests.spark.cluster_driver import session
from tests.spark.conftest import SLOW_S
from tests.spark.log_zombies import LateLogDataSource
from tests.spark.signalled import SIGNALS
from tests.spark.starting import run_to_its_end


def main() -> None:
    """Write the stream in two ways."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--checkpoint", required=True)
    options = parser.parse_args()
    spark = session(options.master)
    sharedlog.spark.register(spark)
    spark.dataSource.register(LateLogDataSource)

    def rows(reader: Any, name: str, **more: str) -> Any:
        frame = reader.format("sharedlog").options(log=options.log, stream="orders", **more).load()
        return frame.selectExpr("key", f"concat('{name}-', cast(value as string)) as value")

    def sink(writer: Any, name: str) -> Any:
        given = {"log": options.log, "stream": "paid", "name": name, "trap": name}
        return writer.format("sharedlog-late").options(**given)

    def job() -> None:
        sink(rows(spark.read, "job").write, "job").mode("append").save()

    def query() -> None:
        writer = (
            sink(rows(spark.readStream, "query", maxRowsPerTrigger="200").writeStream, "query")
            .option("checkpointLocation", options.checkpoint)
            .trigger(availableNow=True)
        )
        run_to_its_end(writer.start)

    signals = Path(os.environ[SIGNALS])
    for name, write in (("job", job), ("query", query)):
        write()
        print(name, flush=True)
        until((signals / f"{name}.end").exists, f"the zombie of {name}", SLOW_S)
    spark.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main()
