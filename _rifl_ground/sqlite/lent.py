"""Lent connections of SQLite: a ``sqlite3.Connection`` that is of no use once its loan is over."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Callable
from typing import Any

from _rifl_ground.loans import Loan


class LentSqliteConnection(sqlite3.Connection):
    """Another connection, for one loan. The connection's thread.

    A ``sqlite3.Connection`` by its type. It opens no database: all that it is asked for, the
    other connection does.
    """

    def __init__(self, connection: sqlite3.Connection, loan: Loan) -> None:
        # sqlite3's own would open a database.
        self._lender = connection
        self.loan = loan

    def lender(self) -> Any:
        """Return the connection; raises the loan's refusal once that is over."""
        self.loan.check()
        return self._lender

    def is_of(self, connection: sqlite3.Connection) -> bool:
        """Whether that is the other connection."""
        return self._lender is connection

    def cursor(self, *given: Any, **named: Any) -> Any:
        """See ``sqlite3.Connection``. The cursor's ``lent`` is this."""
        cursor = self.lender().cursor(*given, **named)
        cursor.lent = self
        return cursor

    def execute(self, *given: Any) -> Any:
        """See ``sqlite3.Connection``."""
        return self.cursor().execute(*given)

    def executemany(self, *given: Any) -> Any:
        """See ``sqlite3.Connection``."""
        return self.cursor().executemany(*given)

    def __enter__(self) -> Any:
        return self.lender().__enter__()

    def __exit__(self, *given: Any) -> Any:
        return self.lender().__exit__(*given)

    def __call__(self, *given: Any) -> Any:
        return self.lender()(*given)

    def __repr__(self) -> str:
        return f"<lent {self._lender!r}>"


def _method(name: str) -> Callable[..., Any]:
    def method(self: LentSqliteConnection, *given: Any, **named: Any) -> Any:
        return getattr(self.lender(), name)(*given, **named)

    method.__name__ = name
    return method


def _attribute(name: str) -> property:
    def get(self: LentSqliteConnection) -> Any:
        return getattr(self.lender(), name)

    def put(self: LentSqliteConnection, value: Any) -> None:
        setattr(self.lender(), name, value)

    return property(get, put)


# Whatever sqlite3 has, of this Python and of later ones.
for _name, _member in vars(sqlite3.Connection).items():
    if not _name.startswith("_") and _name not in vars(LentSqliteConnection):
        if inspect.ismethoddescriptor(_member):
            setattr(LentSqliteConnection, _name, _method(_name))
        elif inspect.isdatadescriptor(_member):
            setattr(LentSqliteConnection, _name, _attribute(_name))
