"""The size of the next batched call, and when it may be sent. Pure: it is told the time."""

from __future__ import annotations

from collections.abc import Sequence

_FIRST_ROWS = 32
_GROWTH = 2
# A call that timed out is sent again in so many parts.
_PARTS = 16


class Pace:
    """Grows and shrinks batched calls towards a time that one should take.

    It begins small and grows while calls take less than half of ``target_s``; one that
    takes more than twice of it, or times out, makes the next ones smaller. Never above
    ``max_rows``. ``rows_per_s`` bounds what is sent (None: no bound).

    ``hopeless`` when a row alone timed out and none was answered since: then smaller
    calls would fare no better.
    """

    def __init__(self, max_rows: int, target_s: float, rows_per_s: float | None = None) -> None:
        if rows_per_s is not None:
            # A second's worth at once, no more.
            max_rows = max(1, min(max_rows, int(rows_per_s)))
        self._max_rows = max_rows
        self._target_s = target_s
        self._rows_per_s = rows_per_s
        self._next_at = 0.0
        self.rows = min(max_rows, _FIRST_ROWS)
        self.hopeless = False

    def answered(self, rows: int, seconds: float) -> None:
        """Take that a call of so many rows took so long."""
        self.hopeless = False
        if seconds > 2 * self._target_s:
            self.rows = max(1, min(self.rows, int(rows * self._target_s / seconds)))
        elif seconds < self._target_s / 2 and rows >= self.rows:
            self.rows = min(self._max_rows, self.rows * _GROWTH)

    def timed_out(self, rows: int) -> int | None:
        """Take that a call timed out; how many rows a part of it carries, None for no part."""
        if rows == 1:
            self.hopeless = True
        if self.hopeless:
            return None
        part = max(1, rows // _PARTS)
        self.rows = min(self.rows, part)
        return part

    def pause_s(self, rows: int, now: float) -> float:
        """Return how long to wait before so many rows are sent, and note that they are."""
        if self._rows_per_s is None:
            return 0.0
        at = max(now, self._next_at)
        self._next_at = at + rows / self._rows_per_s
        return at - now


def portion_end(sizes: Sequence[int], start: int, max_rows: int, max_bytes: int) -> int:
    """Return where a stretch of rows within both bounds ends; one row larger goes alone."""
    held = sizes[start]
    end = start + 1
    while end < len(sizes) and end - start < max_rows and held + sizes[end] <= max_bytes:
        held += sizes[end]
        end += 1
    return end
