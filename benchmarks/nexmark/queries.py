"""NEXMark's queries as Spark has them: stages, each from streams to a stream, in append mode.

Each stage is a function of frames, and knows nothing of where they come from. What Impeller does in
stages connected by streams is here stages connected by streams, too: Q4 and Q6 share the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

__all__ = ["STAGES", "Setting", "Stage", "stages_of"]


@dataclass(frozen=True)
class Setting:
    """What queries depend on, beside their rows.

    ``longest``: how long an auction is open at most, ``late``: how much later than another an event
    may come, ``later``: the same of what another stage gives; ``window``, ``slide``: of time, ten
    seconds and two in what is asked; each as Spark says intervals.
    """

    longest: str
    late: str = "1 second"
    later: str = "0 seconds"
    window: str = "10 seconds"
    slide: str = "2 seconds"


Frames = dict[str, DataFrame]


@dataclass(frozen=True)
class Stage:
    """One query of a chain: by the name of the stream it writes, from those it reads."""

    name: str
    reads: tuple[str, ...]
    query: Callable[[Frames, Setting], DataFrame]


def _q1(streams: Frames, _: Setting) -> DataFrame:
    return streams["bids"].selectExpr(
        "auction", "bidder", "price * 908 div 1000 price", "extra", "date_time"
    )


def _q2(streams: Frames, _: Setting) -> DataFrame:
    return streams["bids"].where("auction % 123 = 0").select("auction", "price", "date_time")


def _q3(streams: Frames, _: Setting) -> DataFrame:
    people = streams["persons"].where("state in ('OR', 'ID', 'CA')").alias("p")
    sold = streams["auctions"].where("category = 10").alias("a")
    return people.join(sold, f.expr("p.id = a.seller")).selectExpr(
        "p.name",
        "p.city",
        "p.state",
        "a.id auction",
        "greatest(p.date_time, a.date_time) date_time",
    )


def _sold(streams: Frames, setting: Setting) -> DataFrame:
    # An auction is on time until it expires: bids come in order, and tell the time.
    sold = streams["auctions"].withWatermark("expires", setting.late)
    sold = sold.selectExpr("id", "category", "seller", "date_time begins", "expires").alias("a")
    bids = streams["bids"].select("auction", "price", "date_time")
    bids = bids.withWatermark("date_time", setting.late).alias("b")
    # The last condition follows from the others: by it Spark knows which bids are over.
    within = f"""
        a.id = b.auction AND b.date_time >= a.begins AND b.date_time <= a.expires
        AND b.date_time >= a.expires - INTERVAL {setting.longest}
    """
    joined = sold.join(bids, f.expr(within))
    grouped = joined.groupBy("a.id", "a.category", "a.seller", "a.expires")
    found = grouped.agg(f.max("b.price").alias("price"))
    return found.selectExpr("id auction", "category", "seller", "price", "expires")


def _q4(streams: Frames, setting: Setting) -> DataFrame:
    timed = streams["sold"].withWatermark("expires", setting.later)
    grouped = timed.groupBy(f.window("expires", setting.window), "category")
    found = grouped.agg(f.sum("price").alias("total"), f.count("*").alias("number"))
    return found.selectExpr("category", "total div number price", "number", "window.end date_time")


def _counts(streams: Frames, setting: Setting) -> DataFrame:
    bids = streams["bids"].select("auction", "date_time").withWatermark("date_time", setting.late)
    window = f.window("date_time", setting.window, setting.slide)
    found = bids.groupBy(window, "auction").agg(f.count("*").alias("number"))
    return found.selectExpr("auction", "number", "window.end till")


def _q5(streams: Frames, setting: Setting) -> DataFrame:
    timed = streams["counts"].withWatermark("till", setting.later)
    # All that have as many bids as the hottest one.
    found = timed.groupBy("till").agg(
        f.max("number").alias("number"),
        f.collect_list(f.struct("number", "auction")).alias("counted"),
    )
    hot = found.selectExpr("number", "till", "explode(counted) each").where("each.number = number")
    return hot.selectExpr("each.auction", "number", "till date_time")


_LAST = 10


def _averages(
    key: tuple[Any, ...], frames: Iterator[pandas.DataFrame], state: Any
) -> Iterator[pandas.DataFrame]:
    """Give the average of a seller's last sales for each that is closed by the watermark.

    The state, in JSON: what was sold and is not closed, and the last prices that were.
    """
    waiting, last = json.loads(state.get[0]) if state.exists else ([], [])
    for frame in frames:
        waiting += frame[["closes", "auction", "price"]].to_numpy().tolist()
    waiting.sort()
    watermark_us = state.getCurrentWatermarkMs() * 1000
    rows = []
    while waiting and waiting[0][0] <= watermark_us:
        closes, auction, price = waiting.pop(0)
        last = [*last, price][-_LAST:]
        rows.append((key[0], auction, sum(last) // len(last), closes))
    state.update((json.dumps((waiting, last)),))
    if waiting:
        # Behind the watermark, by whole milliseconds.
        state.setTimeoutTimestamp(max(-(-waiting[0][0] // 1000), watermark_us // 1000 + 1))
    yield pandas.DataFrame(rows, columns=["seller", "auction", "price", "closes"])


def _q6(streams: Frames, setting: Setting) -> DataFrame:
    timed = streams["sold"].withWatermark("expires", setting.later)
    timed = timed.selectExpr("seller", "auction", "price", "unix_micros(expires) closes", "expires")
    averages = timed.groupBy("seller").applyInPandasWithState(
        _averages,
        "seller bigint, auction bigint, price bigint, closes bigint",
        "kept string",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )
    return averages.selectExpr("seller", "auction", "price", "timestamp_micros(closes) date_time")


def _highest(streams: Frames, setting: Setting) -> DataFrame:
    bids = streams["bids"].select("price", "date_time").withWatermark("date_time", setting.late)
    found = bids.groupBy(f.window("date_time", setting.window)).agg(f.max("price").alias("price"))
    return found.selectExpr("price", "window.end till")


def _q7(streams: Frames, setting: Setting) -> DataFrame:
    highest = streams["highest"].withWatermark("till", setting.later).alias("h")
    bids = streams["bids"].select("auction", "bidder", "price", "date_time", "extra")
    bids = bids.withWatermark("date_time", setting.late).alias("b")
    within = f"""
        h.price = b.price AND b.date_time < h.till
        AND b.date_time >= h.till - INTERVAL {setting.window}
    """
    joined = highest.join(bids, f.expr(within))
    return joined.selectExpr(
        *("b.auction", "b.bidder", "b.price", "b.date_time bid_time", "b.extra"),
        "h.till date_time",
    )


def _q8(streams: Frames, setting: Setting) -> DataFrame:
    # Which window, as a number: a window's own column is an event time, too, of which Spark takes
    # one a stream.
    within = f.unix_micros(f.window("date_time", setting.window).start).alias("within")
    people = streams["persons"].select("id", "name", "date_time")
    people = people.withWatermark("date_time", setting.late).select("*", within).alias("p")
    sold = streams["auctions"].selectExpr("id", "seller", "date_time")
    sold = sold.withWatermark("date_time", setting.late).select("*", within).alias("a")
    # The last condition follows from the windows: by it Spark knows what is over.
    together = f"""
        p.id = a.seller AND p.within = a.within
        AND a.date_time > p.date_time - INTERVAL {setting.window}
        AND a.date_time < p.date_time + INTERVAL {setting.window}
    """
    joined = people.join(sold, f.expr(together))
    return joined.selectExpr(
        "p.id", "p.name", "a.id auction", "greatest(p.date_time, a.date_time) date_time"
    )


STAGES = (
    Stage("q1", ("bids",), _q1),
    Stage("q2", ("bids",), _q2),
    Stage("q3", ("persons", "auctions"), _q3),
    Stage("sold", ("auctions", "bids"), _sold),
    Stage("q4", ("sold",), _q4),
    Stage("counts", ("bids",), _counts),
    Stage("q5", ("counts",), _q5),
    Stage("q6", ("sold",), _q6),
    Stage("highest", ("bids",), _highest),
    Stage("q7", ("highest", "bids"), _q7),
    Stage("q8", ("persons", "auctions"), _q8),
)


def stages_of(queries: tuple[str, ...]) -> tuple[Stage, ...]:
    """Return the stages that these queries are made of, each behind those it reads."""
    wanted = set(queries)
    for stage in reversed(STAGES):
        if stage.name in wanted:
            wanted.update(stage.reads)
    return tuple(stage for stage in STAGES if stage.name in wanted)
