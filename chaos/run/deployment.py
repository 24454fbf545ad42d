"""The deployment of a scenario: its members, as faults and the run look at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

from chaos.check import History
from chaos.run.disk import SmallDisk
from chaos.run.process import Member
from chaos.run.slow_disk import SlowDisk
from chaos.run.toxiproxy import PathTo
from chaos.run.wall_clock import WallClock

__all__ = ["Deployment"]


class Deployment(Protocol):
    """A context manager: everything runs inside it, and nothing is left of it outside.

    ``members`` and ``links`` are what faults strike, by the names of the scenario:
    a process, and the path that leads to it. ``targets`` is what clients connect to.
    One thread.
    """

    members: dict[str, Member]
    disks: dict[str, SmallDisk]
    # Of the members that have a wall clock of their own.
    clocks: dict[str, WallClock]
    # Of those whose disk may be slow.
    slow_disks: dict[str, SlowDisk]
    targets: list[str]
    follow_leaders: bool

    @property
    def links(self) -> Mapping[str, PathTo]:
        """The paths."""
        ...

    def __enter__(self) -> Self:
        """Start all of it; returns when every process is ready."""
        ...

    def __exit__(self, *_: object) -> None: ...

    def find(self, target: str) -> str:
        """Return whom a fault's target means now: ``leader`` and ``standby`` change."""
        ...

    def finish(self, history: History) -> None:
        """Put what is there in the end, and the effects, into the history."""
        ...

    def complaints(self) -> str:
        """The last that each process said."""
        ...
