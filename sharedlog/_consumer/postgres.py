"""A consumer's store in a PostgreSQL database, which is the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from _rifl_ground.counting import AFTER_ANOTHER, Counts, by_sqlstate, is_noted, noted
from _rifl_ground.forks import refuse_in_children
from _rifl_ground.loans import Loan
from _rifl_ground.postgres.lent import LentConnection, LentCursor, take_back
from _rifl_ground.postgres.marked import check_committed, hold, let_go, mark_open, send
from _rifl_ground.postgres.owned import TransactionMark, is_ended
from sharedlog._consumer.call_rows import CALLS, CallRows
from sharedlog._consumer.configuring import Configure
from sharedlog._consumer.joined_append import Held, JoinedAppend, Together
from sharedlog._consumer.lending import handler_ended
from sharedlog._consumer.postgres_session import StoreSession, opened
from sharedlog._consumer.savepoints import sql_savepoint
from sharedlog._consumer.sqlalchemy import Alchemy
from sharedlog._consumer.tables import POSTGRES, Execute, Table
from sharedlog._core.commit import Refused
from sharedlog._core.consumer.asked import Failed, Unit
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.one_file import InOneDatabase
from sharedlog._core.errors import InvalidRequest, LogError, NotDurable, StoreAway
from sharedlog._core.position import Position
from sharedlog._core.steps import Rule
from sharedlog._engines.driving import do
from sharedlog._engines.engine import Engine
from sharedlog._engines.postgres.engine import PostgresEngine
from sharedlog._engines.postgres.joined_commits import JoinedCommits
from sharedlog._log.place import forked


class HandlerCursor(LentCursor):
    """Raises ``InvalidRequest`` for what would end the consumer's transaction, or run outside."""

    refused = InvalidRequest
    lender = "the consumer"


def commit_with(
    connection: psycopg.Connection[Any], commits: JoinedCommits, append: JoinedAppend
) -> Held:
    """Commit a connection's transaction with an append; what the append's keys hold then.

    Raises why nothing of either is there; psycopg's errors where it was something else, or where
    that is not known.
    """
    if append.commit is None:
        raise AssertionError("it is in the log")
    try:
        lsns = commits.lsns(send(connection, commits.ending(append.commit)))
    except psycopg.Error as error:
        found = commits.refusal(error, append.commit)
        if isinstance(found, Refused):
            found = append.refused(found)
        if found is None:
            raise
        raise found from error
    let_go(connection)
    return append.left(lsns)


# How long a statement of a lane waits for a lock.
LANE_WAITS_MS = 1000
# How long a take-over waits for another session's transaction before it says so and tries again.
_WAIT = b"SET LOCAL lock_timeout = '2s'"
# Of two that make the table at once, one waits.
_LOCK = b"SELECT pg_advisory_xact_lock(hashtextextended('sharedlog_consumer', 0))"
# Between the sessions that a row names.
_AND = ", "
# Of another role's it is not said when it began.
_THERE = (
    b"SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = split_part(%s, ' ', 1)::int "
    b"AND coalesce(pid || ' ' || backend_start = %s, true)"
)
_END = (
    b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    b"WHERE pid || ' ' || backend_start = %s AND pid <> pg_backend_pid()"
)


class _Shared:
    """What the lanes of one process have in common."""

    def __init__(self) -> None:
        # Shards that have calls whose messages are not done.
        self.calling: set[str] = set()
        # Of shards: what their keys in the log hold since the last commit that appended to it.
        self.held: dict[str, Held] = {}
        # What the server calls the lanes' sessions, and those that were lost.
        self.sessions: set[str] = set()
        self.lost: set[str] = set()


