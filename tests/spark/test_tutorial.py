"""Spark's tutorial, typed from an empty folder as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.pages import ROOT
from tests.helpers.typed import typed
from tests.spark.conftest import spark_environment


@pytest.mark.slow
def test_a_spark_job_runs_twice(tmp_path: Path, java: None) -> None:
    """spark-job-twice.md: the job runs again, and the service is called once for each row."""
    # Python's processes as a reader has them: with PySpark from its zip.
    typed("spark-job-twice.md", tmp_path, **{**spark_environment(), "PYTHONPATH": str(ROOT)})
