"""``call``: a service's replies as a column, the same ones however often Spark evaluates it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from rifl.spark._arrow import arrow_schema
from rifl.spark._dead_letters import without_dead_letter_columns
from rifl.spark._delivery import Delivered
from rifl.spark._driver import WriteDriver
from rifl.spark._errors import PlanError, RowError
from rifl.spark._options import WriteOptions, case_counts, column_of
from rifl.spark._replies import ReplyPlan
from rifl.spark._session_names import call_session
from rifl.spark._tasks import named_micro_batch, this_attempt
from rifl.spark._write_plan import WritePlan

_ERROR = pyarrow.struct(
    [(name, pyarrow.string()) for name in ("code", "reason", "details", "outcome")]
)


def call(
    df: DataFrame,
    *,
    target: str,
    method: str,
    key: str | Sequence[str],
    reply: str = "reply",
    request: str | Sequence[str] | None = None,
    errors: str | None = None,
    **options: Any,
) -> DataFrame:
    """Return the frame with the service's reply to each row in the column ``reply``.

    Rows become requests as in the sinks, of the columns in ``request`` (None: all but
    key columns without a field). Each key is called once, and every evaluation of the
    plan, task retries and speculation included, gets the first answer: for a
    batch frame within one session, fresh for each use of ``call`` unless
    ``session`` names one; in a stream within the query and micro-batch, under the
    ``name`` that tells it from the query's other calls and writes. In a stream one of
    the two is required: two calls of one method must not be taken for one. Within
    ``foreachBatch`` give it ``batch_id``, too: Spark Connect tells tasks of no query.
    Sessions stay open until their retention has passed or ``rifl.spark.session`` closes
    them, since Spark may evaluate the frame again at any time.

    A row that fails for good fails the task; with ``errors``, the name of another
    column, it has a struct there instead (``code``, ``reason``, ``details``,
    ``outcome``) and a null reply. What a reply says that Spark has no room for (an
    instant past 9999, a number of too many digits) is null, and told there as BAD_REPLY.
    Further ``options`` are the sinks', with
    underscores or in their own spelling. Checked at once, on the driver, which asks
    the server: raises ``PlanError``.
    """
    wanted = WriteOptions.of(target, method, key, options)
    request = [request] if isinstance(request, str) else request
    if wanted.dead_letter or wanted.report or wanted.metrics or wanted.close_session:
        raise PlanError("deadLetter, report, metrics and closeSession belong to the sinks")
    taken = [name for name in (reply, errors) if name in df.columns]
    if taken or reply == errors:
        raise PlanError(f"the column {(taken or [reply])[0]!r} is there already")
    whole, exact = arrow_schema(df.schema), case_counts(df)
    wanted = wanted.fitted(whole.names, exact=exact)
    if not exact and request is not None:
        request = [column_of(name, whole.names) for name in request]
    given = request or without_dead_letter_columns(whole.names)
    names = list(dict.fromkeys([*given, *(name for name in wanted.key if name != "*")]))
    unknown = [name for name in names if name not in whole.names]
    if unknown:
        raise PlanError(f"{unknown[0]!r} is not a column; there are: {', '.join(whole.names)}")
    sent = pyarrow.schema([whole.field(name) for name in names])
    stream = df.isStreaming
    if stream and wanted.name is None and wanted.session is None:
        raise PlanError(
            'a call in a stream has a name, such as name="risk": by it, the query and the '
            "micro-batch its keys are told from those of the query's other calls"
        )
    if stream and wanted.batch_id is not None:
        raise PlanError("batchId is for calls within foreachBatch: a stream tells its micro-batch")
    name = None if stream else wanted.session or call_session()
    with WriteDriver(wanted.connection, wanted.timeout_s) as driver:
        plan = WritePlan.make(wanted, sent, stream=stream, session=name, driver=driver, exact=exact)
    replies = ReplyPlan(plan.shape.response_class())
    added = [(reply, replies.type)] + ([(errors, _ERROR)] if errors else [])
    schema = StructType(
        [*df.schema.fields]
        + [StructField(name, from_arrow_type(kind), True) for name, kind in added]
    )
    task = _CallTask(plan, names, added)
    return df.mapInArrow(task, schema)


class _CallTask:
    """What runs in a worker; pickled into the plan."""

    def __init__(
        self,
        plan: WritePlan,
        names: Sequence[str],
        added: Sequence[tuple[str, Any]],
    ) -> None:
        self._plan = plan
        # What explain() shows.
        self.__name__ = plan.shown("call")
        self._names = list(names)
        self._added = list(added)

    def __call__(self, batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Call for each row, and give the rows back in order."""
        plan = self._plan
        worker, client_id = plan.open_worker(named_micro_batch("call", plan.options))
        read = ReplyPlan(plan.shape.response_class())
        delivery = plan.delivery(worker, client_id, replies=True)
        kept: list[Any] = []
        columns = (
            pyarrow.RecordBatch.from_arrays(
                [batch.column(name) for name in self._names], names=self._names
            )
            for batch in _kept(batches, kept)
        )
        for rows, ends in delivery.run(columns, this_attempt()):
            yield self._answered(_taken(kept, rows.num_rows), ends, read)

    def _answered(self, rows: Any, ends: Sequence[Delivered], read: ReplyPlan) -> Any:
        if len(self._added) == 1:
            for end in ends:
                if isinstance(end, RowError):
                    raise end
        replies = [(None, "") if isinstance(end, RowError) else read.read(end) for end in ends]
        columns = [pyarrow.array([value for value, _ in replies], self._added[0][1])]
        if len(self._added) == 2:
            told = [_told(end, why) for end, (_, why) in zip(ends, replies, strict=True)]
            columns.append(pyarrow.array(told, _ERROR))
        names = [*rows.schema.names, *(name for name, _ in self._added)]
        return pyarrow.RecordBatch.from_arrays([*rows.columns, *columns], names=names)


def _kept(batches: Iterable[pyarrow.RecordBatch], kept: list[Any]) -> Iterator[pyarrow.RecordBatch]:
    for batch in batches:
        kept.append(batch)
        yield batch


def _taken(kept: list[Any], rows: int) -> Any:
    """Take the next rows of the batches that were read: answers come in their order."""
    while kept[0].num_rows == 0:
        kept.pop(0)
    first = kept[0]
    if first.num_rows == rows:
        return kept.pop(0)
    kept[0] = first.slice(rows)
    return first.slice(0, rows)


def _told(end: Delivered, unreadable: str) -> Any:
    if not isinstance(end, RowError):
        if not unreadable:
            return None
        return {
            "code": "OK",
            "reason": "BAD_REPLY",
            "details": unreadable,
            "outcome": "executed",
        }
    return {
        "code": getattr(end, "code", "INVALID_ARGUMENT"),
        "reason": end.reason,
        "details": end.text,
        "outcome": getattr(end, "outcome", "not-executed"),
    }
