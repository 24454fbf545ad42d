"""Exit codes of the commands, and the one line that an error is."""

from __future__ import annotations

import enum
import os
import sys


class ExitCode(enum.IntEnum):
    """What a command ends with."""

    DONE = 0
    UNAVAILABLE = 1
    USAGE = 2
    GONE = 3
    # By a process that lives.
    OWNED = 3
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


def failed(program: str, error: Exception, code: ExitCode = ExitCode.UNAVAILABLE) -> ExitCode:
    """Write why a command failed, in one line on standard error; return its exit code."""
    line = " ".join((str(error) or type(error).__name__).split())
    sys.stderr.write(f"{program}: {line}\n")
    return code


def unread() -> ExitCode:
    """End a command whose output pipe was closed, as in ``sharedlog read ... | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.DONE
