"""Runs on event loops that no caller waits for any more: they are cancelled (DESIGN §4)."""

from __future__ import annotations

import asyncio

from _rifl_ground.loops import tell_loop
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.unheard import cancelled_at, tried_until
from rifl.core._shared.call import Call


class UnheardRun:
    """A call whose own caller has left, on the loop of its handler.

    ``look`` and ``left`` are called there; ``duplicate_left`` in any thread.
    """

    def __init__(self, attempt: Attempt, call: Call, remaining_s: float | None) -> None:
        self.cancelled = False
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._until = tried_until(call, remaining_s, self._loop.time())
        attempt.unheard = self
        self.look()

    def duplicate_left(self, call: Call, remaining_s: float | None) -> None:
        """Note that a duplicate waits no longer."""
        tell_loop(self._loop, self._left, call, remaining_s)

    def look_soon(self) -> None:
        """Look again when the handler, which begins, awaits something."""
        self._loop.call_soon(self.look)

    def look(self) -> None:
        """Cancel the handler if it runs, and it is time; else look again then."""
        attempt = self._attempt
        at = cancelled_at(attempt, self._until)
        task = attempt.task
        if task is None or self.cancelled or at is None:
            return
        if at > self._loop.time():
            self._loop.call_at(at, self.look)
            return
        self.cancelled = True
        task.cancel()

    def _left(self, call: Call, remaining_s: float | None) -> None:
        self._until = max(self._until, tried_until(call, remaining_s, self._loop.time()))
        self.look()
