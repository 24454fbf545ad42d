"""Owned transactions of SQLite: other code runs in one, and does not end it.

SQLite asks an authorizer about each statement that it prepares. Ours refuses those that end the
transaction or begin another one, before they run, and every statement after SQLite has rolled the
transaction back by itself (``OR ROLLBACK``, ``RAISE(ROLLBACK)``, an interrupt, a full disk).
"""

from __future__ import annotations

import functools
import sqlite3
import threading
import time
import weakref
from enum import Enum
from typing import Any

_OK, _DENY = sqlite3.SQLITE_OK, sqlite3.SQLITE_DENY
_TRANSACTION = sqlite3.SQLITE_TRANSACTION
# For a thread to leave a statement that is interrupted, beside others that compute.
_LEAVES_S = 0.05
_INTERRUPTS = 5
# Held for a moment.
_interrupting = threading.RLock()


class LentState(Enum):
    """What became of a transaction while it was lent."""

    OPEN = "open, or to be begun by the first write"
    UNDONE = "rolled back, and nothing was written since"
    UNKNOWN = "something was written that is not part of it"


class Owned:
    """The authorizer of a connection whose transactions we begin and end, or a driver does.

    Statements are judged while the transaction is lent (``lend`` to ``take_back``). Those that
    were prepared before, and are kept by the driver, are not asked about: see ``kept``.
    """

    def __init__(self) -> None:
        self.lent = False
        # What it refused last, as SQL.
        self.refused = ""
        # Whether a COMMIT of other code, or its like, may be prepared and kept.
        self.stale = False
        # See ``is_legacy``.
        self.legacy = True
        self._ours = False
        self._connection: Any = None
        self._by_itself = self._may_roll_back = self._outside = False
        # Whose transaction is taken from it, from outside, by this thread.
        self._revoker: int | None = None
        self._changing = threading.RLock()
        # Rows that the connection had changed by then; None: no transaction was begun.
        self._begun: int | None = None
        self._before = 0

    def lend(self, connection: sqlite3.Connection, *, may_roll_back: bool = False) -> None:
        """Have other code run in the transaction, which is open or is begun by its driver.

        ``may_roll_back``: a ROLLBACK is not refused, and everything after it is.
        """
        self._connection = connection
        try:  # noqa: SIM105 - with every transaction, where a context costs more than the question
            self.legacy = is_legacy(connection)
        except sqlite3.ProgrammingError:
            # Only the thread that made it may ask (aiosqlite's): it is as it was when this was set.
            pass
        self._by_itself = self.legacy and connection.isolation_level is not None
        self._may_roll_back, self._outside, self.refused = may_roll_back, False, ""
        self._before = connection.total_changes
        self._begun = self._before if connection.in_transaction else None
        self._revoker = None
        self.lent = True

    def take_back(self) -> LentState:
        """Have our own statements end the transaction; no others run until ``free``.

        Returns what became of it.
        """
        with self._changing:
            state = self.state()
            with _interrupting:
                self.lent, self._ours = False, True
            return state

    def revoke(self) -> bool:
        """Roll back what is lent, from outside; every statement is refused until ``free``.

        False: sqlite3 has it done by the connection's own thread alone. A statement that runs is
        interrupted, and waited for.
        """
        with self._changing:
            connection = self._connection
            if not self.lent:
                return True
            self._revoker = threading.get_ident()
            for _ in range(_INTERRUPTS):
                # One that comes between a statement's preparation and its first step is lost.
                connection.interrupt()
                # The thread that is interrupted takes SQLite's lock while it holds the
                # interpreter's, to read its error. Our own statements do the reverse, as they ask
                # this authorizer: that is a deadlock. So it is let through first.
                time.sleep(_LEAVES_S)
            return _rolled_back(connection)

    def interrupt(self) -> None:
        """Have a statement of what is lent end. Any thread."""
        with _interrupting:
            if self.lent:
                self._connection.interrupt()

    def free(self) -> None:
        """The transaction has ended."""
        self.lent = self._ours = False
        self._connection = None

    def state(self) -> LentState:
        """Return what became of the transaction while it was lent."""
        connection = self._connection
        try:
            begun, changes = connection.in_transaction, connection.total_changes
            by_itself = self._by_itself and connection.isolation_level is not None
        except sqlite3.ProgrammingError:
            # It is closed, and COMMIT was refused.
            known = self._by_itself and self._begun is not None and not self._outside
            return LentState.UNDONE if known else LentState.UNKNOWN
        if self._outside or (self._begun is None and changes != self._before):
            return LentState.UNKNOWN
        if self._revoker is not None:
            return LentState.UNDONE
        if begun or self._begun is None or (by_itself and changes == self._begun):
            return LentState.OPEN
        # A driver begins before it writes, which was refused.
        return LentState.UNDONE if by_itself or changes == self._begun else LentState.UNKNOWN

    @property
    def has_written(self) -> bool:
        """Whether rows were changed since it was lent."""
        try:
            return bool(self._connection.total_changes != self._before)
        except sqlite3.ProgrammingError:
            return False

    def is_lost(self) -> bool:
        """Whether SQLite has rolled back the transaction that was lent, by itself."""
        connection = self._connection
        if self._begun is None or connection.in_transaction:
            return False
        # Where a driver begins another one, something has to be lost with this one.
        return not self._by_itself or connection.total_changes != self._begun

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        """Judge a part of a statement, as SQLite asks."""
        if not self.lent:
            if action == _TRANSACTION and not self._ours:
                self.stale = True
            return _OK
        if self._revoker is not None:
            mine = self._revoker == threading.get_ident()
            return _OK if mine else self._refuse("a statement of a handler that was given up")
        if action == _TRANSACTION:
            return self._judge(first or "")
        if self.is_lost():
            return self._refuse("a statement after the transaction was rolled back")
        return self.judge(action, first, second)

    def judge(self, action: int, first: str | None, second: str | None) -> int:
        """Judge what does not end the transaction: for subclasses."""
        return _OK

    def _judge(self, statement: str) -> int:
        changes = self._connection.total_changes
        if statement == "BEGIN" and not self._connection.in_transaction:
            if self._begun is None:
                self._outside = changes != self._before
                self._begun = changes
            if self._by_itself and self._begun == changes:
                # Nothing was lost with the one before it, if there was one.
                return _OK
        if statement == "ROLLBACK" and self._may_roll_back:
            return _OK
        return self._refuse(statement)

    def _refuse(self, what: str) -> int:
        self.refused = what
        return _DENY


