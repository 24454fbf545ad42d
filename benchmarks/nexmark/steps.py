"""Steps that a micro-batch takes on the log: how long each is, without Spark."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.schemas import SCHEMAS, SUBSTREAMS
from benchmarks.nexmark.streams import create_log
from sharedlog._core.query.attempt import batch_of
from sharedlog._core.query.closing import close
from sharedlog._core.query.state import Ticket, draw_plan
from sharedlog._core.streams import tag_of
from sharedlog._log.publisher import Publisher
from sharedlog._log.resending import until_answered
from sharedlog.spark._column_rows import ArrowRows
from sharedlog.spark._tasks import TaskWriter, now_us

__all__ = ["steps"]

_T = TypeVar("_T")
_STREAM, _ROWS = "bids", 400


def steps(folder: Path, count: int = 300) -> dict[str, float]:
    """Return medians in milliseconds of batches of two tasks, one after the other.

    ``append``: what a sink without the guarantee would do in place of the others.
    """
    took: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, work: Callable[[], _T]) -> _T:
        began = time.monotonic()
        done = work()
        took[name].append(1000 * (time.monotonic() - began))
        return done

    with create_log(f"sqlite:///{folder / 'steps.db'}") as log:
        place = log._place
        rows = ArrowRows(SCHEMAS[_STREAM], None)
        tags = [tag_of(_STREAM, each) for each in range(SUBSTREAMS)]
        (bids,) = Events().tables(0, _ROWS)[_STREAM].combine_chunks().to_batches()
        publisher, turns = Publisher(place), itertools.count()
        for batch in range(count):
            plan = timed("plan", lambda: until_answered(place, draw_plan))
            ticket = Ticket("steps", "query", "run", plan, batch)
            told = []
            for task in range(2):
                join = "join, first" if task == 0 else "join, second"
                writer = timed(join, partial(TaskWriter, place, ticket, _STREAM))
                messages = list(rows.messages(bids, tags, turns, now_us()))
                told.append(timed("append, granted", partial(writer.write, messages)))
            marker = partial(close, ticket, batch_of(told))
            timed("marker", partial(until_answered, place, marker))
            (message, *_) = rows.messages(bids, tags, turns, now_us())
            timed("append", partial(publisher.publish, message.message))
    return {name: statistics.median(each) for name, each in took.items()}
