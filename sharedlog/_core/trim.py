"""Trimming: rows that are no longer needed are declared trimmed, then removed (DESIGN-LOG §12, L6).

From the *floor* on every commit stays whole: at or below the lowest hold, and the first row
within the retention. That counts back from now, by the trimmer's clock, or from the newest row if
that is earlier: a clock that is ahead takes nothing young, unless a writer's was ahead, too. A log
without appends keeps what it has of its last retention.

What stays begins where the oldest of those commits has something pending, or where anything is
pending now. One commit declares both, refused if a hold was made meanwhile; rows are removed
afterwards, and by the next trim if a crash or a full store came between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from sharedlog._core.calling import portable
from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.entry import read_row
from sharedlog._core.errors import CorruptLog
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.holds import HOLDS, Hold, all_holds
from sharedlog._core.spans import MARKERS, OPEN_SPANS, begin_of
from sharedlog._core.steps import Ends, Get, Lsns, Read, Remove, Rows, Rule, Scan
from sharedlog._core.times import first_above
from sharedlog._core.whole import TRIMMED, Trimmed, trimmed_of

_ROWS = 1000


class TrimOutcome(NamedTuple):
    """What a trim did.

    ``trimmed``: as declared now; ``rows``: how many it removed; ``kept_by``: what it stopped at,
    in words; ``overdue``: holds without a recent renewal, at which it stops all the same;
    ``remaining``: how many rows are declared trimmed, and still there, because the store had no
    room to remove them. The next trim removes these.
    """

    trimmed: Trimmed
    rows: int
    kept_by: str
    overdue: list[Hold]
    remaining: int = 0


class Committers:
    """Where the spans begin that markers at or above a floor committed.

    Remembers what it read: of the markers only those that have the lowest begin of all behind
    them, so that each trim reads what is new since the last one. Forgetting it costs a read.
    """

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._kept: deque[tuple[int, int]] = deque()
        self._from = 0
        self._through = 0

    def lowest(self, floor: int) -> Rule[int | None]:
        """Return where the oldest span begins that was committed from ``floor`` on."""
        if floor < self._from or floor > self._through:
            self._kept.clear()
            self._through = floor - 1
        self._from = floor
        while True:
            found: Rows = yield Read(self._through, _ROWS, MARKERS)
            for row in found.rows:
                self._add(row.lsn, [each.begins for each in read_row(row).decisions])
            self._through = found.through
            if len(found.rows) == 0:
                break
        while self._kept and self._kept[0][0] < floor:
            self._kept.popleft()
        return self._kept[0][1] if self._kept else None

    def _add(self, lsn: int, begins: list[Mapping[str, int]]) -> None:
        lowest = min((begin for each in begins for begin in each.values()), default=lsn)
        while self._kept and self._kept[-1][1] >= lowest:
            self._kept.pop()
        self._kept.append((lsn, lowest))


@portable
def trim(
    committers: Committers, now_us: int, retention_us: int, *, fence: Fence | None = None
) -> Rule[TrimOutcome]:
    """Trim what is older than the retention and below every hold; run again it goes on.

    ``now_us``: by the clock that appends are given. ``fence``: under which it is declared;
    raises ``Fenced``.
    """
    fenced = () if fence is None else (condition_of(fence),)
    while True:
        found = yield Get((TRIMMED, HOLDS))
        before = trimmed_of(found[TRIMMED])
        holds = yield from all_holds()
        overdue = [each for each in holds if each.overdue(now_us)]
        # In this order: what opens after the second begins behind the first, and so above the
        # floor; what is decided before it may be no open span, and its marker is read below.
        ends: Lsns = yield Ends()
        # What an earlier one declared, and had no time or no room to remove.
        full = yield Remove(before.removed)
        opened = yield Scan(OPEN_SPANS)
        until_us = (yield from _age_from(now_us, ends.last)) - retention_us
        floor, kept_by = yield from _floor(holds, before, ends.last, until_us)
        begin, why = yield from _begin(opened, floor, committers)
        if begin < floor:
            kept_by = f"{why} (and {kept_by} from LSN {floor} on)"
        at_us = before.at_us
        if floor > before.whole:
            at_us = yield from _row_time(floor - 1)
        after = Trimmed(floor, begin - 1, at_us)
        if after != before:
            try:
                yield Commit(
                    (Condition(TRIMMED, found[TRIMMED]), Condition(HOLDS, found[HOLDS]), *fenced),
                    (Put(TRIMMED, after.value()),),
                )
            except Refused as refused:
                if fence is not None:
                    check_fence(fence, refused.found[fence_key(fence.name)])
                continue
            full = yield Remove(after.removed)
        gone = after.removed
        if full is not None:
            now: Lsns = yield Ends()
            gone = min(gone, now.first - 1)
        # Another trimmer may have declared more meanwhile, and removed it.
        rows = max(gone - ends.first + 1, 0)
        return TrimOutcome(after, rows, kept_by, overdue, after.removed - gone)


def _age_from(now_us: int, tail: int) -> Rule[int]:
    """Return from when on ages count: no clock alone makes anything old."""
    return now_us if tail == 0 else min(now_us, (yield from _row_time(tail)))


def _floor(holds: list[Hold], before: Trimmed, tail: int, until_us: int) -> Rule[tuple[int, str]]:
    """Return from which LSN on commits stay whole, the first of an append, and for whom."""
    # The newest append stays: positions in it are known by its checksum.
    floor = min((yield from first_above(until_us, before.whole, tail)), max(tail, 1))
    kept_by = "the retention" if floor < tail else "the newest append"
    for hold in holds:
        if not hold.dropped and hold.lsn < floor:
            floor, kept_by = hold.lsn, f"the hold of {hold.name!r} on {hold.tag}"
    if floor <= tail:
        rows: Rows = yield Read(floor - 1, 1)
        if not rows.rows:
            raise CorruptLog(f"LSN {floor} is missing")
        floor -= read_row(rows.rows[0]).index
    return floor, kept_by


def _begin(opened: dict[str, bytes], floor: int, committers: Committers) -> Rule[tuple[int, str]]:
    """Return the first LSN that stays, and what it stays for where that is below the floor."""
    begin, why = floor, ""
    for key, value in opened.items():
        if begin_of(value) < begin:
            producer, _, tag = key.removeprefix(OPEN_SPANS).partition("/")
            begin, why = begin_of(value), f"what producer {producer} has pending in {tag}"
    committed = yield from committers.lowest(floor)
    if committed is not None and committed < begin:
        begin, why = committed, "a transaction that was committed later"
    return begin, why


def _row_time(lsn: int) -> Rule[int]:
    rows: Rows = yield Read(lsn - 1, 1)
    if not rows.rows:
        raise CorruptLog(f"LSN {lsn} is missing")
    return rows.rows[0].at_us
