"""The report of a log for those who watch it: ends, what is pending, holds' lags, queries."""

from __future__ import annotations

from collections import Counter

from sharedlog._core.errors import TrimmedLog
from sharedlog._core.holds import Hold, all_holds
from sharedlog._core.observer import HoldReport, LogReport, QueryReport
from sharedlog._core.query.state import all_queries
from sharedlog._core.query.tasks import members
from sharedlog._core.spans import OPEN_SPANS, begin_of
from sharedlog._core.steps import Ends, Lsns, Read, Rows, Rule, Scan


def report(now_us: int) -> Rule[LogReport]:
    """Look at a log; costs a read for each hold that lags, and one for the oldest span."""
    # Before the tail, which may then only be higher.
    holds = yield from all_holds()
    spans = yield Scan(OPEN_SPANS)
    ends: Lsns = yield Ends()
    oldest = min((begin_of(each) for each in spans.values()), default=0)
    oldest_s = (yield from _age(oldest - 1, None, now_us)) if oldest else 0.0
    lags: list[HoldReport] = []
    for hold in holds:
        if not hold.dropped:
            lags.append((yield from _lag(hold, ends.last, now_us)))
    queries = yield from _queries()
    return LogReport(ends.last, ends.first, len(spans), oldest_s, lags, queries)


def _queries() -> Rule[list[QueryReport]]:
    found = yield from all_queries()
    pending = Counter(each.name for each in (yield from members()))
    return [
        QueryReport(
            *(each.name, each.closed, each.batches, each.all_rows, each.entries, each.undone),
            pending[each.name],
        )
        for each in found
    ]


def _lag(hold: Hold, tail: int, now_us: int) -> Rule[HoldReport]:
    through = hold.place[0]
    entries = max(0, tail - through)
    seconds = (yield from _age(through, hold.tag, now_us)) if entries else 0.0
    return HoldReport(hold.name, hold.tag, entries, seconds, hold.overdue(now_us))


def _age(after: int, tag: str | None, now_us: int) -> Rule[float]:
    """Return how long ago the first row above ``after`` was appended."""
    try:
        rows: Rows = yield Read(after, 1, tag)
    except TrimmedLog:
        # It moved, or was dropped, and trimmed meanwhile.
        return 0.0
    return max(0.0, (now_us - rows.rows[0].at_us) / 1_000_000) if rows.rows else 0.0
