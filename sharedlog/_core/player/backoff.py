"""The backoff of one target: when it is tried again (DESIGN-LOG §15, P4, P7)."""

from __future__ import annotations


class Backoff:
    """Pauses that double, each drawn from its upper half, so that many do not come at once."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        """Nothing has failed yet."""
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._next_s = shortest_s

    def pause_s(self, drawn: float) -> float:
        """Return the next pause; ``drawn``: at random, 0.0 to 1.0."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s * (1 + drawn) / 2

    def reset(self) -> None:
        """Something went well."""
        self._next_s = self._shortest_s
