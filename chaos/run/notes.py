"""Notes: what a process was told goes to a file, event by event, when it happens.

Stamped by the machine's monotonic clock, the files of several processes make one history, and one
that is killed leaves what it was told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Notes", "read_notes"]


class Notes:
    """A file of events; another life of its process goes on in it. Any thread."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        # A line that a kill cut off says nothing.
        whole = os.pread(self._file, os.fstat(self._file).st_size, 0).rfind(b"\n") + 1
        os.ftruncate(self._file, whole)

    def note(self, event: str, **fields: Any) -> None:
        """Write an event, in one piece."""
        line = {"event": event, "at": time.monotonic(), **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_notes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was written whole."""
    for line in path.read_text().split("\n")[:-1]:
        yield json.loads(line)
