"""A handler's PyMySQL connection within a ``rifl.transaction``: watched, so that its end shows."""

from __future__ import annotations

import re
from typing import Any

from _rifl_ground.counting import noted
from rifl._stores.errors import WrongDatabase
from rifl._stores.mysql.failures import ROLLED_BACK, number_of

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
