"""The start of a query on a machine that does other things, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException

__all__ = ["run_to_its_end"]

_STARTS = 20


def run_to_its_end(start: Callable[[], Any]) -> Any:
    """Start a query, wait for its end and return it; again where its source was not there in time.

    Spark gives a Python source ten seconds to be imported, however busy the machine is. Raises
    what else ends the query.
    """
    for left in reversed(range(_STARTS)):
        query = start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            if "failed to connect back" not in str(error) or not left:
                raise
        else:
            return query
        finally:
            query.stop()
    raise AssertionError("it was never started")
