"""Pauses of a run: times in which no call was answered."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.check import History

__all__ = ["longest_pause", "pauses"]

_SHORTEST_S = 0.5


def pauses(history: History, shortest_s: float = _SHORTEST_S) -> Iterator[tuple[float, float]]:
    """Yield the times between two answers that were at least so long apart."""
    last = None
    for event in history.events:
        if event["event"] == "end" and event["code"] == "OK":
            if last is not None and event["at"] - last >= shortest_s:
                yield last, event["at"]
            last = event["at"]


def longest_pause(history: History) -> float:
    """Return the longest time without an answered call, in seconds."""
    return max((end - begin for begin, end in pauses(history, 0.0)), default=0.0)
