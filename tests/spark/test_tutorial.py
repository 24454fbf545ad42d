"""Spark's tutorial, typed from an empty folder as it is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.typed import typed


@pytest.mark.slow
def test_a_spark_job_runs_twice(tmp_path: Path, java: None) -> None:
    """spark-job-twice.md: the job runs again, and the service is called once for each row."""
    # Few words, no user interface.
    conf = str(Path(__file__).parent / "conf")
    typed("spark-job-twice.md", tmp_path, SPARK_LOCAL_IP="127.0.0.1", SPARK_CONF_DIR=conf)
