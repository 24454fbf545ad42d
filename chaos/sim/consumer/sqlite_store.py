"""Driver of the product's ``SqliteLane``, over a file in memory that several processes have.

What is put in the place of the product's is a connection, which waits in virtual time: for the
file's lock, and for the disk as it commits, where faults strike.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from _rifl_ground.sqlite.guard import FileGuard
from chaos.sim.consumer.database import Database
from chaos.sim.consumer.engine import SimulatedEngine
from chaos.sim.consumer.names import CONSUMER
from chaos.sim.consumer.stage import Acting, Pointed, Stage
from chaos.sim.consumer.wire import Wire
from chaos.sim.faults import Fault, Point
from sharedlog._consumer.joined_append import Together
from sharedlog._consumer.sqlite import BEGIN, COMMIT, HandlersConnection, SqliteLane
from sharedlog._core.consumer.one_file import InOneFile
from sharedlog._core.errors import LogError
from sharedlog._core.steps import Rule, Step
from sharedlog._engines.driving import carry_out

__all__ = ["FileStore"]

_BUSY_S, _AGAIN_S = 5.0, 0.003
# What a commit takes, and what its process takes then until it goes on.
_STEP_S = 0.001


class FileStore(Pointed, SqliteLane):
    """The store of one life of a process."""

    def __init__(self, cast: Stage, actor: Acting, database: Database, wire: Wire) -> None:
        self._cast = cast
        self._actor = actor
        self._database = database
        self._wire = wire
        # Where the log is in the file: what is appended by the next commit.
        self._append: Rule[Any] | None = None
        path = Path("simulated.db")
        with self.about(Point.STORE_TAKEN):
            super().__init__(path, CONSUMER, guard=_Guard(path))

    def joined(self, _: Any) -> Together | None:
        """See ``SqliteLane``: what is appended is in the file with the commit."""
        return Together(self._keep, InOneFile, alone=True) if self._cast.setup.joined else None

    def _keep(self, _: str, append: Rule[Any]) -> None:
        self._append = append

    def rollback(self) -> None:
        """See ``Store``."""
        self._append = None
        super().rollback()

    def _connected(self) -> HandlersConnection:
        connection = self._database.connect(_Connection)
        self._actor.opened.append(connection.end)
        connection.begins, connection.commits = self._begin, self._commit_it
        return connection

    def _begin(self, begin: Callable[[], Any]) -> Any:
        """Wait for the file's lock, as SQLite does."""
        cast, strand = self._cast, self._cast.strands.current
        strand.check()
        until = cast.loop.now + _BUSY_S
        while True:
            try:
                return begin()
            except sqlite3.OperationalError:
                if cast.loop.now >= until:
                    raise
            strand.sleep(_AGAIN_S)

    def _commit_it(self, end: Callable[[str], Any]) -> Any:
        """Commit; the process may be killed before and after it is there."""
        cast, strand, point = self._cast, self._cast.strands.current, self.point
        with self._actor.at(point):
            cast.reached(self._actor, point)
            strand.sleep(_STEP_S * cast.random.random())
            if cast.full_until > cast.loop.now:
                cast.coverage.hit(Fault.FULL_DISK, point)
                raise _error("database or disk is full", sqlite3.SQLITE_FULL)
            lost = self._wire.lossy_until > cast.loop.now
            if lost and cast.random.random() < 0.2:
                end("ROLLBACK")
                raise self._lost(point)
            append, self._append = self._append, None
            found = end(COMMIT)
            if append is not None:
                with self._database.unless(LogError):
                    carry_out(SimulatedEngine(cast, self._actor), append, self._at_once)
            self._database.changed()
            if lost and cast.random.random() < 0.2:
                # What is on the disk is not known.
                raise self._lost(point)
            strand.sleep(_STEP_S * cast.random.random())
        return found

    def _at_once(self, _: Any, step: Step) -> Any:
        return self._cast.server.at_once(self._actor.process, step, Point.NAMED)

    def _lost(self, point: Point) -> sqlite3.Error:
        self._cast.coverage.hit(Fault.STORE_LOSS, point)
        return _error("disk I/O error", sqlite3.SQLITE_IOERR)


class _Connection(HandlersConnection):
    """A connection that asks before it waits."""

    begins: Callable[[Callable[[], Any]], Any]
    commits: Callable[[Callable[[str], Any]], Any]

    def end(self) -> None:
        """Be closed by the kernel, which frees its locks; its process is dead."""
        with suppress(sqlite3.ProgrammingError):
            self.set_authorizer(None)
            # A cursor that was not read to its end would keep the transaction.
            sqlite3.Connection.rollback(self)
            sqlite3.Connection.close(self)

    def execute(self, *given: Any) -> Any:
        """See ``sqlite3.Connection``."""
        run = super().execute
        if given[0] == BEGIN:
            return self.begins(lambda: run(*given))
        if given[0] == COMMIT:
            return self.commits(run)
        return run(*given)


class _Guard(FileGuard):
    """It is the file that it was: there is no other one."""

    def opened(self, connection: sqlite3.Connection) -> None:
        """See ``FileGuard``."""

    def begun(self, connection: sqlite3.Connection) -> None:
        """See ``FileGuard``."""


def _error(text: str, code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
