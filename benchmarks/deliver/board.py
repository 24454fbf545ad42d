"""The board: times that processes of one machine share, in a file that each maps into memory."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Board"]

# Messages that are in flight or not read yet, at most; targets, at most.
_NUMBERS, _TARGETS = 1 << 18, 64


class Board:
    """When each message, by its number, was dispatched, came to its handler, and was committed.

    Nanoseconds of the machine's monotonic clock; 0: not yet. ``counts``: deliveries that each
    target has committed. A cell has one writer; a reader sees the last value.
    """

    def __init__(self, path: Path) -> None:
        """Open it; made where it is not there."""
        cells = 3 * _NUMBERS + _TARGETS
        with path.open("a+b") as file:
            if file.seek(0, 2) < 8 * cells:
                file.truncate(8 * cells)
            self._map = mmap.mmap(file.fileno(), 8 * cells)
        every = memoryview(self._map).cast("q")
        self.dispatched = every[:_NUMBERS]
        self.started = every[_NUMBERS : 2 * _NUMBERS]
        self.committed = every[2 * _NUMBERS : 3 * _NUMBERS]
        self.counts = every[3 * _NUMBERS :]

    def clear(self, numbers: Sequence[int]) -> None:
        """Forget what these had before."""
        for each in numbers:
            self.dispatched[each] = self.started[each] = self.committed[each] = 0

    @staticmethod
    def wait(cells: memoryview[int], numbers: Sequence[int], timeout_s: float) -> None:
        """Wait until each has its time; raises ``TimeoutError``."""
        end = time.monotonic() + timeout_s
        while not all(cells[each] for each in numbers):
            if time.monotonic() > end:
                late = sum(not cells[each] for each in numbers)
                raise TimeoutError(f"{late} of {len(numbers)} messages came to nothing")
            time.sleep(0.0005)
