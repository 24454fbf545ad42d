"""The client's side of the bookkeeping (RIFL §3.2, RequestTracker)."""

from __future__ import annotations

from rifl.core.completed_set import CompletedSet
from rifl.core.errors import WindowExceeded

__all__ = ["RequestTracker"]


class RequestTracker:
    """Hands out seqs and knows which of them are complete.

    Invariants:

    1. A seq is handed out once, in order, from 1.
    2. At most ``window`` calls are incomplete at any time, however far the
       oldest lies back.
    3. ``first_incomplete`` never exceeds the next seq.

    Time per call is constant but for ``completed_ranges``, and memory stays
    proportional to the incomplete calls. Not thread-safe.
    """

    __slots__ = ("_completed", "_incomplete", "_next", "_window")

    def __init__(self, window: int = 512) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._window = window
        self._next = 1
        self._incomplete = 0
        self._completed = CompletedSet(max_ranges=window + 1)

    def next(self) -> int:
        """Begin a call and return its seq.

        Raises ``WindowExceeded``, with nothing begun, when ``window`` calls are
        incomplete.
        """
        if self._incomplete >= self._window:
            raise WindowExceeded(f"{self._window} calls are incomplete")
        seq = self._next
        self._next = seq + 1
        self._incomplete += 1
        return seq

    def complete(self, seq: int) -> None:
        """Note that the answer to ``seq`` is no longer wanted from the server.

        Idempotent; a seq that was never handed out is ignored.
        """
        if not 1 <= seq < self._next or seq in self._completed:
            return
        self._completed.add(seq)
        self._incomplete -= 1

    @property
    def first_incomplete(self) -> int:
        """The smallest seq not complete; the next seq if there is none."""
        return self._completed.first_incomplete

    @property
    def incomplete(self) -> int:
        """How many calls are incomplete."""
        return self._incomplete

    @property
    def window(self) -> int:
        """How many calls may be incomplete at once."""
        return self._window

    def completed_ranges(self) -> list[tuple[int, int]]:
        """Return the completed ranges above ``first_incomplete``.

        Inclusive, maximal and sorted.
        """
        return self._completed.ranges()
