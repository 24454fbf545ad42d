"""The start of a query on a machine that does other things, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamReader

__all__ = ["LIMITED", "run_on_what_is_there", "run_to_its_end"]

# Before PySpark 4.2 nobody tells a source how much a micro-batch may have.
LIMITED = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
_STARTS = 20


def run_on_what_is_there(start: Callable[[], Any], checkpoint: Path) -> Any:
    """Run a query with ``availableNow`` until it has all there is; return it, which is over.

    Before PySpark 4.2 that is one micro-batch: the one that a run before has planned, if that
    did not finish it.
    """
    planned = [_newest(checkpoint / each) for each in ("offsets", "commits")]
    query = run_to_its_end(start)
    if not LIMITED and planned[0] > planned[1]:
        query = run_to_its_end(start)
    return query


def _newest(directory: Path) -> int:
    return max((int(each.name) for each in directory.glob("[0-9]*")), default=-1)


def run_to_its_end(start: Callable[[], Any]) -> Any:
    """Start a query, wait for its end and return it; again where its source was not there in time.

    Spark gives a Python source ten seconds to be imported, however busy the machine is, and a
    function of Connect's at its start. Raises what else ends the query.
    """
    for left in reversed(range(_STARTS)):
        query = None
        try:
            query = start()
            query.awaitTermination()
        except PySparkException as error:
            if "failed to connect back" not in str(error) or not left:
                raise
        else:
            return query
        finally:
            if query is not None:
                query.stop()
    raise AssertionError("it was never started")
