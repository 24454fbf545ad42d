"""Spark's Python processes take PySpark where it is installed: its zip has no compiled modules.

Each process that Spark starts would compile PySpark anew, several for each micro-batch. It is the
same release. This is on the path of these processes alone (``conftest.spark_environment``).
"""

import sys

sys.path[:] = [each for each in sys.path if not each.endswith("/pyspark.zip")]
