"""The client's tracker of its incomplete calls (RIFL §3.2, RequestTracker)."""

from __future__ import annotations

from rifl.core._shared.identity import DEFAULT_WINDOW


class RequestTracker:
    """Hands out seqs and knows which of them are complete.

    Invariants:

    1. A seq is handed out once, in order, from 1.
    2. At most ``window`` calls are incomplete at any time, however far the
       oldest lies back.
    3. ``first_incomplete`` never exceeds ``following``, the seq that is handed out next.

    Kept are the incomplete calls, in the order of their seqs: what is complete are
    the gaps. Time per call is constant but for ``completed_ranges``, and that and
    memory stay proportional to the incomplete calls. Not thread-safe.
    """

    __slots__ = ("_incomplete", "_window", "following")

    def __init__(self, window: int = DEFAULT_WINDOW) -> None:
        if window < 1:
            raise ValueError("window must be at least 1")
        self._window = window
        self.following = 1
        # A dictionary keeps the order in which they were added, which is theirs.
        self._incomplete: dict[int, None] = {}

    def begin(self) -> tuple[int, int] | None:
        """Begin a call; return its seq and ``first_incomplete``, None where the window is full."""
        incomplete = self._incomplete
        if len(incomplete) >= self._window:
            return None
        seq = self.following
        self.following = seq + 1
        incomplete[seq] = None
        return seq, next(iter(incomplete))

    def complete(self, seq: int) -> None:
        """Note that the answer to ``seq`` is no longer wanted from the server.

        Idempotent; a seq that was never handed out is ignored.
        """
        self._incomplete.pop(seq, None)

    def has(self, seq: int) -> bool:
        """Whether a seq was handed out and is not complete."""
        return seq in self._incomplete

    @property
    def first_incomplete(self) -> int:
        """The smallest seq not complete; the next seq if there is none."""
        for seq in self._incomplete:
            return seq
        return self.following

    @property
    def incomplete(self) -> int:
        """How many calls are incomplete."""
        return len(self._incomplete)

    @property
    def window(self) -> int:
        """How many calls may be incomplete at once."""
        return self._window

    def completed_ranges(self) -> list[tuple[int, int]]:
        """Return the completed ranges above ``first_incomplete``.

        Inclusive, maximal and sorted.
        """
        found: list[tuple[int, int]] = []
        expected = self.first_incomplete
        for seq in self._incomplete:
            if seq != expected:
                found.append((expected, seq - 1))
            expected = seq + 1
        if expected < self.following:
            found.append((expected, self.following - 1))
        return found
