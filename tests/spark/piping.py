"""A Declarative Pipeline whose sinks are ours, run by ``spark-pipelines`` as its users do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyspark

from tests.helpers.waiting import until
from tests.spark.conftest import SLOW_S, spark_environment

__all__ = ["Pipeline"]

_SPEC = "name: deposits\nstorage: {storage}\nlibraries:\n  - glob:\n      include: flows/**\n"


class Pipeline:
    """One in a directory: its specification, its flows (``pipeline_flows.py``), its storage."""

    def __init__(self, directory: Path, sinks: dict[str, dict[str, Any]]) -> None:
        """``sinks``: by their names, what ``pipeline_flows`` makes of each."""
        self.directory, self.sinks, self._runs = directory, sinks, 0
        self.storage = directory / "storage"
        (directory / "flows").mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("pipeline_flows.py"), directory / "flows/deposits.py")
        spec = directory / "spark-pipeline.yml"
        spec.write_text(_SPEC.format(storage=self.storage.as_uri()))

    def begin(self, *arguments: str) -> Run:
        """Start ``spark-pipelines run``."""
        self._runs += 1
        return Run(self, self.directory / f"run-{self._runs}.log", arguments)

    def run(self, *arguments: str) -> str:
        """Run it to its end, and return what it said."""
        return self.begin(*arguments).ended()


class Run:
    """A run of a pipeline: a session of processes of its own."""

    def __init__(self, pipeline: Pipeline, log: Path, arguments: tuple[str, ...]) -> None:
        home = Path(pyspark.__file__).parent
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["/bin/bash", str(home / "bin/spark-pipelines"), "run", *arguments],
                cwd=pipeline.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={
                    **os.environ,
                    **spark_environment(),
                    "SPARK_HOME": str(home),
                    "FLOWS": json.dumps(pipeline.sinks),
                },
            )

    def kill(self) -> None:
        """SIGKILL of its driver, and of all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ended(self) -> str:
        """Wait until it is over; return what it said."""
        try:
            until(lambda: self._process.poll() is not None, "the end of the run", SLOW_S)
        finally:
            if self._process.poll() is None:
                self.kill()
        return self._log.read_text()
