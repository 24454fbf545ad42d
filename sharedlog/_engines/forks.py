"""Refusals of an engine that a forked child inherits: what it holds is the parent's."""

from __future__ import annotations

from typing import Any

from _rifl_ground.forks import REMEDY, refuse_in_children
from sharedlog._core.errors import LogStopped


def belongs_here(engine: Any) -> None:
    """Have every public method of an engine but ``close`` raise ``LogStopped`` in children."""
    refuse_in_children(engine, _forked)


def _forked() -> LogStopped:
    found = LogStopped(f"this log belongs to the parent process: {REMEDY}")
    found.appended = False
    return found
