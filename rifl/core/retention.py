"""When the records of keyed calls are let go: a rule of times (DESIGN §3, §4)."""

from __future__ import annotations

import heapq

__all__ = ["Retention"]

# What `_order` may hold beyond twice what is kept.
_SLACK = 1024


class Retention:
    """Which keys are due, counted from the completion of their calls.

    Invariants:

    1. A key is due at the last time noted for it, and not before.
    2. A key is returned once; one that was forgotten, never.

    Times are seconds of any clock that the caller keeps to. ``note`` and ``due``
    take time logarithmic in what is kept, for each key. Not thread-safe.
    """

    __slots__ = ("_order", "_until")

    def __init__(self) -> None:
        self._until: dict[tuple[int, bytes], float] = {}
        # May hold what is no longer true; `_until` says what is.
        self._order: list[tuple[float, int, bytes]] = []

    def note(self, client_id: int, key: bytes, until: float) -> None:
        """Keep a key until then, whatever was noted before."""
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
        taken: list[tuple[int, bytes]] = []
        while self._order and self._order[0][0] <= now and len(taken) < limit:
            until, client_id, key = heapq.heappop(self._order)
            if self._until.get((client_id, key)) == until:
                del self._until[client_id, key]
                taken.append((client_id, key))
        return taken

    def __len__(self) -> int:
        """How many keys are kept for a time."""
        return len(self._until)
