"""A listener of streaming queries, for users to attach: metrics, and a record each micro-batch."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from _rifl_ground.log import get_logger
from _rifl_ground.seldom import SeldomLog
from rifl.spark._query_metrics import QueryMetrics
from rifl.spark._report import append_line

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = get_logger("rifl.spark")
# Lines of a report that no micro-batch has asked for yet.
_WAITING = 1000


class QueryListener(StreamingQueryListener):
    """Puts what streaming queries do into metrics, and into records like Spark's progress.

    ::

        spark.streams.addListener(QueryListener(report="report.jsonl", registry=REGISTRY))

    ``report``: the file that the sinks' option of this name gives; each line of it becomes part of
    its micro-batch's record. ``records``: a file to which a line of JSON is appended for each
    micro-batch, and each end of a run: Spark's progress, with ``calls``, the lines of the report.
    ``registry``: of Prometheus, for ``rifl_spark_query_...`` (extra ``metrics``); the label
    ``query`` is the query's name, or its id.

    Spark calls it in the process that attached it, which must see the file of the report: in Spark
    Connect the server writes that. What goes wrong is logged (``query_listener_failed``) and
    changes nothing. Raises ``ImportError`` for a registry without the extra, and ``ValueError``
    for one that has these metrics.
    """

    def __init__(
        self,
        *,
        report: str | Path | None = None,
        records: str | Path | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._report = None if report is None else _Report(Path(report))
        self._records = None if records is None else Path(records)
        self._metrics = None if registry is None else QueryMetrics(registry)
        # Callbacks may come in several threads.
        self._lock = threading.RLock()
        self._names: dict[str, str] = {}
        self._seldom = SeldomLog(_log)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Note the query's name."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Tell of a micro-batch."""
        self._guarded(lambda: self._progressed(json.loads(event.progress.json)))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Look again: what the query has not read may be more."""
        self._guarded(lambda: self._idle(str(event.id)))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Tell how a run ended."""
        self._guarded(lambda: self._ended(event))

    def _progressed(self, progress: dict[str, Any]) -> None:
        told = self._details(progress)
        query = self._name_of(progress)
        if self._metrics is not None:
            self._metrics.batch(query, progress)
            self._metrics.calls(query, told.get("calls", ()))
        self._record({**progress, **told})

    def _idle(self, query_id: str) -> None:
        """Tell of a query to which nothing comes."""

    def _ended(self, event: Any) -> None:
        query_id = str(event.id)
        query = self._names.pop(query_id, query_id)
        if self._metrics is not None:
            self._metrics.ended(query, failed=event.exception is not None)
        self._record({"id": query_id, "runId": str(event.runId), "exception": event.exception})

    def _details(self, progress: dict[str, Any]) -> dict[str, Any]:
        """Return what is told of a micro-batch beside Spark's progress."""
        if self._report is None:
            return {}
        mine = {progress["id"], progress.get("name")}
        return {"calls": self._report.lines(mine, progress["batchId"])}

    def _name_of(self, progress: dict[str, Any]) -> str:
        return progress.get("name") or str(progress["id"])

    def _record(self, told: dict[str, Any]) -> None:
        if self._records is not None:
            append_line(self._records, told)

    def _guarded(self, tell: Callable[[], None]) -> None:
        try:
            with self._lock:
                tell()
        except Exception as error:  # noqa: BLE001 - Spark would show it where it is not looked for
            self._seldom.warn("query_listener_failed", type(error).__name__, error=str(error))


class _Report:
    """What sinks append to their report from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_WAITING)

    def lines(self, queries: set[str | None], batch: int) -> list[dict[str, Any]]:
        """Return the lines of a query, through a micro-batch, that were not returned yet."""
        self._read()
        mine = [each for each in self._waiting if _is_of(each, queries, batch)]
        others = [each for each in self._waiting if not _is_of(each, queries, batch)]
        self._waiting.clear()
        self._waiting.extend(others)
        return mine

    def _read(self) -> None:
        if not self._path.exists():
            return
        if self._path.stat().st_size < self._at:
            # It was replaced.
            self._at = 0
        with self._path.open("rb") as file:
            file.seek(self._at)
            # A line that is being written is whole the next time.
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._at += len(whole) + 1
            self._waiting.extend(map(json.loads, whole.split(b"\n")))


def _is_of(line: dict[str, Any], queries: set[str | None], batch: int) -> bool:
    query = line.get("query")
    return query is not None and query in queries and line["batch"] <= batch
