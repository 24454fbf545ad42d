"""Which replicas live, as somebody sees it who has only just come (DESIGN §6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rifl._stores.shared.presence import is_here


class Living:
    """Tells living replicas from the dead by whether their beats move while it looks.

    ``read`` gives the beats that the store holds by incarnation. One that stands
    still for ``dead_after_s`` is taken for dead: a guess, as that of the replicas
    about each other. Both methods block for as long as that, and less if all move.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, int]], *, beat_s: float, dead_after_s: float
    ) -> None:
        self._read = read
        self._pause_s = beat_s / 4
        self._dead_after_s = dead_after_s

    def holds(self, owner: str) -> bool:
        """Whether this replica lives, or is a process of this machine, suspended or not."""
        return is_here(owner) or self.has(owner)

    def has(self, owner: str) -> bool:
        """Whether this replica lives."""
        first = self._read().get(owner)
        if first is None:
            return False
        return self._watch(lambda beats: beats.get(owner) != first).get(owner, first) != first

    def told(self) -> str | None:
        """Name the replicas that live, for people; None if none does."""
        first = dict(self._read())
        last = self._watch(lambda beats: all(beats.get(name) != first[name] for name in first))
        living = sorted(name for name, count in last.items() if first.get(name) != count)
        if not living:
            return None
        return f"{len(living)} replica{'s' * (len(living) > 1)}: {', '.join(living)}"

    def _watch(self, settled: Callable[[Mapping[str, int]], bool]) -> Mapping[str, int]:
        end = time.monotonic() + self._dead_after_s
        pause = threading.Event()
        while True:
            beats = self._read()
            if settled(beats) or time.monotonic() >= end:
                return beats
            pause.wait(self._pause_s)
