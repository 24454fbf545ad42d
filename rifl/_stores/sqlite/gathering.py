"""How many entries a commit waits for (DESIGN §6, group commit)."""

from __future__ import annotations

# A commit waits no longer than this after the last entry came, and this in all.
QUIET_S = 0.002
LONGEST_S = 0.008


class Gathering:
    """Expects of the next commit what came with the last two, whichever were more.

    Callers that waited for one commit come again together: answered, they make their
    next calls, and the first of these would have an fsync, and many changes of
    thread, to itself. A caller on its own is expected to come alone, and never
    waits. One that stays away is waited for twice.

    No clock and no lock: the journal asks and tells under its own.
    """

    def __init__(self) -> None:
        self.expected = 1
        self._last = 1

    def taken(self, entries: int) -> None:
        """Learn how many went into a commit; one of acknowledgements only tells nothing."""
        if entries:
            self.expected = max(entries, self._last)
            self._last = entries
