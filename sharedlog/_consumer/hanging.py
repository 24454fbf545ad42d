"""A user's function that does not return: what runs, and since when, for another thread to tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from _rifl_ground.log import get_logger
from sharedlog._core.position import Position

_log = get_logger("sharedlog")
# After that it is told, and again each time that it has run for twice as long.
TOLD_AFTER_S = 30.0
# An event names so many of the tasks that a function has left.
_MOST_TASKS = 10


class _Running(NamedTuple):
    handler: str
    tag: str
    position: Position | None
    began_s: float


class Hanging:
    """Of one thread that runs functions; another one looks at how long."""

    def __init__(self, log: str, consumer: str, clock: Callable[[], float] | None = None) -> None:
        """Nothing runs. ``log``: its name in events."""
        self._said = {"log": log, "consumer": consumer}
        self._clock = clock or time.monotonic
        self._running: _Running | None = None
        # The longest run of this minute, and of the one before; which minute that is.
        self._longest = [0.0, 0.0]
        self._minute = 0
        self._told: _Running | None = None
        self._due_s = 0.0

    def begin(self, handler: str, tag: str, position: Position | None) -> None:
        """A function is called, with the message at a position, or as a timer."""
        self._running = _Running(handler, tag, position, self._clock())

    def end(self, left: Sequence[str] = ()) -> None:
        """It has returned, or raised. ``left``: tasks that it began and that have not ended."""
        running, self._running = self._running, None
        if running is not None:
            self._turn()
            self._longest[0] = max(self._longest[0], self._clock() - running.began_s)
        if left and running is not None:
            _log.warning(
                "consumer_left_tasks",
                **self._said,
                shard=running.tag,
                position=str(running.position or ""),
                handler=running.handler,
                tasks=", ".join(left[:_MOST_TASKS]),
                count=len(left),
            )

    def longest_s(self) -> float:
        """Return how long the longest run of the last minute took, or takes. Any thread."""
        running = self._running
        self._turn()
        runs = 0.0 if running is None else self._clock() - running.began_s
        return max(runs, *self._longest)

    def _turn(self) -> None:
        minute = int(self._clock() // 60)
        if minute != self._minute:
            self._longest = [0.0, self._longest[0] if minute == self._minute + 1 else 0.0]
            self._minute = minute

    def look(self) -> None:
        """Tell of one that has run for long. By the other thread."""
        running = self._running
        if running is None:
            return
        if running is not self._told:
            self._told, self._due_s = running, TOLD_AFTER_S
        seconds = self._clock() - running.began_s
        if seconds >= self._due_s:
            self._due_s = 2 * seconds
            _log.warning(
                "consumer_hangs",
                **self._said,
                shard=running.tag,
                position=str(running.position or ""),
                handler=running.handler,
                seconds=round(seconds),
            )


def look_at(running: Iterable[Hanging]) -> None:
    """Tell of those that have run for long, as ``Hanging.look``."""
    for each in running:
        each.look()
