"""A cursor of what handlers get over PostgreSQL: it sends nothing that ends their transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from sharedlog._core.errors import InvalidRequest

# Comments, texts, names and bodies of functions: what is in them is no statement.
_QUOTED = re.compile(
    r"--[^\n]*|/\*.*?\*/|\bE'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'|\"[^\"]*\"|"
    r"\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$",
    re.DOTALL | re.IGNORECASE,
)
_ENDS = re.compile(
    r"(?:^|;)\s*(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION|"
    r"ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b",
    re.IGNORECASE,
)


def ends_transaction(statement: str) -> bool:
    """Whether one of these statements ends the transaction in which they are sent."""
    return _ENDS.search(_QUOTED.sub(" ", statement)) is not None


class HandlerCursor(psycopg.Cursor[Any]):
    """Raises ``InvalidRequest`` for what would commit, or roll back, what the consumer commits.

    And for what would be no part of that, as no transaction runs.
    """

    def execute(self, query: Any, *given: Any, **named: Any) -> Self:
        self._check_statement(query)
        return super().execute(query, *given, **named)

    def executemany(self, query: Any, *given: Any, **named: Any) -> None:
        self._check_statement(query)
        super().executemany(query, *given, **named)

    def stream(self, query: Any, *given: Any, **named: Any) -> Iterator[Any]:
        self._check_statement(query)
        return super().stream(query, *given, **named)

    def _check_statement(self, query: Any) -> None:
        if isinstance(query, sql.Composable):
            text = query.as_string(self)
        else:
            text = query.decode(errors="replace") if isinstance(query, bytes) else str(query)
        if self.connection.info.transaction_status is TransactionStatus.IDLE:
            raise InvalidRequest(
                f"{text[:100]!r}: no handler's transaction runs, and this would be committed by "
                "itself"
            )
        if ends_transaction(text):
            raise InvalidRequest(
                f"{text[:100]!r}: the consumer commits what handlers write, and rolls it back "
                "(a savepoint is yours)"
            )
