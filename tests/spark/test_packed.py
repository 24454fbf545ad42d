"""Packages that a job brings to hosts without rifl (docs/how-to/spark-cluster.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pyspark
import pytest

import sharedlog
from examples.flights.cluster import cluster, environment
from tests.helpers.waiting import until
from tests.spark.conftest import METHOD, SLOW_S, BankProcess
from tests.spark.connecting import Connected

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]
_ROOT = Path(__file__).parents[2]
_OURS = ("rifl", "sharedlog", "lease_server", "_rifl_ground")
_ROWS = 40
# What executors have, and then the write.
_JOB = f"""
import json, sys
from pyspark.sql import SparkSession
import rifl.spark

spark = SparkSession.builder.getOrCreate()
rifl.spark.register(spark)
found = spark.sparkContext.range(4, numSlices=4).map(lambda _: __import__("rifl").__file__)
rows = spark.range({_ROWS}, numPartitions=4).selectExpr(
    "concat('p', id) as reference", "'alice' as account", "id as cents"
)
given = dict(target=sys.argv[1], method="{METHOD}", key="reference")
rows.write.format("rifl").options(**given).mode("append").save()
open(sys.argv[2], "w").write(json.dumps(found.distinct().collect()))
"""


def _python_without_ours(directory: Path) -> Path:
    """Make a Python that has all packages but ours; return where its packages go."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    # Of what is installed there editable, it finds nothing.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    looking = [str(directory / "bin/python"), "-E", "-c", "import pyspark, rifl"]
    told = subprocess.run(looking, cwd=directory, capture_output=True, text=True, check=False)
    assert "No module named 'rifl'" in told.stderr
    return packages


def test_a_packed_environment_is_what_both_hosts_run(java: None, tmp_path: Path) -> None:
    """Executors unpack it, and the sinks' processes on the driver's host have it beside the job."""
    packages = _python_without_ours(tmp_path / "packed")
    for each in _OURS:
        shutil.copytree(_ROOT / each, packages / each, ignore=shutil.ignore_patterns("__pycache__"))
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "packed", ".")
    shutil.copytree(tmp_path / "packed", tmp_path / "environment", symlinks=True)
    (tmp_path / "job.py").write_text(_JOB)
    told, home = tmp_path / "told", Path(pyspark.__file__).parent
    settings = {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        # Workers of the cluster hand on where ours is.
        "spark.executorEnv.PYTHONPATH": str(tmp_path / "nothing"),
        # Both hosts have tasks.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SLOW_S:.0f}s",
    }
    given = [text for each in settings.items() for text in ("--conf", "=".join(each))]
    env = environment(tmp_path)
    del env["PYTHONPATH"]
    env |= {
        "PYSPARK_DRIVER_PYTHON": "packed/bin/python",
        "PYSPARK_PYTHON": "./environment/bin/python",
        "SPARK_HOME": str(home),
    }
    bank = BankProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/rifl.db")
    try:
        with cluster(tmp_path) as master, (tmp_path / "driver.log").open("wb") as out:
            process = subprocess.Popen(
                [
                    *("/bin/bash", str(home / "bin/spark-submit"), "--master", master, *given),
                    *("--archives", "packed.tar.gz#environment"),
                    *("job.py", bank.target, str(told)),
                ],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
            )
            try:
                until(lambda: process.poll() is not None, "the end of the driver", 2 * SLOW_S)
            finally:
                process.kill()
                process.wait()
        assert process.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
        assert bank.effects() == {f"p{number}": 1 for number in range(_ROWS)}
    finally:
        bank.close()
    found = json.loads(told.read_text())
    assert len(found) == 2
    for each in found:
        assert each.startswith(f"{tmp_path}/work/")
        assert "/environment/lib/" in each


def test_a_connect_client_brings_packages_for_its_batches(java: None, tmp_path: Path) -> None:
    """To a server whose hosts have all others; by its sinks, ``write``, ``call`` and source."""
    packages, ours = _python_without_ours(tmp_path / "bare"), tmp_path / "ours.zip"
    with zipfile.ZipFile(ours, "w") as archive:
        for each in _OURS:
            for file in (_ROOT / each).rglob("*"):
                if "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(_ROOT))
    server = {
        "PYSPARK_PYTHON": str(packages.parents[2] / "bin/python"),
        "PYTHONPATH": str(tmp_path / "nothing"),
    }
    connected = Connected(tmp_path, server=server, artifacts=[str(ours)])
    url, names = f"sqlite:///{tmp_path / 'log.db'}", [str(number) for number in range(5)]
    try:
        with sharedlog.create(url) as log:
            log.stream("orders", 2)
            connected.start()
            told = connected.run("batches", target=connected.bank.target, log=url, rows=5)
        assert told == {"dead": ["job-write-0"], "called": 5, "read": names}
        ways = [f"job-{way}-{name}" for way in ("batch", "write", "call") for name in names]
        ways.remove("job-write-0")
        assert connected.bank.effects() == dict.fromkeys(ways, 1)
    finally:
        connected.close()
