"""Replicas and which of them live: as one of them judges, and as a newcomer does (DESIGN §6)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rifl._stores.shared.presence import is_here

# Seconds between a replica's beats, and for which another's stand still before it counts as dead.
BEAT_S = 0.5
DEAD_AFTER_S = 5.0


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
        # For each incarnation: its beats, and since when they stand still.
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

    def dead(self) -> tuple[tuple[str, int], ...]:
        """Return the incarnations that stood still for too long, with their beats."""
        return tuple(
            (incarnation, seen[0])
            for incarnation, seen in self._seen.items()
            if self.is_dead(incarnation)
        )

    def is_dead(self, incarnation: str) -> bool:
        """Whether it stood still for too long, or is gone.

        As of the last look: since then it may have come, or have beaten.
        """
        known = self._seen.get(incarnation)
        if known is None or self._looked_at is None:
            return True
        return self._looked_at - known[1] >= self._dead_after_s

    def beats(self, incarnation: str) -> int:
        """Return how often it had beaten at the last look; 0 if it is dead, and not here.

        A process of this machine that is suspended shows that it is there.
        """
        known = self._seen.get(incarnation)
        dead = self.is_dead(incarnation) and not is_here(incarnation)
        return 0 if dead else 1 if known is None else max(1, known[0])

    def living(self) -> list[str]:
        """Return the incarnations that are not dead."""
        return [name for name in self._seen if not self.is_dead(name)]


class LivingReplicas:
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
