"""Sweeping: producers that fell silent in a transaction are retired (DESIGN-LOG §13, C2).

Nobody's clock is trusted: a producer is silent when its highest seq stays the same for a time that
the sweeper measures itself, from when it first saw it, while it could look. One of the sweepers
of a log works (``duty``).
"""

from __future__ import annotations

from collections.abc import Mapping

from sharedlog._core.commit import Refused
from sharedlog._core.errors import Fenced
from sharedlog._core.fences import Fence
from sharedlog._core.producers import OPEN, seq_key
from sharedlog._core.spans import retire
from sharedlog._core.steps import Get, Rule, Scan

# Part of the time after which a producer is silent that may pass between two looks.
_BLIND = 0.5


class Silences:
    """What one sweeper saw of producers that have something pending, and since when."""

    def __init__(self, silent_s: float) -> None:
        """Nothing was seen yet."""
        self._silent_s = silent_s
        self._seen: dict[int, tuple[int, float]] = {}
        self._looked_s = 0.0

    def look(self, there: Mapping[int, int], now_s: float) -> dict[int, int]:
        """Note producers with their highest seqs; return those that are silent.

        What passed while nobody looked does not count: the log did not answer producers either,
        or this process was stopped, maybe with them.
        """
        if now_s - self._looked_s > _BLIND * self._silent_s:
            self._seen = {}
        self._looked_s = now_s
        before = self._seen
        self._seen = {
            producer: seen
            if (seen := before.get(producer)) is not None and seen[0] == seq
            else (seq, now_s)
            for producer, seq in there.items()
        }
        return {
            producer: seq
            for producer, (seq, since) in self._seen.items()
            if now_s - since >= self._silent_s
        }


def unfinished() -> Rule[dict[int, int]]:
    """Return the producers that have something pending, each with its highest seq."""
    ids = [int(key.removeprefix(OPEN)) for key in (yield Scan(OPEN))]
    if not ids:
        return {}
    found: Mapping[str, bytes | None] = yield Get(tuple(seq_key(each) for each in ids))
    return {each: int.from_bytes(found[seq_key(each)] or b"", "big") for each in ids}


def retire_silent(producer: int, seq: int, fence: Fence) -> Rule[bool]:
    """Retire a producer that is still at this seq; False: it is not, or somebody else sweeps."""
    try:
        yield from retire(producer, seq=seq, fence=fence)
    except (Fenced, Refused):
        return False
    return True
