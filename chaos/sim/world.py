"""Machinery: what all parts of one simulated deployment share."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from chaos.check.history import History
from chaos.sim.event_loop import EventLoop
from chaos.sim.faults import Coverage
from chaos.sim.loop import Loop, Process
from chaos.sim.network import Network
from chaos.sim.planned import PlannedCall
from chaos.sim.service import Accounts

__all__ = ["World"]


class World:
    """One run: its time, its network, its service, and what is recorded of it."""

    def __init__(
        self, seed: int, calls: Sequence[PlannedCall], coverage: Coverage, *, tracing: bool
    ) -> None:
        self.loop = Loop(tracing=tracing)
        self.random = Random(f"world {seed}")  # noqa: S311 - repeatable, not secret
        self.coverage = coverage
        self.history = History()
        self.accounts = Accounts(self.history)
        self.network = Network(self.loop, self.random, coverage)
        self.problems: list[str] = []
        # Calls whose handler committed without its record, of which no store was told yet.
        self.unrecorded: dict[int, None] = {}
        # When clients were told their ids, of stores that promise to know them after a crash.
        self.granted: dict[int, float] = {}
        # Nothing is started any more.
        self.over = False
        self._calls = {call.number: call for call in calls}
        self._events: list[EventLoop] = []

    def events(self, process: Process) -> EventLoop:
        """Return an event loop of asyncio for a process's life."""

        def broken(text: str) -> None:
            self.problems.append(f"{process.name}: {text}")

        found = EventLoop(process, broken)  # type: ignore[abstract]  # nothing asks for sockets
        self._events.append(found)
        return found

    def forget(self) -> None:
        """End what processes have left, when the run is over and judged."""
        for each in self._events:
            each.forget()

    def plan(self, number: int) -> PlannedCall:
        """Return what was planned for a call."""
        return self._calls[number]

    def trace(self, who: str, text: str) -> None:
        """Add a line to the log of events."""
        self.loop.trace(who, text)

    def broken(self, who: str, error: BaseException | None) -> None:
        """Note that something happened that nothing may cause: a defect."""
        text = f"{who}: {type(error).__name__}: {error}"
        self.trace(who, f"BROKEN: {text}")
        self.problems.append(text)