class PostgresLane:
    """A store in PostgreSQL. A lane is a session; a take-over ends a dead process's, if it may."""

    def __init__(
        self,
        url: str,
        name: str,
        configure: Configure | None = None,
        shared: _Shared | None = None,
    ) -> None:
        """``name``: the consumer's. The table is made where there is none.

        ``configure``: called with each connection that handlers use. ``shared``: with
        the other lanes.
        """
        self._name = name
        # Where others run beside it: an async function that waits for a lock keeps the event loop
        # from the one that has the lock.
        self._waits_ms = 0 if shared is None else LANE_WAITS_MS
        self._shared = shared or _Shared()
        self._url = url
        self._configure = configure
        # What handlers' rows are made by, as it was configured.
        self._row_factory: Any = tuple_row
        self._table = Table(name, POSTGRES)
        self._calls = CallRows(name, POSTGRES)
        # For what is kept of calls while a handler's transaction runs.
        self._aside: psycopg.Connection[Any] | None = None
        # Where a handler uses it.
        self._alchemy: Alchemy | None = None
        self._connection: psycopg.Connection[Any] | None = None
        # What the handler that runs was lent; whether what the last one left running overran.
        self._lent: LentConnection | None = None
        self._overran = False
        # Of the transaction that runs, if one does.
        self._mark: TransactionMark | None = None
        # The session's, which handlers must leave unchanged.
        self._settings: tuple[tuple[str, bytes], ...] = ()
        # What the server calls our session.
        self._session = ""
        # Of the newest connection.
        self._look: Callable[[psycopg.Connection[Any]], None] | None = None
        # The SQLSTATE of what a statement failed by last in the transaction that runs.
        self._failed_by: str | None = None
        # What each transaction begins with behind a pooler.
        self._beginning = b""
        # What is appended to the log with the commit of the transaction that runs.
        self._append: tuple[JoinedCommits, JoinedAppend] | None = None
        with self._working() as execute:
            if execute(f"SELECT to_regclass('{CALLS}')", ()).fetchone()[0] is None:
                execute(_LOCK.decode(), ())
                execute(self._table.create, ())
                execute(self._calls.create, ())

    def lane(self) -> PostgresLane:
        """Return another lane, or None if the store cannot have one."""
        return PostgresLane(self._url, self._name, self._configure, self._shared)

    def joined(self, engine: Engine) -> Together | None:
        """Return how this and the log of an engine commit together; None: they do not.

        The log is in this database, and this role's to append to.
        """
        if not isinstance(engine, PostgresEngine):
            return None
        with self._errors():
            if not engine.joined_commits.reached_by(self._opened()):
                return None
        return Together(partial(self._append_within, engine), InOneDatabase, alone=False)

    def take(self, tag: str, number: int, *, gone: Gone, anew: bool) -> Checkpoint:
        """Take the shard. Its row names the sessions of all lanes: the shard may be in any."""
        shared = self._shared
        shared.held.pop(tag, None)
        with self._working() as execute:
            # Another session may have locked the whole table.
            execute(_WAIT.decode(), ())
            before = self._table.session(execute, tag)
        if gone is Gone.TAKEN and before and not any(map(self._is_there, before.split(_AND))):
            gone = Gone.DIED
        ended = {*shared.lost, *(before.split(_AND) if gone else ())} - shared.sessions
        for each in ended - {""}:
            self._end(each)
        shared.lost -= ended
        with self._working() as execute:
            execute(_WAIT.decode(), ())
            sessions = _AND.join(sorted(shared.sessions))
            return self._table.take(execute, tag, number, gone=gone, anew=anew, session=sessions)

    def note(self, tag: str, number: int, attempts: int) -> None:
        """Note attempts, durably, if the fence has the number."""
        with self._working() as execute:
            self._table.note(execute, tag, number, attempts)

    def rewind(self, tag: str, number: int, epoch: int, position: Position | None) -> None:
        """Set the position in a new epoch, if the fence has the number."""
        with self._working() as execute:
            self._table.rewind(execute, tag, number, epoch, position)
            self._calls.forget(execute, tag)

    def calls(self, tag: str) -> Sequence[HandlerCall]:
        """Return the kept calls of a shard, by their serials (T6)."""
        with self._working() as execute:
            found = self._calls.read(execute, tag)
        self._has_calls(tag, bool(found))
        return found

    def intend(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call, durably, apart from the transaction that runs."""
        self._has_calls(tag, True)
        with self._apart() as execute:
            if not self._calls.intend(execute, tag, number, call):
                raise self._table.fenced(execute, tag, number)

    def answered(self, tag: str, number: int, call: HandlerCall) -> None:
        """Keep a call's answer, durably, if the fence has the number."""
        with self._apart() as execute:
            if not self._calls.answered(execute, tag, number, call):
                raise self._table.fenced(execute, tag, number)

    def written(self) -> None:
        """Do nothing: calls are kept by a session of their own."""

    def suspend(self) -> None:
        """Do nothing: a transaction does not block the sessions that keep calls."""

    def resume(self, *, read: bool) -> None:
        """Do nothing, as ``suspend``."""

    def _append_within(self, engine: PostgresEngine, tag: str, append: Rule[Any]) -> None:
        """Have a shard's append be in the transaction that runs; raises what ends it.

        It is sent with the commit: the log's row is locked by then, for all who append.
        """
        held = self._shared.held.pop(tag, None)
        joined = JoinedAppend(lambda step: do(engine, step), append, held)
        self._append = None if joined.commit is None else (engine.joined_commits, joined)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._errors():
            connection = self._opened()
            self._mark = mark_open(connection, TransactionMark.of_session(self._settings))
            hold(connection)
            self._failed_by = None
            if self._beginning:
                send(connection, self._beginning)

    def lend(self, loan: Loan) -> Any:
        """Return the connection that a handler uses, until the loan is over."""
        self._lent = LentConnection(self._opened(), loan)
        self._lent.row_factory = self._row_factory
        self._overran = False
        return self._lent

    def take_back(self) -> None:
        """End the loan: uses of the connection raise ``HandlerEnded``."""
        lent, self._lent = self._lent, None
        connection = self._connection
        if lent is not None and connection is not None:
            self._overran = not take_back(connection, lent.loan)
            connection.row_factory = tuple_row
            self._end_alchemy()

    def sqlalchemy(self) -> Any:
        """Return a ``sqlalchemy.Connection`` of the transaction, until ``take_back``."""
        connection, lent = self._opened(), self._lent
        if lent is None:
            raise handler_ended()
        if self._alchemy is None or not self._alchemy.connection.is_of(connection):
            given = LentConnection(connection, lent.loan)
            self._alchemy = Alchemy("postgresql+psycopg", given)
        return self._alchemy.begin(lent.loan)

    def savepoint(self) -> AbstractContextManager[object]:
        """Return a context manager that rolls its block back if an exception leaves it."""
        return sql_savepoint(self._lent)

    def intact(self) -> None:
        """Raise ``Failed`` if a handler has ended the transaction."""
        connection = self._opened()
        if self._overran:
            raise Failed(
                "a statement that the handler had left running neither ended nor was cancelled: "
                "its connection was closed",
                counts=True,
            )
        if _closed(connection):
            raise Failed("the handler has closed the connection", counts=True)
        status = connection.info.transaction_status
        if status is TransactionStatus.INERROR:
            why = f"a statement failed, and the handler went on: {self._failed_by}"
            raise Failed(why, counts=by_sqlstate(self._failed_by))
        if status is TransactionStatus.IDLE:
            raise Failed("the handler has ended the transaction itself", counts=True)
        if status is not TransactionStatus.INTRANS:
            raise Failed("the connection to the store was lost", counts=False)
        # What psycopg's own blocks look at; nothing says so in public. None commits over another.
        if connection._num_transactions != 1:
            raise Failed("the handler has left a savepoint of psycopg's open", counts=True)

    def commit(self, tag: str, checkpoint: Checkpoint, _: Sequence[Unit] = ()) -> None:
        """Commit with the checkpoint, if the fence has its number."""
        self._shared.held.pop(tag, None)
        self._end_alchemy()
        lent = self._mark is not None
        with self._working() as execute:
            if lent:
                self._check()
            self._table.move(execute, tag, checkpoint)
            if tag in self._shared.calling and checkpoint.position is not None:
                self._calls.passed(execute, tag, checkpoint.position)
            append, self._append = self._append, None
            if append is not None:
                self._shared.held[tag] = commit_with(self._opened(), *append)
                self._mark = None

    def rollback(self) -> None:
        """Roll back the transaction, if there is one; does not fail."""
        self._append = None
        self._end_alchemy()
        mark, self._mark = self._mark, None
        connection = self._connection
        if mark is not None and connection is not None:
            let_go(connection)
            try:
                connection.rollback()
            except psycopg.Error:
                self.close()

    def judge(self, error: BaseException) -> Counts:
        """Return whether a handler's error counts as an attempt."""
        if not isinstance(error, psycopg.Error):
            return True
        if self._connection is None or self._connection.closed:
            return self._connection is not None and _closed(self._connection)
        if not is_noted(error):
            # Another database's, or psycopg's own.
            return None
        after = error.sqlstate == AFTER_ANOTHER
        return by_sqlstate(self._failed_by if after else error.sqlstate)

    def close(self) -> None:
        """Close the store; idempotent."""
        connection, self._connection = self._connection, None
        self._shared.sessions.discard(self._session)
        self._session, self._mark = "", None
        aside, self._aside = self._aside, None
        for each in (connection, aside):
            if each is not None:
                with contextlib.suppress(psycopg.Error):
                    each.close()

    def _end_alchemy(self) -> None:
        if self._alchemy is not None:
            self._alchemy.end()

    @contextlib.contextmanager
    def _working(self) -> Iterator[Execute]:
        """Work in the transaction that was begun, or in one of its own, and commit it."""
        with self._errors():
            if self._mark is None:
                self.begin()
            try:
                with self._opened().cursor(row_factory=tuple_row) as cursor:
                    yield lambda statement, given: cursor.execute(statement.encode(), given)
                if self._mark is not None:
                    let_go(self._opened())
                    check_committed(send(self._opened(), b"COMMIT"))
                    self._mark = None
            except psycopg.Error as error:
                self._refused(error)
                raise
            except BaseException:
                self.rollback()
                raise

    @contextlib.contextmanager
    def _apart(self) -> Iterator[Execute]:
        """Work beside the transaction that runs: each statement is committed by itself.

        One that was sent ends also if this process crashes: it blocks no other session for long.
        """
        with self._errors():
            if self._aside is None:
                self._aside = self._connected().connection
            with self._aside.cursor(row_factory=tuple_row) as cursor:
                yield lambda statement, given: cursor.execute(statement.encode(), given)

    def _check(self) -> None:
        """Restore what our statements need; ``Failed`` if a handler ended the transaction.

        One round trip: constraints are checked, and what handlers have set is put back.
        """
        mark = self._mark
        if mark is None:
            raise AssertionError("it was begun")
        try:
            send(self._opened(), mark.check)
        except psycopg.Error as error:
            if not is_ended(error.sqlstate, error.diag.message_primary):
                raise
            # It is unknown whose transaction runs there.
            self.close()
            raise Failed(
                "the handler has ended the transaction itself, or wiped its mark (RESET ALL)",
                counts=True,
            ) from error

    def _note(self, error: BaseException) -> None:
        """Mark what the session has raised, whatever of psycopg's asked it."""
        noted(error)
        if isinstance(error, psycopg.Error) and error.sqlstate not in (None, AFTER_ANOTHER):
            self._failed_by = error.sqlstate

    def _has_calls(self, tag: str, has: bool) -> None:
        calling = self._shared.calling
        (calling.add if has else calling.discard)(tag)

    def _refused(self, error: psycopg.Error) -> None:
        """Raise ``Failed`` if the server said that nothing is committed."""
        state, status = error.sqlstate, self._opened().info.transaction_status
        # Before its COMMIT it is known, too, of an error that says little.
        said = state is not None and not state.startswith(("08", "57P", "XX"))
        if said or status is TransactionStatus.INERROR:
            self.rollback()
            raise Failed(_line(error), counts=by_sqlstate(state)) from error

    def _is_there(self, session: str) -> bool:
        with self._working() as execute:
            return bool(execute(_THERE.decode(), (session, session)).fetchone()[0])

    def _end(self, session: str) -> None:
        """End a session whose process is taken for dead: it may hold locks, and commits nothing."""
        with contextlib.suppress(Failed), self._working() as execute:
            execute(_END.decode(), (session,))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (LogError, Failed):
            raise
        except psycopg.Error as error:
            self._shared.lost |= {self._session} - {""}
            self.close()
            raise noted(StoreAway(f"the store: {_line(error)}")) from error

    def _opened(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            # One that became weak is waited for.
            refused = NotDurable if self._look is None else StoreAway
            found = self._connected(refused, self._configure, self._waits_ms)
            connection, self._session, _, self._look, self._settings, self._beginning = found
            self._shared.sessions |= {self._session} - {""}
            self._row_factory, connection.row_factory = connection.row_factory, tuple_row
            connection.cursor_factory = HandlerCursor
            # The session is the parent's, whatever a handler's child has kept of it.
            refuse_in_children(connection, forked)
            connection.raised = self._note
            self._connection = connection
        elif self._look is not None:
            self._look(self._connection)
        return self._connection

    def _connected(self, *how: Any) -> StoreSession:
        """Open a session, as ``opened``."""
        return opened(self._url, *how)


def _closed(connection: psycopg.Connection[Any]) -> bool:
    """Whether this process closed it, and not the server, or the network."""
    return connection.closed and not connection.broken


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
