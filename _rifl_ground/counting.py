"""The errors that count as attempts of a message: one rule for all stores (DESIGN-LOG §14, T5).

An error counts (True), does not, as it passes (False), or is in doubt (None): then it counts if a
transaction of the checkpoint alone commits right after.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import TypeVar

_MARK = "_rifl_raised_by_store"
# Of SQLSTATE, its beginnings: of a server, a lock or another transaction; of the statement. A
# read-only transaction (25006) is in doubt: the server's are, or a handler has made it so.
_PASSING = ("08", "40", "53", "55P03", "57P", "58")
_STATEMENTS = ("21", "22", "23", "42", "54", "P0")
# A statement after one that failed: that one says why.
AFTER_ANOTHER = "25P02"
# Of SQLite's codes: locked, full, the disk's, read-only; and those of the statement.
_PASSING_CODES = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
_STATEMENT_CODES = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
)
_PRIMARY = 0xFF

Counts = bool | None
_E = TypeVar("_E", bound=BaseException)


def noted(error: _E) -> _E:
    """Mark an error as raised by the transaction's own connection, or by its log; return it.

    By an attribute, so that nothing keeps the error.
    """
    error.__dict__[_MARK] = True
    return error


def is_noted(error: BaseException) -> bool:
    """Whether ``noted`` has marked it."""
    return _MARK in getattr(error, "__dict__", ())


def counts(error: BaseException, judge: Callable[[BaseException], Counts]) -> Counts:
    """Judge an error by itself and by all that it wraps: one that passes passes as a whole.

    ``judge``: of one error, without what it wraps.
    """
    found = {judge(each) for each in all_of(error)}
    return False if False in found else None if None in found else True


def by_sqlstate(sqlstate: str | None) -> Counts:
    """Judge an error of PostgreSQL's, of the transaction's own connection."""
    state = sqlstate or ""
    return False if state.startswith(_PASSING) else True if state.startswith(_STATEMENTS) else None


def by_sqlite(error: BaseException) -> Counts:
    """Judge an error of sqlite3's, of the transaction's own connection."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # The module's own, of how it was called.
        return True
    code &= _PRIMARY
    return False if code in _PASSING_CODES else True if code in _STATEMENT_CODES else None


def all_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it wraps: causes, groups, and what SQLAlchemy calls ``orig``.

    An error that was being handled is a cause unless ``raise ... from None`` says otherwise.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left.append(getattr(each, "orig", None))
        left.append(each.__cause__)
        if not each.__suppress_context__:
            left.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
