"""The leader's rules: places in the log, what may answer first, what is appended when.

CURP §3.2.3 and DESIGN §7, invariants 1, 3, 7, 9 and 11.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from _rifl_ground.numbers import check_counts
from curp.log._values import EngineLimits
from rifl.core._shared.invariant import invariant


class UnsyncedOperations:
    """Tells whether an operation commutes with all that are not in the log.

    Operations are noted by their LSN, in order, and dropped in order. Not
    thread-safe. A step costs time in proportion to the operation's keys.
    """

    def __init__(self) -> None:
        # The newest operation with each key.
        self._newest: dict[int, int] = {}
        self._newest_of_all = 0
        # The newest that conflicts with everything.
        self._newest_keyless = 0
        self._synced = 0

    def conflict(self, keys: frozenset[int]) -> int:
        """Return the LSN of the newest unsynced operation in conflict, 0 if there is none."""
        newest = self._newest_keyless
        if not keys:
            newest = max(newest, self._newest_of_all)
        else:
            for key in keys:
                lsn = self._newest.get(key, 0)
                if lsn > newest:
                    newest = lsn
        return newest if newest > self._synced else 0

    def note(self, lsn: int, keys: frozenset[int]) -> None:
        """Take an operation that got its place in the log, and is not in it yet."""
        self._newest_of_all = lsn
        if not keys:
            self._newest_keyless = lsn
        for key in keys:
            self._newest[key] = lsn

    def synced(self, lsn: int, keys: frozenset[int]) -> None:
        """Drop an operation that is in the log, like all before it."""
        self._synced = max(self._synced, lsn)
        for key in keys:
            if self._newest.get(key) == lsn:
                del self._newest[key]


class Speed(enum.Enum):
    """Whether an operation's answer leaves before its entry is in the log, or why not."""

    FAST = "fast"
    # Invariant 1: the header has no configuration number, or another one.
    NO_NUMBER = "no-number"
    # No other process holds the request: there are no witnesses.
    NO_WITNESS = "no-witness"
    # Invariant 3.
    CONFLICT = "conflict"
    # Its client found other conflict keys than the leader, and recorded it under those.
    OTHER_KEYS = "other-keys"
    UNREGISTERED = "unregistered"
    NONDETERMINISTIC = "nondeterministic"
    FULL = "full"
    # Invariant 11: the witness list is being changed, or leadership handed over.
    CHANGING = "changing"


class SpeedWish(NamedTuple):
    """What decides whether an operation may be answered first.

    ``configuration``: the number in its header, 0 for none. ``registered``: its
    client's registration is in the log, and its identity is one that a later leader
    will not take for an older call's. ``deterministic``: in state, request and stamp.
    ``covered``: what witnesses hold it under keeps out whatever conflicts with it.
    """

    configuration: int
    registered: bool
    deterministic: bool = True
    covered: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderBounds:
    """When entries are appended, and how many may wait for it.

    A batch is appended when ``batch_entries`` wait, when the oldest waited for
    ``batch_delay_s`` seconds, or when a caller waits for one of them. Beyond
    ``max_unsynced`` entries nothing is answered first, so that callers wait.
    ``batch_bytes`` and ``append_entries`` bound one append, which holds at least one entry.
    """

    batch_entries: int = 64
    batch_bytes: int = 4 << 20
    batch_delay_s: float = 0.02
    max_unsynced: int = 1024
    append_entries: int = 1024

    def __post_init__(self) -> None:
        check_counts(self, 1, "batch_entries", "batch_bytes", "max_unsynced", "append_entries")
        if self.batch_delay_s < 0:
            raise ValueError("batch_delay_s must not be negative")

    def within(self, limits: EngineLimits) -> LeaderBounds:
        """Return these bounds, no append being larger than what the engine takes."""
        return replace(
            self,
            batch_bytes=min(self.batch_bytes, limits.append_bytes),
            append_entries=min(self.append_entries, limits.entries),
        )


class PlacedInLog(NamedTuple):
    """Something that has its place in the log: ``what`` is the shell's own."""

    lsn: int
    keys: frozenset[int] | None
    what: Any
    size: int
    at: float


class EntryBatch(NamedTuple):
    """What is appended next, in one step, behind ``expected_tail``."""

    expected_tail: int
    placed: tuple[PlacedInLog, ...]


