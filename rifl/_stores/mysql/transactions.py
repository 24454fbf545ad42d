"""Handlers' own transactions in MariaDB and MySQL, with the record in them (DESIGN §6)."""

from __future__ import annotations

import re
import secrets as randomness
import time
from typing import Any

import pymysql

from _rifl_ground.counting import all_of, noted
from _rifl_ground.drivers import driver_connection
from _rifl_ground.threads import in_thread
from rifl._stores.alchemy import watch
from rifl._stores.drivers import DbApiTransaction, check_blocking, committer, holder, roll_back
from rifl._stores.errors import TransactionEnded, WrongDatabase
from rifl._stores.mysql.failures import (
    NO_SAVEPOINT,
    OPEN_ALREADY,
    ROLLED_BACK,
    failure_of,
    number_of,
)
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.requests import Written
from rifl._stores.shared.transactions import FencedTransactions, FinishOf
from rifl._stores.sql.backend import SqlBackend
from rifl._stores.sql.dialect import Failure
from rifl._stores.sql.transaction import LentSession, write
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.record import CompletionRecord

_BY_NAME = "name any other DB-API connection by rifl.DbApiTransaction"
_AUTOCOMMIT = "the connection is in autocommit mode: begin a transaction first"
_TRIED = "rifl_tried"
# A server that was killed answers again within so long, mostly.
_ASKED_S, _ASKED_AGAIN_S = 10.0, 0.1
_METHODS = ("query", "commit", "rollback", "begin")
# Of a server's status, with each statement that returns no rows.
_IN_TRANSACTION = 1
# Statements that do one thing. Others (a procedure, a compound statement, several at once) may have
# rolled back and committed something else by the time they end, or fail.
_SINGLE = re.compile(
    rb"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|LOAD|TABLE|VALUES|ROLLBACK)\b[^;]*;?\s*\Z", re.I
)
_ROLLBACK = re.compile(rb"\s*ROLLBACK(\s+WORK)?\s*;?\s*\Z", re.I)
_ENDED = "the transaction of the rifl.transaction has ended: nothing more is executed in its block"


class LentPyMysqlConnection:
    """The watch over a connection whose transaction is begun.

    Its ``commit()`` and ``begin()`` are refused, and so is ``rollback()``, unless SQLAlchemy
    calls it as a flush fails. After the server has rolled the transaction back (a deadlock), or
    has said that it is over, every statement is refused until ``free``: nothing that runs in its
    place is committed. ``is_undone``: all that was written in the transaction is rolled back, and
    nothing else was committed.
    """

    def __init__(self, connection: Any, *, may_roll_back: bool) -> None:
        self.is_over = self.is_undone = False
        self._connection = connection
        self._may_roll_back = may_roll_back
        self._query, self._rollback = connection.query, connection.rollback
        for name in _METHODS:
            # In place of the class's, for this one.
            setattr(connection, name, getattr(self, f"_{name}_lent"))

    def free(self) -> None:
        """Have it be the handler's again; idempotent."""
        for name in _METHODS:
            vars(self._connection).pop(name, None)

    def _query_lent(self, sql: Any, unbuffered: bool = False) -> Any:
        if self.is_over:
            raise WrongDatabase(_ENDED)
        try:
            done = self._query(sql, unbuffered=unbuffered)
        except Exception as error:
            self.is_over = number_of(error) in ROLLED_BACK
            self.is_undone = self.is_over and _SINGLE.match(_bytes(sql)) is not None
            # For who has to tell it from another connection's.
            noted(error)
            raise
        self.is_over = not self._connection.server_status & _IN_TRANSACTION
        self.is_undone = self.is_over and _ROLLBACK.match(_bytes(sql)) is not None
        return done

    def _commit_lent(self) -> None:
        raise WrongDatabase(
            "rifl.transaction commits what is written in its block: leave the block"
        )

    def _begin_lent(self) -> None:
        raise WrongDatabase("a transaction is open: use a savepoint")

    def _rollback_lent(self) -> None:
        if not self._may_roll_back:
            raise WrongDatabase(
                "rifl.transaction rolls back if an exception leaves its block: raise one, or use a "
                "savepoint"
            )
        self.is_undone = self.is_undone or not self.is_over
        self.is_over = True
        self._rollback()


def _bytes(sql: Any) -> bytes:
    """Return a statement as it travels; PyMySQL takes either."""
    return sql.encode(errors="surrogateescape") if isinstance(sql, str) else bytes(sql)


