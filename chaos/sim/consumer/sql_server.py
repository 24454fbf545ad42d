"""Model of the world: a server of SQL as PostgreSQL's, its sessions, transactions and row locks.

A session's transaction is what it has written: it is carried out again, in a transaction of the
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

_WRITES = ("INSERT", "UPDATE", "DELETE")
_READS = "SELECT"


class Answer(NamedTuple):
    """What a statement is answered with, as libpq has it and as a cursor has it."""

    command_status: bytes = b""
    rows: Sequence[tuple[Any, ...]] = ()
    rowcount: int = -1
    status: ExecStatus = ExecStatus.COMMAND_OK


class ServerSession:
    """One session at the server. ``written``: in the transaction that runs; None: none does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.written: list[tuple[str, Sequence[Any]]] | None = None
        # A statement of the transaction has failed.
        self.failed = False


class SqlServer(Database):
    """The database, and who has what open."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._sessions: dict[str, ServerSession] = {}
        # Whose transaction has written a shard's rows.
        self._locks: dict[str, ServerSession] = {}

    def begin_session(self) -> ServerSession:
        """Open a session."""
        self._count += 1
        session = ServerSession(f"s{self._count}")
        self._sessions[session.name] = session
        return session

    def end_session(self, name: str) -> None:
        """End a session, and what it has open; idempotent."""
        session = self._sessions.pop(name, None)
        if session is not None:
            self._unlock(session)

    def restore(self) -> bool:
        """See ``Database``: the server starts anew."""
        for each in list(self._sessions):
            self.end_session(each)
        return super().restore()

    def ask(
        self,
        session: ServerSession,
        statement: bytes,
        given: Sequence[Any],
        full: Callable[[], bool],
        append: Callable[[], Any] | None,
    ) -> Answer:
        """Answer a message of a session's; raises psycopg's errors, and ``Locked``.

        ``full``: whether there is no room for what is written. ``append``: to the log, in the
        database, with the commit.
        """
        if session.name not in self._sessions:
            raise errors.AdminShutdown("terminating connection due to administrator command")
        text = statement.decode()
        kind = text.partition(" ")[0].rstrip(";")
        if kind == "ROLLBACK" or (kind == "COMMIT" and session.failed):
            self._over(session)
            return Answer(b"ROLLBACK")
        if session.failed:
            raise errors.InFailedSqlTransaction("current transaction is aborted")
        if kind == "BEGIN":
            session.written = []
            return Answer()
        try:
            if kind == "COMMIT":
                return self._commit(session, append)
            if (known := _KNOWN.get(text)) is not None:
                return Answer(rows=[known(self, *given[:1])])
            if kind not in (*_WRITES, _READS) or not given:
                # It sets, checks or locks what nothing here depends on.
                return Answer()
            return self._execute(session, text, given, full)
        except psycopg.Error:
            session.failed = session.written is not None
            raise

    def _execute(
        self, session: ServerSession, text: str, given: Sequence[Any], full: Callable[[], bool]
    ) -> Answer:
        writes = not text.startswith(_READS)
        tag = next(each for each in given if each in TAGS)
        # Who inserts a row of its own waits for no other one.
        if writes and "INTO effect" not in text:
            if self._locks.get(tag, session) is not session:
                raise Locked("until that transaction is over")
            if session.written is not None:
                self._locks[tag] = session
        if writes and full():
            raise errors.DiskFull("could not extend file: No space left on device")
        last = (_of_sqlite(text), given)
        if session.written is None:
            return self.carry(lambda execute: _answer(execute(*last)))
        found = self.tried([*session.written, last])
        if writes:
            session.written.append(last)
        return found

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
        self._over(session)
        return Answer(b"COMMIT", found)

    def tried(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> Answer:
        """Return what the last of some statements is answered in a transaction of them all."""
        connection = self._connection
        connection.execute("BEGIN")
        try:
            for each in statements[:-1]:
                connection.execute(*each)
            return _answer(connection.execute(*statements[-1]))
        finally:
            connection.execute("ROLLBACK")

    def _over(self, session: ServerSession) -> None:
        session.written, session.failed = None, False
        self._unlock(session)

    def _unlock(self, session: ServerSession) -> None:
        for tag in [tag for tag, each in self._locks.items() if each is session]:
            del self._locks[tag]

    def _has(self, name: str) -> tuple[bool]:
        return (name in self._sessions,)

    def _ended(self, name: str) -> tuple[bool]:
        self.end_session(name)
        return (True,)


# Of the product's statements those that ask for what no table has.
_KNOWN: dict[str, Callable[..., tuple[Any, ...]]] = {
    f"SELECT to_regclass('{CALLS}')": lambda _: (CALLS,),
    postgres._THERE.decode(): SqlServer._has,
    postgres._END.decode(): SqlServer._ended,
}


def _answer(cursor: Any) -> Answer:
    rows = cursor.fetchall()
    return Answer(rows=rows, rowcount=cursor.rowcount)


def _of_sqlite(statement: str) -> str:
    """Return a statement as SQLite has it, which locks no rows."""
    found = statement.replace(POSTGRES.place, SQLITE.place).replace(POSTGRES.share, "")
    return found.replace(POSTGRES.bytes, SQLITE.bytes)
