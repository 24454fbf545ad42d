"""One Spark session for the whole run, and the bank as a process."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource

import rifl.spark
import sharedlog
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.waiting import until

# What NEXMark's queries are measured beside is written with a class of PySpark 4.1, which has
# Declarative Pipelines, too.
_NEWER = ["test_nexmark.py", "test_pipelines.py"]
collect_ignore = [] if hasattr(datasource, "DataSourceStreamArrowWriter") else _NEWER

_ROOT = Path(__file__).parents[2]
# Spark takes its time on a machine that does other things too.
SLOW_S = 300.0
METHOD = "/bank.v1.Bank/Deposit"


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = "the tests of rifl.spark need Java 17 or newer, by JAVA_HOME or on PATH"
    if java is None or not Path(java).exists():
        pytest.fail(f"{wanted}; there is none (Debian and Ubuntu: apt-get install default-jre)")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < 17:
        pytest.fail(f"{wanted}; {java} says: {said.strip()}")


def spark_environment() -> dict[str, str]:
    """Return what a driver of ours needs: our Python, our modules and settings, few words."""
    here = Path(__file__).parent
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(_ROOT), str(here / "workers"))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(here / "conf"),
    }


@pytest.fixture(scope="session")
def java() -> None:
    """Make sure that Spark can start, or say plainly why not."""
    _require_java()


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session in which a task is tried four times: ``local[2]`` never retries one."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    warehouse = tmp_path_factory.mktemp("warehouse")
    running = SparkSession.getActiveSession()
    session = running or (
        SparkSession.builder.master("local[2,4]")
        .appName("rifl tests")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.local.dir", str(tmp_path_factory.mktemp("local")))
        .config("spark.executor.heartbeatInterval", "60s")
        .getOrCreate()
    )
    rifl.spark.register(session)
    yield session
    if running is None:
        session.stop()


@pytest.fixture
def restored(spark: Any) -> Iterator[Any]:
    """Return what sets a setting of Spark's until the test is over."""
    before: dict[str, str] = {}

    def put(name: str, value: Any) -> None:
        before.setdefault(name, spark.conf.get(name))
        spark.conf.set(name, str(value))

    yield put
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def small_batches(restored: Any) -> None:
    """Arrow batches of twenty rows, so that a task's rows do not come all at once."""
    restored("spark.sql.execution.arrow.maxRecordsPerBatch", 20)


class BankProcess:
    """The service as a process that can be killed and comes back on its port."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._directory = directory
        self._arguments = arguments
        self.effects_file = directory / "effects"
        self.effects_file.touch()
        self.port: int = free_port()
        self._process: Process | None = None
        self.start()

    @property
    def target(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = Process(
            "tests.spark.service",
            *("--effects", str(self.effects_file), "--port", str(self.port)),
            *self._arguments,
            log=self._directory / "bank.log",
            with_input=True,
        )
        assert self._process.line(SLOW_S) == f"listening {self.port}"

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.close()

    close = kill

    def effects(self, prefix: str = "") -> collections.Counter[str]:
        """Count the effects so far, by reference."""
        lines = self.effects_file.read_text().split("\n")
        return collections.Counter(line for line in lines if line and line.startswith(prefix))

    def until_effects(self, count: int, prefix: str = "") -> None:
        """Wait until there are as many."""
        until(
            lambda: self.effects(prefix).total() >= count,
            f"{count} effects of {prefix!r}",
            SLOW_S,
        )


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[BankProcess]:
    """A bank of ``plain`` deposits over a durable store."""
    process = BankProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/rifl.db")
    yield process
    process.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[sharedlog.Log]:
    """A log with a stream to read and one to write."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as made:
        made.stream("orders", 2)
        made.stream("paid", 3)
        yield made


@pytest.fixture
def chain(spark: Any, log: sharedlog.Log, tmp_path: Path) -> Any:
    """A chain that has not run."""
    # It imports this module.
    from tests.spark.log_chain import Chain

    return Chain(spark, log, tmp_path)
