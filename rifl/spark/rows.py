"""Spark's schemas and rows as Arrow's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rifl.spark.errors import PlanError

__all__ = ["arrow_schema", "record_batches"]

_ROWS = 1000


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """Return the Arrow types that Spark sends for a schema; raises ``PlanError``."""
    try:
        made: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
    except (PySparkException, TypeError, ValueError) as error:
        raise PlanError(f"a column has a type that cannot be sent: {error}") from error
    return made


def record_batches(rows: Iterable[Any], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Gather rows that come one by one (PySpark 4.0's streaming writer)."""
    plain = iter(rows)
    while taken := list(itertools.islice(plain, _ROWS)):
        yield pyarrow.RecordBatch.from_pylist(
            [row.asDict(recursive=True) for row in taken], schema=schema
        )