class OpenedBlock:
    """A transaction that a ``rifl.transaction`` has begun, until its end.

    A savepoint at its bottom shows whether it is the one that was begun: every implicit commit
    (DDL, BEGIN, SET autocommit, LOCK TABLES) and every rollback takes it away. A mark, a row
    that the transaction inserts and deletes, shows which of the two that was.
    """

    def __init__(self, backend: SqlBackend, transaction: Any, connection: Any) -> None:
        self._backend = backend
        self._mark = randomness.token_bytes(16)
        self._savepoint = f"rifl_{self._mark.hex()}"
        self.sql = LentSession(backend.dialect, DbApiTransaction(connection, "format"))
        try:
            # Harmless, and an error within a transaction, which a read begins, too.
            self.sql.run("SET TRANSACTION READ WRITE")
            if self.sql.rows("SELECT @@autocommit")[0][0]:
                raise WrongDatabase(_AUTOCOMMIT)
            self.sql.run(f"SAVEPOINT {self._savepoint}")
            self.sql.run(
                f"INSERT INTO @.marks (mark, marked_at) VALUES (%s, {backend.dialect.now})",
                self._mark,
            )
        except pymysql.Error as error:
            if number_of(error) == OPEN_ALREADY:
                raise WrongDatabase("a transaction is open on the connection already") from error
            roll_back(connection)
            if failure_of(error) is Failure.MISSING:
                raise WrongDatabase(
                    f"the transaction is in another database than {backend.place}, or its user may "
                    "not use the tables"
                ) from error
            raise
        self._watched = watch(transaction)
        self._lent = LentPyMysqlConnection(connection, may_roll_back=self._watched is not None)
        # Whether it was found to be whole: from then on nothing of the handler's is executed.
        self._checked = False
        # Whether the connection was lost before its end.
        self._cut_off = False
        # Whether the COMMIT was sent and failed: what became of it the store is asked.
        self.in_doubt = False

    def check(self) -> None:
        """Have the connection be ours, in the transaction that was begun.

        Raises ``TransactionEnded`` where it is another one.
        """
        over = self._free()
        try:
            if over:
                raise TransactionEnded(
                    "the transaction was rolled back before its block's end, by the server or by a "
                    "statement. Let what failed leave the block, or use a savepoint"
                )
            self.sql.run(f"RELEASE SAVEPOINT {self._savepoint}")
        except pymysql.Error as error:
            if number_of(error) == NO_SAVEPOINT:
                raise TransactionEnded("the transaction was ended before its block") from error
            raise
        self._checked = True
        self.sql.run("DELETE FROM @.marks WHERE mark = %s", self._mark)

    def rollback(self, transaction: Any) -> bool:
        """Roll back what is open; whether it is known to have been the one that was begun."""
        over = self._free()
        intact = self._checked
        if not over and not intact:
            try:
                self.sql.run(f"ROLLBACK TO SAVEPOINT {self._savepoint}")
                intact = True
            except (pymysql.Error, OSError) as error:
                self._cut_off = number_of(error) != NO_SAVEPOINT
        roll_back(transaction)
        if self.sql.connection is not holder(transaction):
            roll_back(self.sql.connection)
        return intact

    def judge(self, committed: bool | None) -> bool:
        """Return false if what was rolled back may be committed. Raises ``TransactionEnded``."""
        if committed is None:
            raise TransactionEnded(
                "the transaction of the rifl.transaction was cut off, and MariaDB did not say for "
                f"{_ASKED_S:g} s whether a statement within the block had committed it. Look at "
                "what is there before you send the call anew under another key"
            )
        # Where it was rolled back and the connection refused the rest, or is gone, with what was
        # open on it, nothing is there.
        if committed or not (self._lent.is_undone or self._cut_off):
            raise TransactionEnded(
                "the transaction of the rifl.transaction was ended within its block, by a "
                "statement that commits or rolls back (also DDL, BEGIN, SET autocommit, LOCK "
                "TABLES). What it wrote may be committed, without the call's record. Let neither "
                "the handler nor the repositories that it calls do so; see guarantees.md"
            )
        return not self._cut_off

    def _free(self) -> bool:
        """Take the connection back; whether the transaction was rolled back, or is over."""
        self._lent.free()
        if self._watched is not None:
            self._watched.end()
        return self._lent.is_over or (self._watched is not None and self._watched.is_over)

    def is_committed(self) -> bool | None:
        """Whether the mark was committed: then so was all that was written before it was.

        Waits for a server that starts again; None: it did not answer in time.
        """
        mark, until_s = self._mark, time.monotonic() + _ASKED_S
        while True:
            try:
                found = self._backend.transact(
                    lambda sql: sql.rows("SELECT mark FROM @.marks WHERE mark = %s", mark)
                )
                if found:
                    self._backend.transact(
                        lambda sql: sql.run("DELETE FROM @.marks WHERE mark = %s", mark)
                    )
            except BackendError:
                if time.monotonic() >= until_s:
                    return None
                time.sleep(_ASKED_AGAIN_S)
            else:
                return bool(found)


