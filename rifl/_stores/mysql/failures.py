"""Errors of MariaDB and MySQL, and what they mean, by their numbers."""

from __future__ import annotations

import pymysql

from _rifl_ground.counting import Counts, is_noted
from rifl._stores.sql.dialect import Failure

# The server has rolled the transaction back: a deadlock, a row that changed since its snapshot
# (innodb_snapshot_isolation), a certification that failed (group replication).
ROLLED_BACK = (1213, 1020, 3101)
NO_SAVEPOINT = 1305
OPEN_ALREADY = 1568
_DUPLICATE = 1062
# Of the statement, and not of the server.
_STATEMENTS = (pymysql.IntegrityError, pymysql.DataError, pymysql.ProgrammingError)
_NUMBERS = {
    **dict.fromkeys(ROLLED_BACK, Failure.AGAIN),
    # A row with that key; a statement that was cut off by KILL QUERY.
    **dict.fromkeys((_DUPLICATE, 1317), Failure.AGAIN),
    # Rolls back its statement only: what runs after it is in the same transaction.
    1205: Failure.LOCKED,
    # Gone away, lost, stopping, killed, idle for too long; and a server that has become a
    # replica, which cannot be written: the next connection may find another.
    **dict.fromkeys((2006, 2013, 2055, 1053, 1927, 4031, 1290, 1792), Failure.LOST),
    1146: Failure.MISSING,
    1049: Failure.MISSING,
}


def number_of(error: BaseException) -> int | None:
    """Return the number of a driver's error, where drivers put it; None: it has none."""
    number = error.args[0] if error.args else getattr(error, "errno", None)
    return number if isinstance(number, int) else None


def failure_of(error: Exception) -> Failure:
    """Say what an error means for the transaction that raised it."""
    number = number_of(error)
    if number == 2013 and "timed out" in str(error):
        return Failure.SILENT
    if not number:
        # PyMySQL's, of a connection that it has closed.
        return Failure.LOST if type(error).__name__ == "InterfaceError" else Failure.OTHER
    return _NUMBERS.get(number, Failure.OTHER)


def by_mysql(error: BaseException) -> Counts:
    """Say whether an error of a handler is its own; in doubt of another connection's.

    See ``ConditionalRows.judge``.
    """
    if not isinstance(error, pymysql.Error):
        return True
    if not is_noted(error):
        return None
    passing = failure_of(error) is not Failure.OTHER and number_of(error) != _DUPLICATE
    return False if passing else True if isinstance(error, _STATEMENTS) else None
