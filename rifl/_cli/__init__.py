"""The ``rifl`` command: what stores hold, and what to do about a stuck call."""

from rifl._cli.command import main
from rifl._cli.exits import ExitCode

__all__ = ["ExitCode", "main"]
