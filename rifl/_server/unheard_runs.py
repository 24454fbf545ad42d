"""Runs on event loops that no caller waits for any more: cancelled, or counted (DESIGN §4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from _rifl_ground.loops import tell_loop
from rifl._stores.base import Store
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.room import overloaded
from rifl.core._serving.unheard import (
    RunBound,
    cancelled_at,
    is_over,
    may_be_cancelled,
    tried_until,
)
from rifl.core._shared.call import Call


class UnheardRuns:
    """The runs of one method's coroutine handlers that no caller waits for. Any thread.

    ``cancels``: they are cancelled; else they go on, ``bound`` counts them, and ``told`` hears of
    each.
    """

    def __init__(
        self, store: Store, policy: MethodPolicy, told: Callable[[Call], None] = lambda _: None
    ) -> None:
        self.policy = policy
        self.told = told
        self.cancels = store.cancels_handlers and may_be_cancelled(policy)
        self.bound = RunBound(policy.max_unheard)
        # Of ``bound``: loops may share it.
        self.lock = threading.Lock()
        self._store = store

    def caller_left(
        self, attempt: Attempt, remaining_s: float | None, place: RunPlace | None = None
    ) -> None:
        """Note that the caller of a call that is carried out has left, with so much time left."""
        if attempt.ended:
            return
        run = attempt.unheard = UnheardRun(self, attempt, remaining_s, place)
        if self.cancels or self._store.wait(attempt, run.ended):
            run.look()

    def place(self, call: Call, context: Any) -> RunPlace:
        """Return the place of an arrival, while runs are counted."""
        return RunPlace(self, call, context.time_remaining())


class RunPlace:
    """A ``HandlerPlace`` that is counted, and refused while too many run."""

    def __init__(self, runs: UnheardRuns, call: Call, remaining_s: float | None) -> None:
        self.held = False
        self.late = False
        self.time_s = remaining_s
        if remaining_s is not None:
            self.time_s = max(remaining_s, call.try_ms / 1000)
        self._runs = runs
        self._call = call

    def enter(self) -> None:
        """Take it; raises ``Overloaded``."""
        bound = self._runs.bound
        with self._runs.lock:
            begins = bound.begin(self.time_s, _now())
            why = f"{bound.running} handlers run, {bound.unheard} of them for no caller"
        if not begins:
            raise overloaded(why, self._call, self._runs.policy)
        self.held = True

    def leave(self, *, ran: bool = False) -> None:
        """Be counted no longer."""
        if self.held:
            self.held = False
            with self._runs.lock:
                self._runs.bound.end(_now(), ran=ran, late=self.late)

    def quit(self) -> None:
        """Do nothing: no one waits for it."""


class UnheardRun:
    """A call whose own caller has left, on the loop of its handler.

    ``look`` is called there; the others in any thread. ``place``: it was counted when it began.
    """

    def __init__(
        self,
        runs: UnheardRuns,
        attempt: Attempt,
        remaining_s: float | None,
        place: RunPlace | None,
    ) -> None:
        self.cancelled = False
        self._unheard = False
        self._runs = runs
        self._attempt = attempt
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._over = is_over(attempt.call, remaining_s)
        self._until = tried_until(attempt.call, remaining_s, self._loop.time())

    def duplicate_came(self) -> None:
        """Note that a duplicate waits."""
        if not self._runs.cancels:
            tell_loop(self._loop, self._heard)

    def duplicate_left(self, call: Call, remaining_s: float | None) -> None:
        """Note that a duplicate waits no longer."""
        tell_loop(self._loop, self._left, call, remaining_s)

    def ended(self) -> None:
        """Note that the call has ended, if it may be counted."""
        tell_loop(self._loop, lambda: self._heard(self._loop.time()))

    def look(self) -> None:
        """Cancel the handler if it runs, and it is time, or count it; else look again then."""
        attempt, runs = self._attempt, self._runs
        at = cancelled_at(attempt, self._until)
        if attempt.ended or at is None or self.cancelled or self._unheard:
            return
        if at > self._loop.time():
            self._loop.call_at(at, self.look)
        elif not runs.cancels:
            self._unheard = True
            self._note_late()
            with runs.lock:
                runs.bound.left(counted=self._place is not None)
            runs.told(attempt.call)
        elif (task := attempt.task) is not None:
            self.cancelled = True
            self._note_late()
            task.cancel()

    def look_soon(self) -> None:
        """Look again when the handler, which begins, awaits something."""
        self._loop.call_soon(self.look)

    def _note_late(self) -> None:
        place = self._place
        if not self._over or (place is not None and place.late):
            return
        if place is not None:
            place.late = True
        with self._runs.lock:
            self._runs.bound.too_late(None if place is None else place.time_s, self._loop.time())

    def _left(self, call: Call, remaining_s: float | None) -> None:
        self._over = is_over(call, remaining_s)
        self._until = max(self._until, tried_until(call, remaining_s, self._loop.time()))
        self.look()

    def _heard(self, ended_at: float | None = None) -> None:
        if self._unheard:
            self._unheard = False
            with self._runs.lock:
                self._runs.bound.heard(counted=self._place is not None, ended_at=ended_at)


def _now() -> float:
    return asyncio.get_running_loop().time()
