"""Model of the world: a server of SQL as PostgreSQL's, its sessions, transactions and row locks.

A session's transaction is what it has written: that is carried out anew, in a transaction of the
database's, for each of its statements, and committed with the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors
from psycopg.pq import ExecStatus

from chaos.sim.consumer.database import Database
from chaos.sim.consumer.names import TAGS
from chaos.sim.consumer.wire import Locked
from sharedlog._consumer import postgres
from sharedlog._consumer.call_rows import CALLS
from sharedlog._consumer.tables import POSTGRES, SQLITE
from sharedlog._core.commit import Refused

__all__ = ["Answer", "ServerSession", "SqlServer"]


class Answer(NamedTuple):
    """What a message is answered with, as libpq has it and as a cursor has it."""

    command_status: bytes = b""
    rows: Sequence[Any] = ()
    rowcount: int = -1
    status: ExecStatus = ExecStatus.COMMAND_OK


class ServerSession:
    """One session at the server. ``written``: in the transaction that runs; None: none does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: list[tuple[str, Sequence[Any]]] | None = None
        # A statement of the transaction has failed.
        self.failed = False

    def has_locked(self, tag: str) -> bool:
        """Whether its transaction has written a row of a shard that others write, too."""
        return any(tag in given and "INTO effect" not in text for text, given in self.written or ())


class SqlServer(Database):
    """The database, and the sessions that are open."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self.sessions: dict[str, ServerSession] = {}

    def begin_session(self) -> ServerSession:
        """Open a session."""
        self._count += 1
        session = ServerSession(f"s{self._count}")
        self.sessions[session.name] = session
        return session

    def restore(self) -> bool:
        """See ``Database``: the server starts anew."""
        self.sessions.clear()
        return super().restore()

    def ask(
        self,
        session: ServerSession,
        message: bytes,
        given: Sequence[Any],
        full: Callable[[], bool],
        append: Callable[[], Any] | None,
    ) -> Answer:
        """Answer a message of a session's; raises psycopg's errors, and ``Locked``.

        ``full``: whether there is no room for what is written. ``append``: to the log, in the
        database, with the commit.
        """
        if session.name not in self.sessions:
            raise errors.AdminShutdown("terminating connection due to administrator command")
        text = message.decode()
        kind = text.partition(" ")[0].rstrip(";")
        if kind == "ROLLBACK" or (kind == "COMMIT" and session.failed):
            session.written, session.failed = None, False
            return Answer(b"ROLLBACK")
        if session.failed:
            raise errors.InFailedSqlTransaction("current transaction is aborted")
        try:
            if kind == "BEGIN":
                session.written = []
            elif kind == "COMMIT":
                return self._commit(session, append)
            elif (known := _KNOWN.get(text)) is not None:
                return Answer(rows=[(known(self, *given[:1]),)])
            elif given:
                return self._execute(session, text, given, full)
        except psycopg.Error:
            session.failed = session.written is not None
            raise
        # It sets, checks or locks what nothing here depends on.
        return Answer()

    def _execute(
        self, session: ServerSession, text: str, given: Sequence[Any], full: Callable[[], bool]
    ) -> Answer:
        last = (_of_sqlite(text), given)
        before = [*(session.written or ())]
        if not text.startswith("SELECT"):
            tag = next(each for each in given if each in TAGS)
            others = [each for each in self.sessions.values() if each is not session]
            if "INTO effect" not in text and any(each.has_locked(tag) for each in others):
                raise Locked
            if full():
                raise errors.DiskFull("could not extend file: No space left on device")
            if session.written is not None:
                session.written.append(last)

        def work(execute: Any) -> Answer:
            for each in before:
                execute(*each)
            cursor = execute(*last)
            return Answer(rows=cursor.fetchall(), rowcount=cursor.rowcount)

        return self.carry(work, tries=session.written is not None)

    def _commit(self, session: ServerSession, append: Callable[[], Any] | None) -> Answer:
        written = session.written or ()

        def work(execute: Any) -> Any:
            for each in written:
                execute(*each)
            # The last: what is behind it does not fail.
            return None if append is None else append()

        try:
            found = self.carry(work)
        except Refused as refused:
            raise errors.RaiseException("the log has refused it") from refused
        session.written = None
        return Answer(b"COMMIT", found)


# Of the product's statements those that ask for what no table has.
_KNOWN: dict[str, Callable[..., Any]] = {
    f"SELECT to_regclass('{CALLS}')": lambda _: CALLS,
    postgres._THERE.decode(): lambda server, name: name in server.sessions,
    postgres._END.decode(): lambda server, name: server.sessions.pop(name, None) is not None,
}


def _of_sqlite(statement: str) -> str:
    """Return a statement as SQLite has it, which locks no rows."""
    found = statement.replace(POSTGRES.place, SQLITE.place).replace(POSTGRES.share, "")
    return found.replace(POSTGRES.bytes, SQLITE.bytes)
