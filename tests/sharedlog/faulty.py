"""An engine that does not answer some of its commits, and a log over it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import sharedlog
from sharedlog._core.commit import Commit
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.named import append_named, decide_named
from sharedlog._core.producers import append
from sharedlog._core.spans import decide, pend
from sharedlog._core.steps import Lsns
from sharedlog._engines.elsewhere import Elsewhere
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


# What appends, of the rules that another process carries out.
_APPENDING = {each.__wrapped__ for each in (append, pend, decide, append_named, decide_named)}


class FaultyRemote(FaultyEngine, Elsewhere):
    """The same of a log that is served: replies that are lost on the way."""

    durability = limits = None

    def __init__(self, engine: Elsewhere) -> None:
        FaultyEngine.__init__(self, engine)
        self.durability, self.limits = engine.durability, engine.limits

    def ask(self, call: Any) -> Any:
        if call.function not in _APPENDING:
            return self.engine.ask(call)
        self.before(call)
        self.appends += 1
        fault = self.faults.pop(0) if self.faults else ""
        if isinstance(fault, LogError):
            raise fault
        if fault == "lost":
            raise LogUnavailable("no answer")
        found = self.engine.ask(call)
        if fault == "late":
            raise LogUnavailable("no answer")
        return found

    def steps(self, player: str) -> Any:
        return self.engine.steps(player)

    def follower(self, *args: Any, **named: Any) -> Any:
        return self.engine.follower(*args, **named)

    def refresh(self, follower: Any) -> None:
        self.engine.refresh(follower)

    def wait_for(self, follower: Any, timeout_s: float) -> bool:
        return self.engine.wait_for(follower, timeout_s)

    def leave(self, follower: Any) -> None:
        self.engine.leave(follower)

    def tail(self) -> int:
        return self.engine.tail()

    def first(self) -> int:
        return self.engine.first()

    def close(self) -> None:
        self.engine.close()


def faulty(log: Log, timeout: timedelta = timedelta(seconds=30)) -> tuple[Log, FaultyEngine]:
    """A second log over the engine of one that is open: close that one only."""
    engine: FaultyEngine = (
        FaultyRemote(log._engine)
        if isinstance(log._engine, Elsewhere)
        else FaultyEngine(log._engine)
    )
    place = Place(engine, log.incarnation, timeout.total_seconds(), threading.Event())
    return sharedlog.Log("faulty:", place), engine


@contextmanager
def answers_lost(log: Log) -> Iterator[None]:
    """Have nothing that is appended reach the log."""

    engine: Any = log._place.engine
    commit = engine.commit

    def lost(step: Commit) -> Any:
        if not step.entries:
            return commit(step)
        raise LogUnavailable("no answer")

    engine.commit = lost
    try:
        yield
    finally:
        del engine.commit
