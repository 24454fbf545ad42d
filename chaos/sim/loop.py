"""Virtual time: one event after another, and the processes they belong to."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

__all__ = ["EPOCH_S", "Loop", "Process", "Timer"]

# What wall clocks show when a run begins.
EPOCH_S = 1_800_000_000.0


class Timer:
    """An event to come; ``cancel`` it at any time."""

    __slots__ = ("action", "arguments", "process")

    def __init__(
        self, process: Process | None, action: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        self.process = process
        self.action: Callable[..., object] | None = action
        self.arguments = arguments

    def cancel(self) -> None:
        """Have it never happen."""
        self.action = None


class Loop:
    """Runs events in the order of their times, equal ones in the order they were set.

    ``now`` is seconds of true time from 0; no process sees it, but through clocks of
    its own. Nothing here depends on the order of a set or of a hash.
    """

    def __init__(self, *, tracing: bool = False) -> None:
        self.now = 0.0
        self.events = 0
        self.tracing = tracing
        self.lines: list[str] = []
        self._heap: list[tuple[float, int, Timer]] = []
        self._set = 0

    def at(
        self, when: float, process: Process | None, action: Callable[..., object], *arguments: Any
    ) -> Timer:
        """Have something happen at a time, unless its process is dead by then."""
        timer = Timer(process, action, arguments)
        self._set += 1
        heapq.heappush(self._heap, (when, self._set, timer))
        return timer

    def after(self, delay_s: float, action: Callable[..., object], *arguments: Any) -> Timer:
        """Have something happen to the world, which does not die."""
        return self.at(self.now + delay_s, None, action, *arguments)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Run until a time, or until ``done`` says so; it is asked after every event."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, timer = heapq.heappop(heap)
            action = timer.action
            if action is None:
                continue
            self.now = when
            process = timer.process
            if process is not None:
                if not process.alive:
                    continue
                if process.stopped_until > when:
                    self._set += 1
                    heapq.heappush(heap, (process.stopped_until, self._set, timer))
                    continue
            self.events += 1
            action(*timer.arguments)
            if done is not None and done():
                return
        self.now = max(self.now, until) if done is None else self.now

    def trace(self, who: str, text: str) -> None:
        """Add a line to the log; ask for ``tracing`` first, where the text costs."""
        if self.tracing:
            self.lines.append(f"{self.now:11.6f}  {who:<10} {text}")


class Process:
    """One life of a process: its events end with it, and wait while it is stopped.

    ``rate``: seconds its clocks count in one of true time.
    """

    __slots__ = ("alive", "loop", "name", "rate", "stopped_until", "wall_offset_s")

    def __init__(
        self, loop: Loop, name: str, *, rate: float = 1.0, wall_offset_s: float = 0.0
    ) -> None:
        self.loop = loop
        self.name = name
        self.rate = rate
        self.wall_offset_s = wall_offset_s
        self.alive = True
        self.stopped_until = 0.0

    def clock(self) -> float:
        """Return this process's monotonic seconds."""
        return self.loop.now * self.rate

    def wall_clock(self) -> float:
        """Return this process's idea of Unix seconds."""
        return EPOCH_S + self.loop.now + self.wall_offset_s

    def after(self, delay_s: float, action: Callable[..., object], *arguments: Any) -> Timer:
        """Have something happen after so many seconds of this process's clock."""
        loop = self.loop
        return loop.at(loop.now + delay_s / self.rate, self, action, *arguments)

    def at(self, clock_s: float, action: Callable[..., object], *arguments: Any) -> Timer:
        """Have something happen when this process's clock shows a time, or now."""
        when = clock_s / self.rate
        while when * self.rate < clock_s:
            # A rounding error too early, it would be set again, for ever.
            when = math.nextafter(when, math.inf)
        return self.loop.at(max(self.loop.now, when), self, action, *arguments)

    def stop(self, seconds: float) -> None:
        """Suspend it, as SIGSTOP does: its clocks go on, its events wait."""
        self.stopped_until = max(self.stopped_until, self.loop.now + seconds)

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        self.alive = False
