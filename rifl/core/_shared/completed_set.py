"""The set of completed seqs: what both sides mean by *acknowledged* (RIFL §3.3).

Everything below ``first_incomplete`` is in it. Above, seqs close by are bits of
a ``BitVecQueue``, and those far away are ranges. So a stuck call with a million calls
after it, or a jump to a distant seq, costs no memory in proportion to the distance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from rifl.core._shared.bit_vec_queue import BitVecQueue

_NEAR = 4096


class CompletedSet:
    """Completed seqs, with the first incomplete one always known.

    Invariants, kept by every method:

    1. ``first_incomplete`` is the smallest seq not in the set; it only grows.
    2. The bit at offset i of ``_near`` stands for ``first_incomplete + i``; the
       queue holds at most ``_NEAR`` bits and bits it does not hold are 0.
    3. ``_far`` holds disjoint, maximal, sorted ranges, all at least ``_NEAR``
       beyond ``first_incomplete``.
    4. ``scattered`` tells whether any seq above ``first_incomplete`` is in the set.

    ``max_ranges`` bounds the far ranges: an addition that would make one more
    is ignored. So nothing may be forgotten for an addition before it is found in
    the set.
    Not thread-safe.
    """

    __slots__ = (
        "_far_ends",
        "_far_starts",
        "_max_ranges",
        "_near",
        "first_incomplete",
        "scattered",
    )

    def __init__(self, first_incomplete: int = 1, *, max_ranges: int = 4096) -> None:
        self.first_incomplete = first_incomplete
        self._near = BitVecQueue()
        self.scattered = False
        self._far_starts: list[int] = []
        self._far_ends: list[int] = []
        self._max_ranges = max_ranges

    def __contains__(self, seq: int) -> bool:
        offset = seq - self.first_incomplete
        if offset < 0:
            return True
        if offset < _NEAR:
            return offset < len(self._near) and self._near[offset]
        at = bisect_right(self._far_starts, seq) - 1
        return at >= 0 and seq <= self._far_ends[at]

    def add(self, first: int, last: int | None = None) -> None:
        """Add the seqs from ``first`` to ``last``, both included."""
        if last is None:
            last = first
        base = self.first_incomplete
        if first == base and last == base and not self.scattered:
            # Calls that complete in order, the common case.
            self.first_incomplete = base + 1
            return
        first = max(first, base)
        if last < first:
            return
        horizon = base + _NEAR
        if last >= horizon:
            self._add_far(max(first, horizon), last)
        if first < horizon:
            self._add_near(first - base, min(last, horizon - 1) - base + 1)
            self._settle()
        self.scattered = bool(self._near) or bool(self._far_starts)

    def advance_to(self, first_incomplete: int) -> None:
        """Add everything below ``first_incomplete``; never goes back."""
        dropped = first_incomplete - self.first_incomplete
        if dropped <= 0:
            return
        self.first_incomplete = first_incomplete
        if not self.scattered:
            return
        if dropped < len(self._near):
            self._near.drop(dropped)
        else:
            self._near.clear()
        self._settle()
        self.scattered = bool(self._near) or bool(self._far_starts)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges above ``first_incomplete``: maximal, sorted, inclusive."""
        base, near = self.first_incomplete, self._near
        found: list[tuple[int, int]] = []
        start = near.find(True) if near else -1
        while start >= 0:
            stop = near.find(False, start)
            if stop < 0:
                stop = len(near)
            found.append((base + start, base + stop - 1))
            start = near.find(True, stop) if stop < len(near) else -1
        for first, last in zip(self._far_starts, self._far_ends, strict=True):
            if found and found[-1][1] + 1 == first:
                first = found.pop()[0]
            found.append((first, last))
        return found

    def _add_near(self, start: int, stop: int) -> None:
        if stop > len(self._near):
            self._near.extend(stop - len(self._near))
        self._near.set_range(start, stop)

    def _add_far(self, first: int, last: int) -> None:
        starts, ends = self._far_starts, self._far_ends
        # Every range that overlaps or touches [first, last] melts into it.
        low = bisect_left(ends, first - 1)
        high = bisect_right(starts, last + 1)
        if low < high:
            first = min(first, starts[low])
            last = max(last, ends[high - 1])
        elif len(starts) >= self._max_ranges:
            return
        starts[low:high] = [first]
        ends[low:high] = [last]

    def _settle(self) -> None:
        """Restore the invariants after bits were set or dropped at the front."""
        while True:
            self._pull_in()
            if not self._near or not self._near[0]:
                return
            leading = self._near.find(False)
            if leading < 0:
                leading = len(self._near)
            self.first_incomplete += leading
            self._near.drop(leading)

    def _pull_in(self) -> None:
        """Turn the parts of far ranges that came within reach into bits."""
        starts, ends = self._far_starts, self._far_ends
        while starts and starts[0] < self.first_incomplete + _NEAR:
            base, last = self.first_incomplete, ends[0]
            horizon = base + _NEAR
            if starts[0] <= base <= last:
                # All of it lies below the next first incomplete: no bits to make.
                self.first_incomplete = last + 1
                self._near.drop(min(len(self._near), last + 1 - base))
            elif last >= base:
                self._add_near(starts[0] - base, min(last, horizon - 1) - base + 1)
                if last >= horizon:
                    starts[0] = horizon
                    return
            del starts[0], ends[0]
