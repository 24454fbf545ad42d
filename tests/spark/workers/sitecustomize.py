"""Spark's Python processes take PySpark where it is installed: its zip has no compiled modules.

Each process that Spark starts would compile PySpark anew, several for each micro-batch. It is the
same release. And a daemon loads, before it forks a process for each task or plan, what each of
these would load. This is on the path of these processes alone (``conftest.spark_environment``).
"""

import importlib
import sys

sys.path[:] = [each for each in sys.path if not each.endswith("/pyspark.zip")]

_LOADED = ("pyspark.worker", "pandas", "pyarrow", "rifl.spark._sink", "sharedlog.spark._format")
# What fails most, and is then forked anew. Of others a daemon forks few.
_FORKED = ("pyspark.worker", "pyspark.sql.worker.write_into_data_source")

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"] and sys.orig_argv[-1] in _FORKED:
    for _name in _LOADED:
        importlib.import_module(_name)
