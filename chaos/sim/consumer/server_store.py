"""Driver of the product's ``PostgresLane`` and of psycopg's connections, whose messages travel.

What is put in the place of the product's is what libpq has of a connection: the server at the other
end is ``SqlServer``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus

from _rifl_ground.postgres.marked import send
from chaos.sim.consumer.names import CONSUMER
from chaos.sim.consumer.sql_server import Answer, ServerSession, SqlServer
from chaos.sim.consumer.stage import Acting, Pointed, Stage
from chaos.sim.consumer.wire import Lost, Wire
from chaos.sim.faults import Fault, Point
from sharedlog._consumer.joined_append import Together
from sharedlog._consumer.postgres import HandlerCursor, PostgresLane
from sharedlog._consumer.postgres_session import NotedConnection, StoreSession
from sharedlog._core.commit import Commit, Refused
from sharedlog._core.consumer.one_file import InOneDatabase
from sharedlog._core.steps import Lsns

__all__ = ["ServerStore"]

_T = TypeVar("_T")
# How long a server has a session whose client is gone, at most.
_NOTICED_S = 1.0


class ServerStore(Pointed, PostgresLane):
    """The store of one life of a process."""

    def __init__(self, cast: Stage, actor: Acting, database: SqlServer, wire: Wire) -> None:
        self._cast = cast
        self._actor = actor
        self._database = database
        self._wire = wire
        with self.about(Point.STORE_TAKEN):
            super().__init__("postgresql://simulated", CONSUMER)

    def joined(self, engine: Any) -> Together | None:
        """See ``PostgresLane``: the log is in the database."""
        engine.joined_commits = _JoinedCommits()
        within = partial(self._append_within, engine)
        joined = self._cast.setup.joined
        return Together(within, InOneDatabase, alone=False) if joined else None

    def ask(self, do: Callable[[], _T]) -> _T:
        """Have the server do something; raises psycopg's errors."""
        try:
            found: _T = self._wire.ask(self._actor, self.point, do)
        except Lost as error:
            raise psycopg.OperationalError("the store does not answer") from error
        return found

    def answers(self, session: ServerSession, message: bytes, given: Any) -> Callable[[], Answer]:
        """Return what has the server answer a message, once it is there."""
        cast, point, append = self._cast, self.point, None
        if isinstance(message, _Ending):
            process, commit = self._actor.process, message.commit
            append = partial(cast.server.at_once, process, commit, Point.NAMED)

        def full() -> bool:
            found = cast.full_until > cast.loop.now
            if found:
                cast.coverage.hit(Fault.FULL_DISK, point)
            return found

        return partial(self._database.ask, session, message, given, full, append)

    def leave(self, session: ServerSession) -> None:
        """Have the server find out, in a while, that a client is gone."""
        after_s = _NOTICED_S * self._cast.random.random()
        self._cast.loop.after(after_s, self._database.sessions.pop, session.name, None)

    def _connected(self, *_: Any) -> StoreSession:
        session = self.ask(self._database.begin_session)
        connection = _Connection(_End(self, session))
        return StoreSession(connection, session.name, pooled=False, look=lambda _: None)

    def _opened(self) -> psycopg.Connection[Any]:
        connection = super()._opened()
        connection.cursor_factory = _HandlersCursor
        return connection


class _End:
    """What libpq has of a connection: a client's end of it."""

    def __init__(self, store: ServerStore, session: ServerSession) -> None:
        self.status = ConnStatus.OK
        # In place of what ``psycopg.generators.execute`` makes of it.
        self.sent: tuple[bytes, tuple[()]] = (b"", ())
        self._store = store
        self._session = session

    @property
    def transaction_status(self) -> TransactionStatus:
        """As the last answer has told."""
        if self.status is ConnStatus.BAD:
            return TransactionStatus.UNKNOWN
        if self._session.failed:
            return TransactionStatus.INERROR
        runs = self._session.written is not None
        return TransactionStatus.INTRANS if runs else TransactionStatus.IDLE

    def send_query(self, message: bytes) -> None:
        """Take a message without parameters."""
        self.sent = (message, ())

    def carry(self, message: bytes, given: Any) -> list[Answer]:
        """Send a message, and wait for its answer."""
        try:
            return [self._store.ask(self._store.answers(self._session, message, given))]
        except psycopg.OperationalError as error:
            if error.sqlstate is None or error.sqlstate.startswith("57P"):
                self.finish()
            raise

    def finish(self) -> None:
        """Close it; idempotent."""
        if self.status is ConnStatus.OK:
            self.status = ConnStatus.BAD
            self._store.leave(self._session)


class _Travelling(psycopg.Connection[Any]):
    """Whose messages travel, and whose thread parks."""

    def __init__(self, end: Any) -> None:
        super().__init__(end)
        self.cursor_factory = _Cursor

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        """Send what is given, and wait until it is answered."""
        end: Any = self.pgconn
        return end.carry(*gen)

    def rollback(self) -> None:
        """Roll back what is open."""
        if self.info.transaction_status is not TransactionStatus.IDLE:
            send(self, b"ROLLBACK")

    def __del__(self, *_: Any) -> None:
        """Say nothing: its process was killed."""


class _Connection(NotedConnection, _Travelling):
    """The product's."""


class _Cursor(psycopg.Cursor[Any]):
    """Whose statements travel, and whose rows are what was answered."""

    def __init__(self, connection: Any, **_: Any) -> None:
        self._conn = connection
        self._closed = False
        self._rows: list[tuple[Any, ...]] = []

    def execute(self, query: Any, given: Any = (), **_: Any) -> Any:  # type: ignore[override]
        """See ``psycopg.Cursor``."""
        asked: Any = query if isinstance(query, bytes) else query.encode(), given
        (answer,) = self._conn.wait(asked)
        self._rows, self._rowcount = list(answer.rows), answer.rowcount
        return self

    def fetchone(self) -> Any:
        """See ``psycopg.Cursor``."""
        return self._rows.pop(0) if self._rows else None

    def fetchall(self) -> Any:
        """See ``psycopg.Cursor``."""
        return self._rows

    def close(self) -> None:
        """See ``psycopg.Cursor``."""


class _HandlersCursor(HandlerCursor, _Cursor):
    """The product's."""


class _Ending(bytes):
    """A COMMIT, with a commit of the log's."""

    commit: Commit


class _JoinedCommits:
    """See ``JoinedCommits``: what ends a transaction is the model's, and no SQL."""

    def ending(self, commit: Commit) -> bytes:
        """Return what ends a transaction with a commit."""
        message = _Ending(b"COMMIT")
        message.commit = commit
        return message

    def lsns(self, results: list[Any]) -> Lsns:
        """Return which it got."""
        return Lsns(*results[-1].rows)

    def refusal(self, error: psycopg.Error, _: Commit) -> Exception | None:
        """Return what refused it."""
        return error.__cause__ if isinstance(error.__cause__, Refused) else None
