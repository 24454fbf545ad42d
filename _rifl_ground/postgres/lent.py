"""Lent cursors of psycopg: they send nothing that ends the transaction they are lent in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from _rifl_ground.postgres.owned import ends_transaction


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
