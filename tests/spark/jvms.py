"""The JVMs of Spark that tests start: with few words, and with classes from an archive.

A JVM that takes Spark's 20,000 classes from an archive (class data sharing) starts with half of the
CPU. ``python -m tests.spark.jvms`` makes it, once for an environment of Python: a session loads the
classes, and its JVM writes them when it ends. A JVM with other jars, or of another version, goes
without.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

__all__ = ["ARCHIVE", "CONF", "submit_arguments"]

# As SPARK_CONF_DIR for what is told nothing else.
CONF = Path(__file__).parent / "conf"
ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
# What tests do most: a job, a stream, and rows that Python changes.
_SESSION = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2,4]").getOrCreate()
rows = spark.range(4, numPartitions=2).selectExpr("string(id) as value").repartition(2, "value")
rows.mapInArrow(lambda batches: batches, rows.schema).write.text(sys.argv[1] + "/in")
stream = spark.readStream.schema("value string").text(sys.argv[1] + "/in")
writer = stream.writeStream.foreachBatch(lambda frame, number: frame.count())
writer = writer.option("checkpointLocation", sys.argv[1] + "/checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
# The JVM ends with its input, and writes then.
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


def submit_arguments(shared: str | None = None) -> list[str]:
    """Return what ``spark-submit`` is given for each driver and server.

    Not by SPARK_CONF_DIR, which is on the path of classes: with a folder that has files there a JVM
    takes no class from an archive.
    """
    # An archive that is not there would cost a JVM that of Java's own classes, too.
    shared = shared or (f"-XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else "")
    options = f"-Dlog4j2.configurationFile=file:{CONF / 'log4j2.properties'} -Xlog:disable {shared}"
    java = f"spark.driver.defaultJavaOptions={options}"
    return ["--properties-file", str(CONF / "spark-defaults.conf"), "--conf", java]


def main() -> None:
    """Make the archive if it is not there. If that fails, tests do without."""
    if ARCHIVE.exists():
        return
    print(f"Archiving the classes of Spark in {ARCHIVE} ...", flush=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as made:
        file = Path(made) / "jsa"
        arguments = submit_arguments(f"-XX:ArchiveClassesAtExit={file}")
        given = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": shlex.join([*arguments, "pyspark-shell"]),
        }
        done = subprocess.run(
            [sys.executable, "-c", _SESSION, made],
            env={**os.environ, **given},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if file.exists():
            file.replace(ARCHIVE)
        else:
            print(f"There is none ({done.returncode}): {done.stderr}", flush=True)


if __name__ == "__main__":
    main()
