"""The columns of a stream, as a program declares them that writes it first, without Spark."""

from __future__ import annotations

import pyarrow

from sharedlog._core.catalog import find_stream
from sharedlog._core.stream_schema import declare_schema
from sharedlog._engines.elsewhere import refuse_served
from sharedlog._log.log import Log
from sharedlog.spark._column_rows import ArrowRows
from sharedlog.spark._columns import arrow_schema_of, differ


def declare_columns(log: Log, stream: str, schema: pyarrow.Schema) -> pyarrow.Schema:
    """Declare the columns; the work of ``sharedlog.spark.declare_columns``."""
    refuse_served(log._place.engine)
    log._run(find_stream(stream))
    plain = ArrowRows(schema, None).schema
    log._run(declare_schema(stream, arrow_schema_of(plain), differ))
    return plain