def _rolled_back(connection: sqlite3.Connection) -> bool:
    """Roll a connection of another thread back; false: sqlite3 refuses that."""
    while True:
        try:
            # Statements that were prepared are prepared anew after any such pragma, and so ask.
            (value,) = connection.execute("PRAGMA query_only").fetchone()
            connection.execute(f"PRAGMA query_only={value}")
            connection.rollback()
        except sqlite3.OperationalError as error:
            # Ours can be interrupted with the other thread's.
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                return not connection.in_transaction
            time.sleep(_LEAVES_S)
        except sqlite3.ProgrammingError:
            return False
        else:
            return True


# What connections ask, by their ids. Each holds its own, and nothing else does: an entry goes with
# the connection, or where that is given another authorizer.
_kept: weakref.WeakValueDictionary[int, functools.partial[int]] = weakref.WeakValueDictionary()


def kept(connection: sqlite3.Connection) -> Owned | None:
    """Return our authorizer on a connection; None: it needs one (``keep``).

    To set one has SQLite prepare all statements of the connection anew, so it is kept between
    blocks: but where a statement that ends transactions may be among those prepared meanwhile.
    """
    asked = _kept.get(id(connection))
    if asked is None:
        return None
    owned: Owned = asked.args[0]
    return None if owned.stale else owned


def commits_by_itself(connection: Any) -> bool:
    """Whether each statement on a connection, of sqlite3 or aiosqlite, is committed by itself."""
    return not connection.in_transaction and (
        connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    )


def is_legacy(connection: sqlite3.Connection) -> bool:
    """Whether its driver begins transactions by itself, before a write.

    Not in Python 3.12's newer way, which has a transaction open always. In the connection's thread.
    """
    return getattr(connection, "autocommit", None) not in (True, False)


def keep(connection: sqlite3.Connection) -> Owned:
    """Set our authorizer on one of the application's connections, in place of any other.

    In the connection's thread.
    """
    owned = Owned()
    owned.legacy = is_legacy(connection)
    # Not itself: who holds it, as a traceback does, would keep the entry of another connection's.
    asked = functools.partial(Owned.__call__, owned)
    connection.set_authorizer(asked)
    _kept[id(connection)] = asked
    return owned
