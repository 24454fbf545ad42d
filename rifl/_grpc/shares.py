"""Shares of what callers may open and keep: so much in all, and so much of one of them."""

from __future__ import annotations

import threading
from collections import Counter


class Shares:
    """Counts what is open. Any thread.

    ``most``: in all; ``most_of_one``: of one peer, or of one address without a peer.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._lock = threading.Lock()
        self._open: Counter[bytes | str] = Counter()

    def enter(self, whose: bytes | str) -> bool:
        """Count one more; return False, and count nothing, if there is no room."""
        with self._lock:
            if self._open.total() >= self._most or self._open[whose] >= self._most_of_one:
                return False
            self._open[whose] += 1
            return True

    def leave(self, whose: bytes | str) -> None:
        """Count one less."""
        with self._lock:
            self._open[whose] -= 1
            if not self._open[whose]:
                del self._open[whose]

    def __len__(self) -> int:
        return self._open.total()
