"""The notes of a server on each call, in a file that survives the process."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

__all__ = ["Found", "Notes", "read"]

_ARRIVED, _BEGAN, _ENDED = "a", "b", "e"


class Notes:
    """One server's, one line a note, each in one write. Any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def arrived(self, at: float) -> None:
        """An attempt has reached the server."""
        self._write(f"{_ARRIVED} {at:.4f}\n")

    def began(self, at: float, call: str) -> None:
        """A handler runs for this call."""
        self._write(f"{_BEGAN} {at:.4f} {call}\n")

    def ended(self, at: float, call: str, *, late: bool) -> None:
        """It has had its effect. ``late``: the call's deadline had passed."""
        self._write(f"{_ENDED} {at:.4f} {call} {late:d}\n")

    def _write(self, line: str) -> None:
        os.write(self._file, line.encode())


class Found(NamedTuple):
    """What the servers of a run noted. Times are ``time.monotonic`` of the machine."""

    # One for each server.
    arrivals: list[list[float]]
    # Handlers that began.
    began: list[float]
    # Handlers that had their effect after their call's deadline.
    too_late: list[float]
    # Calls with more than one effect.
    doubled: int


def read(paths: list[Path]) -> Found:
    """Return what these files say."""
    found = Found([], [], [], 0)
    effects: Counter[str] = Counter()
    for path in paths:
        arrivals: list[float] = []
        found.arrivals.append(arrivals)
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, at, *more = line.split()
            if kind == _ARRIVED:
                arrivals.append(float(at))
            elif kind == _BEGAN:
                found.began.append(float(at))
            else:
                effects[more[0]] += 1
                if more[1] == "1":
                    found.too_late.append(float(at))
    return found._replace(doubled=sum(count > 1 for count in effects.values()))
