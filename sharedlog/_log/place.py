"""The place of a log: what its parts need of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from _rifl_ground.forks import REMEDY
from sharedlog._core.calling import CalledRule
from sharedlog._core.commit import Commit, Refused
from sharedlog._core.errors import LogStopped, QuotaExceeded
from sharedlog._core.following import Follower, Start
from sharedlog._core.incarnation import bound, check_refused
from sharedlog._core.sealing import Seals
from sharedlog._core.steps import Rule, Step
from sharedlog._engines.driving import carry_out, do
from sharedlog._engines.elsewhere import Elsewhere
from sharedlog._engines.engine import Engine
from sharedlog._log.observing import LogObservers

_T = TypeVar("_T")
# Between attempts; each pause is twice as long as the one before.
SHORTEST_S, LONGEST_S = 0.01, 1.0


class Place(NamedTuple):
    """Where the log is, and how long is tried to learn what became of an append."""

    engine: Engine
    incarnation: str
    timeout_s: float
    # Set once the log is closed.
    closing: threading.Event
    # Its name in events and errors: without the secrets of its URL.
    name: str = ""
    observers: LogObservers | None = None
    seals: Seals | None = None

    def run(self, rule: Rule[_T]) -> _T:
        """Carry a rule out, in this thread.

        A call that the server's quota refuses is sent again until the log's timeout: a refused
        call has done nothing.
        """
        called = isinstance(rule, CalledRule) and isinstance(self.engine, Elsewhere)
        if not called:
            return self.attempt(rule)
        end, pause_s = time.monotonic() + self.timeout_s, SHORTEST_S
        while True:
            try:
                return self.attempt(rule)
            except QuotaExceeded:
                left_s = end - time.monotonic()
                if left_s <= 0:
                    raise
                self.closing.wait(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_S)

    def attempt(self, rule: Rule[_T]) -> _T:
        """Carry a rule out once, in this thread."""
        if self.observers is not None and isinstance(self.engine, Elsewhere):
            return self.observers.asked(self.engine, rule)
        return carry_out(self.engine, rule, self.act)

    def act(self, engine: Engine, step: Step) -> Any:
        """Carry one step out, in this thread.

        A commit raises ``LogForked``, and writes nothing, once the log is of another incarnation:
        it was restored and declared so since this handle was opened.
        """
        act = do if self.observers is None else self.observers.act
        if not isinstance(step, Commit):
            return act(engine, step)
        commit = bound(step, self.incarnation)
        try:
            return act(engine, commit)
        except Refused as refused:
            if commit is not step:
                check_refused(refused, self.incarnation)
            raise

    def of_player(self, player: str) -> Place:
        """Return the place for the rules of a player; "": for an operator of all players.

        Where a server has the log each step of theirs is a call, which the server judges.
        """
        if isinstance(self.engine, Elsewhere):
            return self._replace(engine=self.engine.steps(player))
        return self

    def refused(self, error: BaseException) -> None:
        """Tell those who watch that a message or a transaction has an error."""
        if self.observers is not None:
            self.observers.refused(error)

    def follower(
        self,
        tags: Sequence[str],
        start: Start,
        *,
        name: str | None,
        retention_us: int,
        committed: bool,
    ) -> Follower:
        """Return what reads on and on, by this place's ``run``; it has not begun."""
        made = self.engine.follower if isinstance(self.engine, Elsewhere) else Follower
        return made(
            tags,
            self.incarnation,
            start,
            name=name,
            retention_us=retention_us,
            committed=committed,
        )

    def refresh(self, follower: Follower) -> None:
        """Have the follower's next read return what is there by now, and not only what has come."""
        if isinstance(self.engine, Elsewhere):
            self.engine.refresh(follower)

    def wait(self, follower: Follower, timeout_s: float) -> bool:
        """Wait until there may be something more to read; False: the timeout has passed."""
        if isinstance(self.engine, Elsewhere):
            return self.engine.wait_for(follower, timeout_s)
        return self.engine.wait(follower.through, timeout_s) > follower.through

    def leave(self, follower: Follower) -> None:
        """A follower reads no more."""
        if isinstance(self.engine, Elsewhere):
            self.engine.leave(follower)


def forked() -> LogStopped:
    """Build what a forked child's use of its parent's log raises."""
    found = LogStopped(f"this log belongs to the parent process: {REMEDY}")
    found.appended = False
    return found
