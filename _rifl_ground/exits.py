"""Exit codes of the command."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What the command ends with."""

    DONE = 0
    UNAVAILABLE = 1
    USAGE = 2
    GONE = 3
    NOT_FOUND = 4
    MISSING_EXTRA = 5
    DAMAGED = 6
    # As shells have it: 128 and the signal.
    INTERRUPTED = 130
    TERMINATED = 143


class CommandRefused(Exception):
    """A command that cannot be done: its line and its exit code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        """``message``: one line."""
        super().__init__(message)
        self.code = code
