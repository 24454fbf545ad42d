"""Lent connections and cursors of psycopg.

They send nothing that ends the transaction they are lent in, and nothing once the loan is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from _rifl_ground.counting import noted
from _rifl_ground.loans import Loan
from _rifl_ground.postgres.owned import ends_transaction

# How long the end of a loan waits for a statement that another thread or task has in flight; and
# then for the server to cancel it.
IN_FLIGHT_S = 10.0
_CANCEL_S = 2.0


class _Refusing:
    """Refuses what would commit, or roll back, what the lender commits.

    And what would be no part of that, as no transaction runs. ``refused``: the error's class;
    ``lender``: who commits.
    """

    refused: type[Exception]
    lender: str
    connection: Any

    def check_statement(self, query: Any) -> None:
        """Raise what a statement that is not to be sent is refused with."""
        if isinstance(query, sql.Composable):
            text = query.as_string(self.connection)
        else:
            text = query.decode(errors="replace") if isinstance(query, bytes) else str(query)
        if self.connection.info.transaction_status is TransactionStatus.IDLE:
            raise self.refused(
                f"{text[:100]!r}: no handler's transaction runs, and this would be committed by "
                "itself"
            )
        if ends_transaction(text):
            raise self.refused(
                f"{text[:100]!r}: {self.lender} commits what handlers write, and rolls it back "
                "(a savepoint is yours)"
            )


class LentCursor(_Refusing, psycopg.Cursor[Any]):
    """A cursor of a connection that is lent."""

    def execute(self, query: Any, *given: Any, **named: Any) -> Self:
        self.check_statement(query)
        return super().execute(query, *given, **named)

    def executemany(self, query: Any, *given: Any, **named: Any) -> None:
        self.check_statement(query)
        super().executemany(query, *given, **named)

    def stream(self, query: Any, *given: Any, **named: Any) -> Iterator[Any]:
        self.check_statement(query)
        return super().stream(query, *given, **named)


class LentAsyncCursor(_Refusing, psycopg.AsyncCursor[Any]):
    """The same of an asynchronous connection."""

    async def execute(self, query: Any, *given: Any, **named: Any) -> Self:
        self.check_statement(query)
        return await super().execute(query, *given, **named)

    async def executemany(self, query: Any, *given: Any, **named: Any) -> None:
        self.check_statement(query)
        await super().executemany(query, *given, **named)

    def stream(self, query: Any, *given: Any, **named: Any) -> Any:
        self.check_statement(query)
        return super().stream(query, *given, **named)


class LentConnection(psycopg.Connection[Any]):
    """Another connection, for one loan. All but the loan is one with the other's."""

    __slots__ = ("_lender", "loan")

    def __init__(self, connection: psycopg.Connection[Any], loan: Loan) -> None:
        # Its lock, too: the thread that holds it knows whether the loan is over.
        self.__dict__ = connection.__dict__
        self._lender = connection
        self.loan = loan

    def is_of(self, connection: object) -> bool:
        """Whether that is the other connection."""
        return self._lender is connection

    def __del__(self, *_: Any) -> None:
        """Say nothing: the other connection is open still."""

    def wait(self, *given: Any, **named: Any) -> Any:
        """See ``psycopg.Connection``: whatever is sent is waited for here."""
        self.loan.check()
        try:
            return self._lender.wait(*given, **named)
        except psycopg.Error as error:
            noted(error)
            raise

    def cursor(self, *given: Any, **named: Any) -> Any:
        """See ``psycopg.Connection``."""
        self.loan.check()
        return super().cursor(*given, **named)

    def cancel_safe(self, **named: Any) -> None:
        """See ``psycopg.Connection``."""
        self.loan.check()
        super().cancel_safe(**named)

    def cancel(self) -> None:
        """See ``psycopg.Connection``."""
        self.loan.check()
        super().cancel()

    def close(self) -> None:
        """See ``psycopg.Connection``."""
        self.loan.check()
        super().close()


class LentAsyncConnection(psycopg.AsyncConnection[Any]):
    """The same of an asynchronous connection."""

    __slots__ = ("_lender", "loan")

    def __init__(self, connection: psycopg.AsyncConnection[Any], loan: Loan) -> None:
        self.__dict__ = connection.__dict__
        self._lender = connection
        self.loan = loan

    def is_of(self, connection: object) -> bool:
        """Whether that is the other connection."""
        return self._lender is connection

    def __del__(self, *_: Any) -> None:
        """Say nothing: the other connection is open still."""

    async def wait(self, *given: Any, **named: Any) -> Any:
        """See ``psycopg.AsyncConnection``: whatever is sent is waited for here."""
        self.loan.check()
        try:
            return await self._lender.wait(*given, **named)
        except psycopg.Error as error:
            noted(error)
            raise

    def cursor(self, *given: Any, **named: Any) -> Any:
        """See ``psycopg.AsyncConnection``."""
        self.loan.check()
        return super().cursor(*given, **named)

    async def cancel_safe(self, **named: Any) -> None:
        """See ``psycopg.AsyncConnection``."""
        self.loan.check()
        await super().cancel_safe(**named)

    def cancel(self) -> None:
        """See ``psycopg.AsyncConnection``."""
        self.loan.check()
        super().cancel()

    async def close(self) -> None:
        """See ``psycopg.AsyncConnection``."""
        self.loan.check()
        await super().close()


def take_back(
    connection: psycopg.Connection[Any], loan: Loan, within_s: float = IN_FLIGHT_S
) -> bool:
    """End a loan, and wait for a statement that is in flight.

    One that takes longer is cancelled. False: it did not end even then, and the connection is
    closed.
    """
    # Who waits for the lock asks once it has it.
    loan.over = True
    if _idle(connection, within_s):
        return True
    with contextlib.suppress(psycopg.Error):
        connection.cancel_safe(timeout=_CANCEL_S)
    if _idle(connection, _CANCEL_S):
        return True
    _cut_off(connection)
    _idle(connection, _CANCEL_S)
    connection.close()
    return False


async def take_back_async(
    connection: psycopg.AsyncConnection[Any], loan: Loan, within_s: float = IN_FLIGHT_S
) -> bool:
    """The same for an asynchronous connection."""
    loan.over = True
    if await _idle_async(connection, within_s):
        return True
    with contextlib.suppress(psycopg.Error):
        await connection.cancel_safe(timeout=_CANCEL_S)
    if await _idle_async(connection, _CANCEL_S):
        return True
    _cut_off(connection)
    await _idle_async(connection, _CANCEL_S)
    await connection.close()
    return False


def cut_off(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Have the server roll back what a connection has open, which is of no use then. Any thread."""
    with contextlib.suppress(psycopg.Error, OSError):
        if connection.info.transaction_status is TransactionStatus.ACTIVE:
            # A server that executes a statement does not notice that its client waits no longer.
            connection.pgconn.get_cancel().cancel()
    _cut_off(connection)


def _idle(connection: psycopg.Connection[Any], within_s: float) -> bool:
    """Whether nothing is in flight, or no longer is."""
    found = connection.lock.acquire(timeout=within_s)
    if found:
        connection.lock.release()
    return found


async def _idle_async(connection: psycopg.AsyncConnection[Any], within_s: float) -> bool:
    if not connection.lock.locked():
        return True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s), connection.lock:
            return True
    return False


def _cut_off(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """End the wait of the thread that waits for the server, with an error.

    To close the connection would free what that thread is using.
    """
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.pgconn.socket)) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)
