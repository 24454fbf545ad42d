"""The ``rifl`` command: what stores hold, and what to do about a stuck call."""

from rifl.cli.command import ExitCode, main

__all__ = ["ExitCode", "main"]