class Leader:
    """One leadership under one configuration number after the other.

    Invariants:

    1. An LSN is given to one entry, in the order of ``place``; entries are appended
       in that order, one batch at a time.
    2. (Invariant 3 of DESIGN §7) ``place`` says FAST only for an operation that
       commutes with every one before it that is not in the log, whose client is
       registered there and whose method is deterministic, while the bound has room; and
       that witnesses hold, if at all, under keys that cover the leader's own.
    3. (Invariants 1 and 11) And only while the number in its header is the current
       one, that has witnesses, and no change of it is in progress.

    Not thread-safe. No clock: ``now`` is seconds of the caller's. After ``LeadershipOver``
    or a tail that is not where it should be there is nothing to be done with it but
    to throw it away (invariant 4).
    """

    def __init__(
        self,
        configuration: int,
        tail: int,
        *,
        witnessed: bool,
        bounds: LeaderBounds | None = None,
    ) -> None:
        """``tail``: the log's last LSN. ``witnessed``: the configuration has witnesses."""
        self._bounds = bounds or LeaderBounds()
        self.configuration = configuration
        self.witnessed = witnessed
        # The last LSN in the log, and the last one given.
        self.synced = tail
        self.placed = tail
        self._queue: deque[PlacedInLog] = deque()
        self._unsynced = UnsyncedOperations()
        self._demanded = 0
        self._appending: EntryBatch | None = None
        self._changing = False

    @property
    def unsynced(self) -> int:
        """How many entries have a place, and are not in the log."""
        return self.placed - self.synced

    def place(
        self, what: Any, size: int, now: float, keys: frozenset[int], wish: SpeedWish
    ) -> tuple[int, Speed]:
        """Give an operation that was executed its place; and whether it may answer first.

        Judged here, at its place, and nowhere else: what conflicts with it and was
        placed before is looked at, what comes after will look at it.
        """
        speed = self._speed(keys, wish)
        lsn = self._enqueue(what, size, now, keys)
        self._unsynced.note(lsn, keys)
        return lsn, speed

    def place_event(self, what: Any, size: int, now: float) -> int:
        """Give an entry its place that is no operation: registrations, leases."""
        return self._enqueue(what, size, now, None)

    def conflict(self, keys: frozenset[int]) -> int:
        """Return what a read has to wait for (invariant 10): an LSN, 0 for nothing."""
        return self._unsynced.conflict(keys)

    def demand(self, lsn: int) -> bool:
        """Have entries up to ``lsn`` appended now; False if they are in the log."""
        if lsn <= self.synced:
            return False
        invariant(lsn <= self.placed, f"LSN {lsn} was not given yet")
        if lsn > self._demanded:
            self._demanded = lsn
        return True

    def due_in(self, now: float) -> float | None:
        """Return in how many seconds to take a batch, None if no entry waits."""
        if self._appending is not None or not self._queue:
            return None
        if self._demanded > self.synced or len(self._queue) >= self._bounds.batch_entries:
            return 0.0
        return max(0.0, self._queue[0].at + self._bounds.batch_delay_s - now)

    def take(self) -> EntryBatch:
        """Begin to append: everything that waits, up to the bounds of one append."""
        invariant(self._appending is None, "two appends at once")
        invariant(bool(self._queue), "nothing to append")
        taken: list[PlacedInLog] = []
        size = 0
        for placed in self._queue:
            size += placed.size
            if taken and (
                size > self._bounds.batch_bytes or len(taken) >= self._bounds.append_entries
            ):
                break
            taken.append(placed)
        self._appending = EntryBatch(self.synced, tuple(taken))
        return self._appending

    def appended(self, tail: int) -> EntryBatch:
        """Handle that the batch is in the log, whose tail is now ``tail``; return the batch."""
        batch = self._appending
        if batch is None:
            invariant(False, "nothing was being appended")
            raise AssertionError
        invariant(tail == batch.expected_tail + len(batch.placed), "the log has another tail")
        self._appending = None
        self.synced = tail
        for placed in batch.placed:
            self._queue.popleft()
            if placed.keys is not None:
                self._unsynced.synced(placed.lsn, placed.keys)
        return batch

    # -- changes of the configuration (invariant 11) -----------------------------------

    def begin_change(self) -> int:
        """Answer nothing first from now on; return the LSN to be synced before the change."""
        self._changing = True
        return self.placed

    def end_change(self, configuration: int, *, witnessed: bool) -> None:
        """Go on under that number, new or (a change given up) as it was.

        ``witnessed`` only after all witnesses of that number were started under it.
        """
        invariant(configuration >= self.configuration, "configuration numbers only grow")
        self.configuration = configuration
        self.witnessed = witnessed
        self._changing = False

    def _enqueue(self, what: Any, size: int, now: float, keys: frozenset[int] | None) -> int:
        self.placed += 1
        self._queue.append(PlacedInLog(self.placed, keys, what, size, now))
        return self.placed

    def _speed(self, keys: frozenset[int], wish: SpeedWish) -> Speed:
        if wish.configuration != self.configuration:
            return Speed.NO_NUMBER
        if not self.witnessed:
            return Speed.NO_WITNESS
        if self._changing:
            return Speed.CHANGING
        if not wish.deterministic:
            return Speed.NONDETERMINISTIC
        if not wish.covered:
            return Speed.OTHER_KEYS
        if not wish.registered:
            return Speed.UNREGISTERED
        if self.unsynced >= self._bounds.max_unsynced:
            return Speed.FULL
        if self._unsynced.conflict(keys):
            return Speed.CONFLICT
        return Speed.FAST
