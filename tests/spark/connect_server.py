"""A Spark Connect server as a process, started as ``start-connect-server.sh`` does it.

``python -m tests.spark.connect_server --port N --master URL``: becomes the JVM, so that a signal to
its process id reaches that.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pyspark

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def main() -> None:
    """Become the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--directory", required=True)
    options = parser.parse_args()
    settings = {
        # By default it listens on all addresses.
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": options.port,
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": options.directory,
        "spark.sql.warehouse.dir": f"{options.directory}/warehouse",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.executor.heartbeatInterval": "60s",
    }
    home = Path(pyspark.__file__).parent
    # Python finds what is in the folder where it starts.
    os.chdir(options.directory)
    os.environ["SPARK_HOME"] = str(home)
    given = [text for each in settings.items() for text in ("--conf", "=".join(each))]
    program = str(home / "bin" / "spark-submit")
    os.execv(  # noqa: S606 - no shell is between
        "/bin/bash",
        [*("bash", program, "--class", _SERVER), *("--master", options.master), *given],
    )


if __name__ == "__main__":
    main()
