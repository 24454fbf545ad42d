"""The ``rifl`` command: what stores hold, and what to do about a stuck call."""

from rifl.cli.command import main
from rifl.cli.exits import ExitCode

__all__ = ["ExitCode", "main"]
