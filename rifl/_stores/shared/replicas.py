"""Which replicas live, as one of them sees it (DESIGN §6). Pure."""

from __future__ import annotations

from collections.abc import Mapping


class Replicas:
    """Judges replicas by their beats, on the observer's own clock.

    A replica is dead if its entry is gone, or if its beats stood still for
    ``dead_after_s`` while this observer looked on without a gap of its own; so no
    two machines' clocks are compared, and an observer that was suspended starts
    over. A guess all the same: a replica may continue.

    Times are seconds on one clock. Not thread-safe.
    """

    def __init__(self, dead_after_s: float) -> None:
        self._dead_after_s = dead_after_s
        # By incarnation: its beats, and since when they stand still.
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def observe(self, beats: Mapping[str, int], now: float) -> None:
        """Take in what the store says; it was asked no earlier than the last time."""
        gap = self._looked_at is None or now - self._looked_at > self._dead_after_s / 2
        seen = {}
        for incarnation, count in beats.items():
            known = self._seen.get(incarnation)
            if gap or known is None or known[0] != count:
                seen[incarnation] = (count, now)
            else:
                seen[incarnation] = known
        self._seen = seen
        self._looked_at = now

    def knows(self, incarnation: str) -> bool:
        """Whether it was there the last time: one that was not may be new since."""
        return incarnation in self._seen

    def dead(self) -> tuple[tuple[str, int], ...]:
        """Return the incarnations that stood still for too long, with their beats."""
        return tuple(
            (incarnation, seen[0])
            for incarnation, seen in self._seen.items()
            if self.is_dead(incarnation)
        )

    def is_dead(self, incarnation: str) -> bool:
        """Whether it stood still for too long, or is gone; see ``knows``.

        As of the last look: since then it may have beaten.
        """
        known = self._seen.get(incarnation)
        if known is None or self._looked_at is None:
            return True
        return self._looked_at - known[1] >= self._dead_after_s

    def living(self) -> list[str]:
        """Return the incarnations that are not dead."""
        return [name for name in self._seen if not self.is_dead(name)]
