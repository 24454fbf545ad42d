"""A listener of streaming queries that read or write a log, for users to attach."""

from __future__ import annotations

import json
from typing import Any

from rifl.spark._listening import QueryListener
from sharedlog._core.query.state import Query, all_queries
from sharedlog._core.steps import Ends, Lsns, Rule
from sharedlog._log.place import Place
from sharedlog.spark._offsets import Offset
from sharedlog.spark._opened import place_of
from sharedlog.spark._options import LogPlace, SourceError


class LogQueryListener(QueryListener):
    """Puts what streaming queries do with a log into metrics, and into records like progress.

    ::

        listener = sharedlog.spark.LogQueryListener(log_env="ORDERS_LOG", registry=REGISTRY)
        spark.streams.addListener(listener)

    ``log``, ``log_env`` or ``log_file``: the log, as the options of source and sink name it; other
    arguments are ``rifl.spark.QueryListener``'s, and so is what it does. A record also has
    ``lag``, by stream: entries after what the query has read; and ``log``: the rows of ``sharedlog
    queries`` that the query writes. Spark calls it in the process that attached it, which opens
    the log by itself.
    """

    def __init__(
        self,
        *,
        log: str | None = None,
        log_env: str | None = None,
        log_file: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        named = {"log": log, "logenv": log_env, "logfile": log_file}
        self._place = LogPlace.read({name: each for name, each in named.items() if each})
        # Through where each query has read, by its id.
        self._read: dict[str, list[Offset]] = {}

    def _details(self, progress: dict[str, Any]) -> dict[str, Any]:
        query_id, query = str(progress["id"]), self._name_of(progress)
        place = place_of(self._place.url())
        self._read[query_id] = [
            offset
            for each in progress["sources"]
            if (offset := _offset(each.get("endOffset"))) is not None
        ]
        mine = {query_id, progress.get("name")}
        found = [
            _told(each)
            for each in place.run(all_queries())
            if each.identity == query_id or each.name in mine
        ]
        if self._metrics is not None:
            for row in found:
                self._metrics.committed(query, row)
        lag = self._lag(place, query_id, query)
        return {**super()._details(progress), "lag": lag, "log": found}

    def _idle(self, query_id: str) -> None:
        if query_id in self._read:
            name = self._names.get(query_id, query_id)
            self._lag(place_of(self._place.url()), query_id, name)

    def _ended(self, event: Any) -> None:
        self._read.pop(str(event.id), None)
        super()._ended(event)

    def _lag(self, place: Place, query_id: str, query: str) -> dict[str, int]:
        """Return how many entries follow what a query has read, by stream."""
        end = place.run(_end())
        lag = {
            each.stream: max(0, end - each.lsn)
            for each in self._read[query_id]
            if each.incarnation == place.incarnation
        }
        if self._metrics is not None:
            for stream, entries in lag.items():
                self._metrics.lag(query, stream, entries)
        return lag


def _offset(said: Any) -> Offset | None:
    """Return an offset of Spark's progress; None for another source's, or none at all."""
    try:
        found = json.loads(said) if isinstance(said, str) else said
        return Offset.read(found) if isinstance(found, dict) else None
    except (ValueError, SourceError):
        return None


def _told(query: Query) -> dict[str, Any]:
    return {
        "name": query.name,
        "stream": query.stream,
        "state": query.state.value,
        "batch": query.closed,
        "rows": query.rows,
        "all_rows": query.all_rows,
        "entries": query.entries,
        "undone": query.undone,
        "lsn": query.lsn,
    }


def _end() -> Rule[int]:
    ends: Lsns = yield Ends()
    return ends.last
