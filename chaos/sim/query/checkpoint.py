"""Model of the world: what Spark keeps of a query, on a disk that survives its driver."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sharedlog.spark._offsets import Offset

__all__ = ["Checkpoint"]


@dataclass
class Checkpoint:
    """``offsets``: of each batch through where it reads, the first one's begin before it.

    ``noted``: the highest batch whose commit is noted, -1 for none. ``place``: its directory.
    """

    identity: str
    place: str
    offsets: list[Offset] = field(default_factory=list)
    noted: int = -1

    @property
    def planned(self) -> int:
        """The highest batch that has offsets, -1 for none."""
        return len(self.offsets) - 2

    def copy(self, place: str) -> Checkpoint:
        """Return a copy in another directory."""
        return replace(self, place=place, offsets=list(self.offsets))
