"""Other drivers' transactions in PostgreSQL, which SQLAlchemy or a DB-API connection commits."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from _rifl_ground.drivers import driver_connection, driver_connection_async, is_asyncpg
from _rifl_ground.postgres.marked import (
    mark_open,
    mark_open_async,
    send,
    send_async,
    undo,
    undo_async,
)
from _rifl_ground.postgres.owned import (
    CHECKED,
    READ_COMMITTED,
    READ_MARK,
    Fate,
    TransactionMark,
    is_ended,
)
from _rifl_ground.postgres.riders import (
    Begun,
    begins,
    begun_on,
    ends,
    last_statements,
    meaning_of,
)
from rifl._stores.alchemy import TransactionWatch, watch
from rifl._stores.drivers import DbApiTransaction, roll_back
from rifl._stores.errors import TransactionEnded, WrongDatabase
from rifl._stores.postgres.asyncpg_blocks import AsyncpgBlock
from rifl._stores.postgres.commits import check_mode

_ENDED = "the transaction was ended before its block"


class Other:
    """A ``rifl.transaction`` that its driver commits. Used as the driver's connection is."""

    def __init__(
        self, transaction: Any, connection: Any, mark: TransactionMark | None = None
    ) -> None:
        self.connection = connection
        self._watched: TransactionWatch | None = watch(transaction)
        # Of a DB-API connection: psycopg's are noted where riders are.
        self._mark = mark

    @classmethod
    def begin(cls, transaction: Any) -> Other:
        """TransactionMark the transaction that is begun by what holds it."""
        connection = driver_connection(transaction)
        if isinstance(connection, DbApiTransaction):
            mark = TransactionMark.new()
            for statement in mark.statements:
                connection.execute(statement)
            return cls(transaction, connection, mark)
        if isinstance(connection, psycopg.Connection):
            _check(connection)
            begins(connection, Begun(mark_open(connection), []))
        return cls(transaction, connection)

    @classmethod
    async def begin_async(cls, transaction: Any) -> Other | AsyncpgBlock:
        """The same for an asynchronous one, or a blocking one."""
        connection = await driver_connection_async(transaction)
        if is_asyncpg(connection):
            return await AsyncpgBlock.begin(transaction, connection)
        if not isinstance(connection, psycopg.AsyncConnection):
            return cls.begin(transaction)
        _check(connection)
        begins(connection, Begun(await mark_open_async(connection), []))
        return cls(transaction, connection)

    def check(self, transaction: Any) -> None:
        """Have all be as our statements need it; raises ``TransactionEnded``."""
        self._taken_back()
        connection = self.connection
        if isinstance(connection, DbApiTransaction):
            self._check_by_name(connection)
        elif isinstance(connection, psycopg.Connection):
            if self._watched is not None and hasattr(transaction, "flush"):
                transaction.flush()
            begun = begun_on(connection)
            try:
                send(connection, _check_of(begun))
            except psycopg.Error as error:
                self._ended(error, begun)
                raise

    async def check_async(self, transaction: Any) -> None:
        """The same for an asynchronous one, or a blocking one."""
        connection = self.connection
        if not isinstance(connection, psycopg.AsyncConnection):
            self.check(transaction)
            return
        self._taken_back()
        if self._watched is not None and hasattr(transaction, "flush"):
            await transaction.flush()
        begun = begun_on(connection)
        try:
            await send_async(connection, _check_of(begun))
        except psycopg.Error as error:
            self._ended(error, begun)
            raise

    def send_riders(self) -> None:
        """Carry out what rides, before the commit."""
        if isinstance(self.connection, psycopg.Connection) and (
            riders := ends(self.connection).riders
        ):
            try:
                send(self.connection, last_statements(riders).encode())
            except psycopg.Error as error:
                raise meaning_of(error, riders) or error from error

    async def send_riders_async(self) -> None:
        """The same for an asynchronous one, or a blocking one."""
        if not isinstance(self.connection, psycopg.AsyncConnection):
            self.send_riders()
        elif riders := ends(self.connection).riders:
            try:
                await send_async(self.connection, last_statements(riders).encode())
            except psycopg.Error as error:
                raise meaning_of(error, riders) or error from error

    def rollback(self, transaction: Any) -> Fate:
        """Roll back the connection's open transaction; return what became of the handler's."""
        connection = self.connection
        if isinstance(connection, DbApiTransaction):
            return self._undo_by_name(connection)
        if not isinstance(connection, psycopg.Connection):
            return Fate.UNDONE
        mark = ends(connection).mark
        if self._rolled_back():
            with contextlib.suppress(Exception):
                if mark is not None and driver_connection(transaction) is connection:
                    read = send(connection, READ_COMMITTED.encode())
                    return mark.fate(None, _text(read), failed=True)
            return Fate.UNDONE
        return undo(connection, mark)

    async def rollback_async(self, transaction: Any) -> Fate:
        """The same for an asynchronous one, or a blocking one."""
        connection = self.connection
        if not isinstance(connection, psycopg.AsyncConnection):
            return self.rollback(transaction)
        mark = ends(connection).mark
        if self._rolled_back():
            with contextlib.suppress(Exception):
                if mark is not None and await driver_connection_async(transaction) is connection:
                    read = await send_async(connection, READ_COMMITTED.encode())
                    return mark.fate(None, _text(read), failed=True)
            return Fate.UNDONE
        return await undo_async(connection, mark)

    def _rolled_back(self) -> bool:
        """Whether SQLAlchemy has rolled it back, which does not commit what it begins then."""
        if self._watched is None:
            return False
        self._watched.end()
        return self._watched.is_over

    def _taken_back(self) -> None:
        if self._rolled_back():
            raise TransactionEnded(
                "the transaction was ended before its block, by SQLAlchemy's rollback() or "
                "close(): nothing of it is there. Let what failed leave the block, or use "
                "begin_nested"
            )

    def _ended(self, error: psycopg.Error, begun: Begun) -> None:
        if begun.mark is not None and is_ended(error.sqlstate, error.diag.message_primary):
            # What became of it tells who rolls back.
            begins(self.connection, Begun(begun.mark._replace(is_lost=True), []))
            raise TransactionEnded(_ENDED) from error

    def _check_by_name(self, connection: DbApiTransaction) -> None:
        if self._mark is None:
            raise AssertionError("it is marked")
        try:
            connection.fetch(self._mark.judging.decode(), ())
            connection.execute(CHECKED)
        except Exception as error:
            if is_ended(connection.sqlstate(error), str(error)):
                self._mark = self._mark._replace(is_lost=True)
                raise TransactionEnded(_ENDED) from error
            raise

    def _undo_by_name(self, connection: DbApiTransaction) -> Fate:
        mark = self._mark
        if mark is None:
            raise AssertionError("it is marked")
        try:
            marked, failed = None, False
            try:
                (marked,) = connection.fetch(READ_MARK, ())
            except Exception as error:
                # Else it may be closed, and nothing can be read.
                failed = connection.sqlstate(error) is not None
                if not failed:
                    raise
            connection.connection.rollback()
            (committed,) = connection.fetch(READ_COMMITTED, ())
        except Exception:  # noqa: BLE001 - whatever a driver raises
            return Fate.CUT_OFF
        finally:
            roll_back(connection.connection)
        return mark.fate(marked, committed, failed=failed)


def _check(connection: Any) -> None:
    check_mode(connection)
    if connection.autocommit:
        raise WrongDatabase("the connection is in autocommit mode: its commit would do nothing")


def _check_of(begun: Begun) -> bytes:
    if begun.mark is None:
        raise AssertionError("it is marked")
    return begun.mark.check


def _text(results: list[Any]) -> str | None:
    value = results[-1].get_value(0, 0)
    return None if value is None else value.decode()
