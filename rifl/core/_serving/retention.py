"""Retention: when the records of keyed calls are let go, a rule of times (DESIGN §3, §4)."""

from __future__ import annotations

import heapq

# What `_order` may hold beyond twice what is kept.
_SLACK = 1024
# A sweep counts at most twice what the last one did; before the first one, this.
_AT_FIRST_S = 10.0
_LEAST_S = 1.0


class LivedTime:
    """Seconds that were lived through: a clock's, without its jumps.

    Invariants:

    1. It never goes back, and is never ahead of what the clock showed, step by step.
    2. From one sweep to the next it moves by at most twice what it moved before: a clock that
       is set ahead for a moment costs one such step, whatever it shows.

    Too little of it is safe: records stay longer. ``whole``: all of the clock's time counts,
    for one that a test sets. Not thread-safe.
    """

    __slots__ = ("_last", "_lived_s", "_most_s", "_whole")

    def __init__(self, lived_s: float = 0.0, *, whole: bool = False) -> None:
        self._whole = whole
        self._lived_s = lived_s
        self._last: float | None = None
        self._most_s = _AT_FIRST_S

    def at(self, now: float) -> float:
        """Return how long was lived through when the clock shows ``now``, in seconds."""
        if self._last is None:
            self._last = now
        step_s = max(0.0, now - self._last)
        return self._lived_s + (step_s if self._whole else min(step_s, self._most_s))

    def sweep(self, now: float) -> float:
        """Move on to ``now``: the same. Called every few seconds."""
        lived_s = self.at(now)
        if lived_s > self._lived_s:
            self._most_s = 2.0 * max(lived_s - self._lived_s, _LEAST_S)
        self._lived_s, self._last = lived_s, now
        return lived_s


class Retention:
    """Which keys are due, counted from the completion of their calls.

    Invariants:

    1. A key is due when the time last noted for it was lived through, and not before.
    2. A key is returned once; one that was forgotten, never.

    Times are seconds of any clock that the caller keeps to; of its jumps see
    ``LivedTime``, which moves with ``due``. ``note`` and ``due`` take time logarithmic in
    what is kept, for each key. Not thread-safe.
    """

    __slots__ = ("_order", "_until", "lived")

    def __init__(self) -> None:
        self.lived = LivedTime()
        self._until: dict[tuple[int, bytes], float] = {}
        # May hold what is no longer true; `_until` says what is.
        self._order: list[tuple[float, int, bytes]] = []

    def note(self, client_id: int, key: bytes, seconds: float, now: float) -> None:
        """Keep a key for so many seconds from ``now``, whatever was noted before."""
        until = self.lived.at(now) + seconds
        self._until[client_id, key] = until
        heapq.heappush(self._order, (until, client_id, key))
        if len(self._order) > 2 * len(self._until) + _SLACK:
            self._order = [(until, *identity) for identity, until in self._until.items()]
            heapq.heapify(self._order)

    def forget(self, client_id: int, key: bytes) -> None:
        """Note that a key is gone, or is to stay."""
        self._until.pop((client_id, key), None)

    def due(self, now: float, limit: int) -> list[tuple[int, bytes]]:
        """Take the keys whose time is over, the oldest first, at most ``limit``."""
        lived_s = self.lived.sweep(now)
        taken: list[tuple[int, bytes]] = []
        while self._order and self._order[0][0] <= lived_s and len(taken) < limit:
            until, client_id, key = heapq.heappop(self._order)
            if self._until.get((client_id, key)) == until:
                del self._until[client_id, key]
                taken.append((client_id, key))
        return taken

    def __len__(self) -> int:
        """How many keys are kept for a time."""
        return len(self._until)
