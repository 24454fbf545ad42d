"""``write``: rows sent at once, and those that failed given back as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from rifl.spark._arrow import arrow_schema
from rifl.spark._dead_letters import (
    DEAD_LETTER_COLUMNS,
    dead_letter_schema,
    dead_rows,
    without_dead_letter_columns,
)
from rifl.spark._driver import WriteDriver
from rifl.spark._errors import PlanError, raise_error_of_all_rows
from rifl.spark._options import WriteOptions, case_counts
from rifl.spark._report import Counts, report, tell_aborted
from rifl.spark._tasks import named_micro_batch, this_attempt
from rifl.spark._write_plan import WritePlan

# One row of each task has what it counted; no row of the user's has.
_COUNTS = "rifl_counts"


def write(
    df: DataFrame, *, target: str, method: str, key: str | Sequence[str], **options: Any
) -> DataFrame:
    """Send the rows now, each once, and return those that failed for good.

    The frame that is returned has the rows' columns and those of dead letters
    (``rifl_session``, ``rifl_key``, ``rifl_code``, ``rifl_reason``, ``rifl_details``,
    ``rifl_outcome``, ``rifl_run``, ``rifl_at``); it is cached (``unpersist`` lets it go), and
    Spark may write it wherever it can. Where no row failed it is empty. Rows become requests,
    and keys name them, as in the sinks; ``options`` are theirs, with underscores or in
    their own spelling.

    What cannot be one row's trouble (the server is away, the session is closed) fails
    the job: written again under the same ``session``, it repeats nothing. A session with
    dead rows stays open until its retention has passed or ``rifl.spark.session`` closes
    it, because Spark may evaluate them again; a run's own without any is closed.

    Raises ``PlanError`` before a row is sent for what cannot work.
    """
    wanted = WriteOptions.of(target, method, key, options)
    if df.isStreaming:
        raise PlanError(
            'a stream is written by writeStream.format("rifl"), or this within foreachBatch'
        )
    if wanted.dead_letter or wanted.close_session:
        raise PlanError(
            "the dead rows are what write returns: no deadLetter; and it may evaluate them "
            "again: close the session by rifl.spark.session(...).close() when you have them"
        )
    whole = arrow_schema(df.schema)
    with WriteDriver(wanted.connection, wanted.timeout_s) as driver:
        exact = case_counts(df)
        plan = WritePlan.make(wanted, whole, stream=False, driver=driver, exact=exact)
        schema = _spark_schema(df.schema, plan.schema)
        counted = StructType([*schema.fields, StructField(_COUNTS, StringType())])
        sent = df.mapInArrow(_WriteTask(plan), counted).persist(StorageLevel.MEMORY_AND_DISK)
        session = plan.session or ""
        try:
            told = [
                json.loads(row[0])
                for row in sent.where(sql.col(_COUNTS).isNotNull()).select(_COUNTS).collect()
            ]
        except BaseException:
            sent.unpersist()
            tell_aborted(method, session)
            raise
        counts = Counts.total(Counts.from_json(text) for *_, text in told)
        used, batch, query, _ = told[0] if told else (session, None, None, "")
        if used != session or (wanted.session is None and not counts.dead_lettered):
            driver.close_session(session)
    report(
        counts,
        method=method,
        session=used,
        batch=batch,
        query=query,
        lines=wanted.report,
        metrics=wanted.metrics,
    )
    if counts.dead_lettered:
        dead = sent.where(sql.col(_COUNTS).isNull()).drop(_COUNTS)
        # Cached by itself, so that the caller can let it go.
        dead.persist(StorageLevel.MEMORY_AND_DISK).count()
    else:
        dead = df.sparkSession.createDataFrame([], schema)
    sent.unpersist()
    return dead


class _WriteTask:
    """What runs in a worker; pickled into the plan."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        # What explain() shows.
        self.__name__ = plan.shown("write")

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Send the rows, and give those back that failed, and what was counted."""
        plan = self._plan
        batch = named_micro_batch("each", plan.options)
        worker, client_id = plan.open_worker(batch)
        session = plan.session_of(batch)
        delivery = plan.delivery(worker, client_id)
        counts = delivery.counts
        schema = dead_letter_schema(plan.schema).append(pyarrow.field(_COUNTS, pyarrow.string()))
        for rows, ends in delivery.run(plan.read(batches), this_attempt()):
            raise_error_of_all_rows(ends)
            dead = dead_rows(rows, ends, session, plan.run)
            if dead is not None:
                counts.dead_lettered += dead.num_rows
                yield _of_schema(schema, dead.columns, dead.num_rows)
        which = (None, None) if batch is None else (batch.batch, batch.query)
        told = [session, *which, counts.to_json()]
        last = pyarrow.array([json.dumps(told)])
        yield _of_schema(schema, [*([None] * (len(schema) - 1)), last], 1)


def _of_schema(schema: pyarrow.Schema, columns: Sequence[Any], count: int) -> pyarrow.RecordBatch:
    """Return a batch of all columns; those that are not there are null."""
    given = [*columns, *([None] * (len(schema) - len(columns)))]
    arrays = [
        pyarrow.nulls(count, field.type) if column is None else column
        for column, field in zip(given, schema, strict=True)
    ]
    nullable = pyarrow.schema([field.with_nullable(True) for field in schema])
    return pyarrow.RecordBatch.from_arrays(
        [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, nullable, strict=True)
        ],
        schema=nullable,
    )


def _spark_schema(given: StructType, planned: pyarrow.Schema) -> StructType:
    rows = [
        StructField(name, given[name].dataType)
        for name in without_dead_letter_columns(planned.names)
    ]
    return StructType(
        [
            *rows,
            *(StructField(each.name, from_arrow_type(each.type)) for each in DEAD_LETTER_COLUMNS),
        ]
    )
