"""``rifl.transaction`` on asyncpg's connections, alone or in SQLAlchemy's sessions (DESIGN §6)."""

from __future__ import annotations

import contextlib
from typing import Any

from _rifl_ground.drivers import is_asyncpg, without_proxy
from _rifl_ground.postgres.owned import (
    READ_COMMITTED,
    READ_MARK,
    Fate,
    TransactionMark,
    is_ended,
)
from rifl._stores.alchemy import TransactionWatch, watch
from rifl._stores.errors import TransactionEnded, WrongDatabase

_ENDED = "the transaction was ended before its block"
_FAILED = "25P02"


class AsyncpgBlock:
    """A transaction that is marked as it begins, by asyncpg's own or by SQLAlchemy's.

    Used as the connection is: on its event loop, one statement at a time.
    """

    def __init__(self, given: Any, connection: Any, watched: TransactionWatch | None) -> None:
        self.connection = connection
        self._given = given
        self._watched = watched
        # asyncpg's, so that its ``transaction()`` within the block is a savepoint.
        self.own: Any = None if watched is not None else connection.transaction()
        self._mark = TransactionMark.new()

    @classmethod
    async def begin(cls, transaction: Any, connection: Any) -> AsyncpgBlock:
        """Begin the transaction, unless SQLAlchemy has, and mark it."""
        block = cls(transaction, connection, watch(transaction))
        if block.own is not None:
            if not connection.is_closed() and connection.is_in_transaction():
                raise WrongDatabase("a transaction is open on the connection already")
            await block.own.start()
        elif not connection.is_in_transaction():
            raise WrongDatabase("the connection is in autocommit mode: its commit would do nothing")
        try:
            await connection.execute("; ".join(block._mark.statements))
            role = await connection.fetchval("SHOW role")
        except BaseException:
            with contextlib.suppress(Exception):
                await block._undo()
            raise
        block._mark = block._mark._replace(settings=(("role", role.encode()),))
        return block

    async def check_async(self, transaction: Any) -> None:
        """Have all be as rifl's statements need it; raises ``TransactionEnded``."""
        if self._rolled_back():
            raise TransactionEnded(
                "the transaction was ended before its block, by SQLAlchemy's rollback() or "
                "close(): nothing of it is there. Let what failed leave the block, or use "
                "begin_nested"
            )
        if self._watched is not None and hasattr(transaction, "flush"):
            await transaction.flush()
        if self._is_back():
            raise TransactionEnded(_ENDED)
        try:
            await self.connection.execute(self._mark.check.decode())
        except Exception as error:
            if is_ended(getattr(error, "sqlstate", None), str(error)):
                # What became of it tells who rolls back.
                self._mark = self._mark._replace(is_lost=True)
                raise TransactionEnded(_ENDED) from error
            raise

    async def send_riders_async(self) -> None:
        """Nothing rides: a log's messages go into transactions of psycopg's."""

    async def rollback_async(self, transaction: Any) -> Fate:
        """Roll back the connection's open transaction; return what became of the handler's."""
        connection, mark = self.connection, self._mark
        if self._rolled_back():
            with contextlib.suppress(Exception):
                if not connection.is_closed():
                    committed = await connection.fetchval(READ_COMMITTED)
                    return mark.fate(None, committed, failed=True)
            return Fate.UNDONE
        if connection.is_closed():
            # asyncpg does not tell whether the handler closed it or it was lost.
            return Fate.CUT_OFF
        if self._is_back():
            return Fate.CLOSED
        try:
            marked, failed = None, False
            if connection.is_in_transaction():
                try:
                    marked = await connection.fetchval(READ_MARK)
                except Exception as error:
                    failed = getattr(error, "sqlstate", None) == _FAILED
                    if not failed:
                        raise
            await self._undo()
            return mark.fate(marked, await connection.fetchval(READ_COMMITTED), failed=failed)
        except Exception:  # noqa: BLE001 - the connection is of no more use
            with contextlib.suppress(Exception):
                connection.terminate()
            return Fate.CUT_OFF

    async def _undo(self) -> None:
        """Roll back whatever is open; asyncpg takes its own transaction for ended then."""
        if self.own is not None:
            with contextlib.suppress(Exception):
                await self.own.rollback()
        if self.connection.is_in_transaction():
            await self.connection.execute("ROLLBACK")

    def _is_back(self) -> bool:
        """Whether it is back in asyncpg's pool, where others use it; not if it was lost."""
        if self.connection.is_closed():
            return False
        return is_asyncpg(self._given) and without_proxy(self._given) is not self.connection

    def _rolled_back(self) -> bool:
        """Whether SQLAlchemy has rolled it back, which does not commit what it begins then."""
        if self._watched is None:
            return False
        self._watched.end()
        return self._watched.is_over
