"""Spark's tutorial, typed from an empty folder as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pages import ROOT
from tests.helpers.typed import typed
from tests.spark.conftest import spark_environment


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_spark_job_runs_twice(tmp_path: Path, java: None, zipped: bool) -> None:
    """spark-job-twice.md: the job runs again, and the service is called once for each row.

    ``zipped``: each process compiles PySpark from its zip, as where nothing is set.
    """
    settings = spark_environment()
    if zipped:
        settings["PYTHONPATH"] = str(ROOT)
    typed("spark-job-twice.md", tmp_path, **settings)
