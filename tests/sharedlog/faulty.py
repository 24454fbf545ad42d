"""An engine that does not answer some of its commits, and a log over it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import sharedlog
from sharedlog._core.commit import Commit
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.steps import Lsns
from sharedlog._engines.engine import Engine
from sharedlog._log.log import Log
from sharedlog._log.place import Place


class FaultyEngine:
    """Another engine, whose commits meet what ``faults`` says, one for each that appends."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # "lost": not done, unanswered. "late": done, unanswered. "": as it is. An error: raised.
        self.faults: list[str | LogError] = []
        # Called before each commit that appends.
        self.before: Callable[[Commit], None] = lambda commit: None
        self.appends = 0

    def commit(self, commit: Commit) -> Lsns:
        if not commit.entries:
            return self.engine.commit(commit)
        self.before(commit)
        self.appends += 1
        fault = self.faults.pop(0) if self.faults else ""
        if isinstance(fault, LogError):
            raise fault
        if fault == "lost":
            raise LogUnavailable("no answer")
        found = self.engine.commit(commit)
        if fault == "late":
            raise LogUnavailable("no answer")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def faulty(log: Log, timeout: timedelta = timedelta(seconds=30)) -> tuple[Log, FaultyEngine]:
    """A second log over the engine of one that is open: close that one only."""
    engine = FaultyEngine(log._engine)
    place = Place(engine, log.incarnation, timeout.total_seconds(), threading.Event())
    return sharedlog.Log("faulty:", place), engine
