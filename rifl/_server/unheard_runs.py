"""Runs on event loops that no caller waits for any more: cancelled, or counted (DESIGN §4)."""

from __future__ import annotations

import asyncio
from typing import Any

from _rifl_ground.loops import tell_loop
from rifl._stores.base import Store
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.room import overloaded
from rifl.core._serving.unheard import UnheardBound, cancelled_at, tried_until
from rifl.core._shared.call import Call


class UnheardRuns:
    """The runs of one coroutine handler that no caller waits for. On its loop.

    They are cancelled if there is no ``bound``; else it counts them.
    """

    def __init__(self, store: Store, policy: MethodPolicy, bound: UnheardBound | None) -> None:
        self.policy = policy
        self.bound = bound
        self._store = store

    def caller_left(self, attempt: Attempt, remaining_s: float | None) -> None:
        """Note that the caller of a call that is carried out has left, with so much time left."""
        if attempt.ended:
            return
        run = attempt.unheard = UnheardRun(attempt, remaining_s, self.bound)
        if self.bound is None or self._store.wait(attempt, run.ended):
            run.look()

    def place(self, call: Call, context: Any) -> FreePlace:
        """Return the place of an arrival: there is one, or it is refused."""
        return FreePlace(self, call, context)


class FreePlace:
    """A ``HandlerPlace`` that is not counted, but refused while too many run for no caller."""

    def __init__(self, runs: UnheardRuns, call: Call, context: Any) -> None:
        self.held = False
        self._runs = runs
        self._call = call
        self._context = context

    def enter(self) -> None:
        """Take it; raises ``Overloaded``."""
        bound, now = self._runs.bound, asyncio.get_running_loop().time()
        if bound is not None and bound.refuses(self._context.time_remaining(), now):
            why = f"{bound.running} handlers run for callers that have left"
            raise overloaded(why, self._call, self._runs.policy)
        self.held = True

    def leave(self, *, ran: bool = False) -> None:
        """Do nothing more: it is no one else's then."""
        self.held = False

    def quit(self) -> None:
        """Do nothing: no one waits for it."""


class UnheardRun:
    """A call whose own caller has left, on the loop of its handler.

    ``look`` is called there; the others in any thread.
    """

    def __init__(
        self, attempt: Attempt, remaining_s: float | None, bound: UnheardBound | None
    ) -> None:
        self.cancelled = False
        self._counted = False
        self._attempt = attempt
        self._bound = bound
        self._loop = asyncio.get_running_loop()
        self._until = tried_until(attempt.call, remaining_s, self._loop.time())

    def duplicate_came(self) -> None:
        """Note that a duplicate waits."""
        if self._bound is not None:
            tell_loop(self._loop, self._heard)

    def duplicate_left(self, call: Call, remaining_s: float | None) -> None:
        """Note that a duplicate waits no longer."""
        tell_loop(self._loop, self._left, call, remaining_s)

    def ended(self) -> None:
        """Note that the call has ended, if it may be counted."""
        tell_loop(self._loop, self._ended)

    def look(self) -> None:
        """Cancel the handler if it runs, and it is time, or count it; else look again then."""
        attempt, bound = self._attempt, self._bound
        at = cancelled_at(attempt, self._until)
        if attempt.ended or at is None or self.cancelled or self._counted:
            return
        if at > self._loop.time():
            self._loop.call_at(at, self.look)
        elif bound is not None:
            self._counted = True
            bound.left()
        elif (task := attempt.task) is not None:
            self.cancelled = True
            task.cancel()

    def look_soon(self) -> None:
        """Look again when the handler, which begins, awaits something."""
        self._loop.call_soon(self.look)

    def _left(self, call: Call, remaining_s: float | None) -> None:
        self._until = max(self._until, tried_until(call, remaining_s, self._loop.time()))
        self.look()

    def _heard(self) -> None:
        if self._counted and self._bound is not None:
            self._counted = False
            self._bound.heard()

    def _ended(self) -> None:
        if self._counted and self._bound is not None:
            self._counted = False
            self._bound.ended(self._loop.time())
