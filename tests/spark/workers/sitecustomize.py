"""Spark's Python processes take PySpark where it is installed: its zip has no compiled modules.

Each process that Spark starts would compile PySpark anew, several for each micro-batch. It is the
same release. And a daemon loads, before it forks a process for each task, plan and commit, what
each of these would load. This is on the path of these processes alone
(``conftest.spark_environment``).
"""

import importlib
import sys

sys.path[:] = [each for each in sys.path if not each.endswith("/pyspark.zip")]

_LOADED = ("pyspark.worker", "pandas", "pyarrow", "rifl.spark._sink", "sharedlog.spark._format")

# The first of them looks for other people's sources alone.
_LOOKS = "pyspark.sql.worker.lookup_data_sources"

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"] and sys.orig_argv[-1] != _LOOKS:
    for _name in _LOADED:
        importlib.import_module(_name)
