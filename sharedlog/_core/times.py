"""Times: where in the log a moment is (DESIGN-LOG §18). Rows' times never fall."""

from __future__ import annotations

from sharedlog._core.errors import CorruptLog, TrimmedLog
from sharedlog._core.steps import Ends, Lsns, Read, Rows, Rule
from sharedlog._core.whole import read_trimmed


def first_after(at_us: int) -> Rule[int]:
    """Return the first LSN that was appended after a moment; tail + 1 if there is none.

    Exact, by the log's times. Raises ``TrimmedLog`` if something was that is not whole any more.
    """
    trimmed = yield from read_trimmed()
    if trimmed.whole > 1 and at_us < trimmed.at_us:
        raise TrimmedLog(
            f"what was appended after {at_us} us was trimmed in part: commits are whole from LSN "
            f"{trimmed.whole} on",
            trimmed.whole,
        )
    ends: Lsns = yield Ends()
    return (yield from first_above(at_us, trimmed.whole, ends.last))


def first_above(at_us: int, low: int, tail: int) -> Rule[int]:
    """Return the first LSN from ``low`` on whose row is later; tail + 1 if there is none."""
    high = tail + 1
    while low < high:
        middle = (low + high) // 2
        rows: Rows = yield Read(middle - 1, 1)
        if not rows.rows or rows.rows[0].lsn != middle:
            raise CorruptLog(f"LSN {middle} is missing")
        if rows.rows[0].at_us > at_us:
            high = middle
        else:
            low = middle + 1
    return low
