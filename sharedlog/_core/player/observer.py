"""The observer of players, who is told what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class TargetReport(NamedTuple):
    """A target at one moment: its state, entries behind, messages queued and in flight."""

    target: str
    state: str
    lag: int
    queued: int
    in_flight: int
    taken: int


class PlayerObserver:
    """Is told what players do. Subclass and override; on a player's event loop, not to block.

    What it raises is logged once, and changes nothing.
    """

    def attached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """A player begins; ``report`` says how its targets are, in any thread."""

    def detached(self, player: str, report: Callable[[], list[TargetReport]]) -> None:
        """That player is closed."""

    def troubled(self, player: str, target: str, cause: str) -> None:
        """A target was cut off, for what ``cause`` names."""

    def stopped(self, player: str, target: str, why: str) -> None:
        """A target is sent nothing until somebody has seen to it."""

    def buried(self, player: str, target: str) -> None:
        """A message that it was not called with is a dead letter."""
