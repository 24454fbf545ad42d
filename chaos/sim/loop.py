"""Machinery: virtual time, one event after another, and the processes they belong to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

__all__ = ["EPOCH_S", "Loop", "Process", "Timer"]

# What wall clocks show when a run begins.
EPOCH_S = 1_800_000_000.0


class Timer(list[Any]):
    """An event to come: when, which of those set, whose, what. ``cancel`` it at any time.

    A list, since heaps compare millions of them.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """Have it never happen."""
        self[3] = None


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
        self.heap: list[Timer] = []
        self.next_number = itertools.count().__next__

    def at(
        self, when: float, process: Process | None, action: Callable[..., object], *arguments: Any
    ) -> Timer:
        """Have something happen at a time, unless its process is dead by then."""
        timer = Timer((when, self.next_number(), process, action, arguments))
        heappush(self.heap, timer)
        return timer

    def after(self, delay_s: float, action: Callable[..., object], *arguments: Any) -> Timer:
        """Have something happen to the world, which does not die."""
        timer = Timer((self.now + delay_s, self.next_number(), None, action, arguments))
        heappush(self.heap, timer)
        return timer

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Run until a time, or until ``done`` says so; it is asked after every event."""
        heap, events = self.heap, self.events
        while heap and heap[0][0] <= until:
            timer = heappop(heap)
            when, _, process, action, arguments = timer
            if action is None:
                continue
            self.now = when
            if process is not None:
                if not process.alive:
                    continue
                if process.stopped_until > when:
                    timer[0], timer[1] = process.stopped_until, self.next_number()
                    heappush(heap, timer)
                    continue
            events += 1
            action(*arguments)
            if done is not None and done():
                self.events = events
                return
        self.events = events
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
        timer = Timer((loop.now + delay_s / self.rate, loop.next_number(), self, action, arguments))
        heappush(loop.heap, timer)
        return timer

    def at(self, clock_s: float, action: Callable[..., object], *arguments: Any) -> Timer:
        """Have something happen when this process's clock shows a time, or now."""
        when = clock_s / self.rate
        while when * self.rate < clock_s:
            # A rounding error too early, it would be set again, without end.
            when = math.nextafter(when, math.inf)
        return self.loop.at(max(self.loop.now, when), self, action, *arguments)

    def stop(self, seconds: float) -> None:
        """Suspend it, as SIGSTOP does: its clocks go on, its events wait."""
        self.stopped_until = max(self.stopped_until, self.loop.now + seconds)

    def go_on(self) -> None:
        """Let it go on before its time, as SIGCONT does: what waited happens now."""
        heap = self.loop.heap
        for timer in heap:
            if timer[2] is self and timer[0] == self.stopped_until:
                timer[0] = self.loop.now
        heapify(heap)
        self.stopped_until = self.loop.now

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        self.alive = False

    def dice(self) -> Random:
        """Return dice of this life's own, as of now: no other draws change with theirs."""
        return Random(f"{self.name} {self.loop.now}")  # noqa: S311 - to be repeated
