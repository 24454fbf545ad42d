"""Model of the world: a session of the database that has the log (DESIGN-LOG §12).

What a transaction writes, its own row and what it appends, is one step of the log's engine, when it
commits. From the append on the log is locked, until the transaction ends: with its client, too, and
where that says nothing for long.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.log.cast import Cast
from chaos.sim.loop import Process
from sharedlog._core.commit import Commit, Put
from sharedlog._core.errors import LogError, LogUnavailable
from sharedlog._core.steps import Lsns
from sharedlog._core.within import Within, append_within

__all__ = ["Session"]

_TIMEOUT_S = 0.3
_HANG_S = 0.25
Told = Callable[[Any, LogError | None], None]


class Session:
    """One connection, with one transaction; a new one is made after any error."""

    def __init__(self, cast: Cast, dice: Random, process: Process) -> None:
        """``dice``: the application's, so that no other dice fall otherwise."""
        self._cast = cast
        self._dice = dice
        self._process = process
        self._life = cast.server.lives
        self._over = False
        # What is committed with the transaction, once it has appended.
        self._writes: Commit | None = None

    def ask(self, what: Callable[[], Any], done: Told, *, writes: bool = False) -> None:
        """Have something done there; ``done`` gets the result, or that no answer came.

        ``writes``: it waits for who has the log locked.
        """
        reply = _Once(done)
        self._process.after(_TIMEOUT_S, reply.end, None, LogUnavailable("timed out"))
        if not self._lost():
            self._cast.loop.after(self._travels(), self._arrive, what, reply, writes)

    def append(self, row: str, within: Within) -> bool:
        """Write a row and append; False: the row is there. What is raised ends the transaction."""
        server = self._cast.server
        if row in server.log.keys:
            return False
        rule, answer = append_within(within), None
        while True:
            step = rule.send(answer)
            if isinstance(step, Commit):
                break
            answer = server.at_once(self._process, step, Point.APPEND_IN)
        server.locked = True
        # What its conditions say is so for as long as no other process writes.
        self._writes = Commit((), (*step.puts, Put(row, b"there")), step.entries)
        self._cast.loop.after(_HANG_S, self._end)
        return True

    def commit(self) -> Lsns:
        """Commit all of it."""
        writes = self._writes
        if writes is None:
            raise LogUnavailable("no transaction runs")
        found: Lsns = self._cast.server.at_once(self._process, writes, Point.APPEND_IN)
        self._end()
        return found

    def roll_back(self) -> None:
        """Commit nothing of it."""
        self._end()

    def close(self) -> None:
        """The client is gone, or done with it: the server learns that a little later."""
        self._cast.loop.after(self._travels(), self._end)

    def _end(self) -> None:
        if not self._gone():
            self._over = True
            if self._writes is not None:
                self._cast.server.unlock()

    def _gone(self) -> bool:
        return self._over or self._life != self._cast.server.lives

    def _arrive(self, what: Callable[[], Any], reply: _Once, writes: bool) -> None:
        loop, server = self._cast.loop, self._cast.server
        if self._gone():
            return
        if server.stalled_until > loop.now:
            self._cast.coverage.hit(Fault.STORE_STALL, Point.APPEND_IN)
            loop.at(server.stalled_until, None, self._arrive, what, reply, writes)
            return
        if writes and server.locked:
            server.behind.append(lambda: self._arrive(what, reply, writes))
            return
        answer, error = None, None
        try:
            answer = what()
        except LogError as raised:
            error = raised
            self._end()
        if not self._lost():
            self._process.after(self._travels(), reply.end, answer, error)

    def _travels(self) -> float:
        return 0.0001 + 0.002 * self._dice.random()

    def _lost(self) -> bool:
        server = self._cast.server
        if server.lossy_until <= self._cast.loop.now or self._dice.random() >= server.loss:
            return False
        self._cast.coverage.hit(Fault.STORE_LOSS, Point.APPEND_IN)
        return True


class _Once:
    """What one request gets, once."""

    def __init__(self, done: Told) -> None:
        self._done: Told | None = done

    def end(self, answer: Any, error: LogError | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(answer, error)