class MySqlTransactions(FencedTransactions):
    """Records inside transactions of PyMySQL, SQLAlchemy over it, or named DB-API connections."""

    def __init__(self, backend: SqlBackend, finish_of: FinishOf) -> None:
        super().__init__(finish_of, lambda method, reason: None)
        self._backend = backend
        # By the id of what holds them.
        self._begun: dict[int, OpenedBlock] = {}

    def _write(self, transaction: Any, finish: Written) -> None:
        sql = LentSession(self._backend.dialect, self._named(transaction))
        if sql.rows("SELECT @@autocommit")[0][0]:
            # Unless a transaction was begun by hand, each statement has one of its own.
            sql.run(f"SAVEPOINT {_TRIED}")
            try:
                sql.run(f"RELEASE SAVEPOINT {_TRIED}")
            except Exception as error:
                if number_of(error) == NO_SAVEPOINT:
                    raise WrongDatabase(_AUTOCOMMIT) from error
                raise
        write(sql, self._backend, finish)

    async def _write_async(self, transaction: Any, finish: Written) -> None:
        self._write(transaction, finish)

    def _named(self, transaction: Any) -> DbApiTransaction:
        connection = driver_connection(transaction)
        if isinstance(connection, DbApiTransaction):
            connection.check()
            return connection
        return DbApiTransaction(_own(connection), "format")

    def begin(self, transaction: Any) -> None:
        """Begin the transaction that ``commit`` ends."""
        self._begun[id(holder(transaction))] = OpenedBlock(
            self._backend, transaction, _own(driver_connection(transaction))
        )

    async def begin_async(self, transaction: Any) -> None:
        """The same: a blocking connection is fine on an event loop, if its owner thinks so."""
        self.begin(transaction)

    def rollback(self, transaction: Any) -> bool:
        """Roll back what ``begin`` began."""
        begun = self._begun.pop(id(holder(transaction)), None)
        if begun is None:
            return super().rollback(transaction)
        if begun.rollback(transaction):
            return not begun.in_doubt
        return begun.judge(begun.is_committed())

    async def rollback_async(self, transaction: Any) -> bool:
        """The same; a server that starts again is waited for in a thread."""
        begun = self._begun.pop(id(holder(transaction)), None)
        if begun is None:
            return super().rollback(transaction)
        if begun.rollback(transaction):
            return not begun.in_doubt
        return begun.judge(await in_thread(begun.is_committed))

    def commit(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's own transaction, then commit that."""
        finish = self._noted(attempt, record)
        begun = self._begun[id(holder(transaction))]
        if callable(flush := getattr(transaction, "flush", None)):
            flush()
        begun.check()
        with self._noting(attempt):
            write(begun.sql, self._backend, finish)
        try:
            committer(transaction)()
        except BaseException as error:
            # SQLAlchemy may refuse to, by itself.
            begun.in_doubt = not isinstance(error, Exception) or any(
                isinstance(each, self._backend.dialect.errors) for each in all_of(error)
            )
            raise
        self._begun.pop(id(holder(transaction)), None)
        # An error leaves it to be read back.
        attempt.committed = record

    async def commit_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same."""
        self.commit(attempt, record, transaction)


def _own(connection: Any) -> Any:
    """Return PyMySQL's connection; raises ``WrongDatabase`` for anything else."""
    if isinstance(connection, pymysql.cursors.Cursor):
        connection = connection.connection
    if not isinstance(connection, pymysql.connections.Connection):
        check_blocking(connection, "PyMySQL: asynchronous drivers are not supported over mysql://")
        raise WrongDatabase(
            f"a PyMySQL connection or cursor, or SQLAlchemy's over PyMySQL, is wanted, not a "
            f"{type(connection)!r}; for rifl.record {_BY_NAME}"
        )
    return connection
