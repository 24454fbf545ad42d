"""Owned transactions of PostgreSQL: other code runs in one, and is found out if it ends it.

A transaction is marked as it begins by a setting of its own, which ends with it: whatever runs
without the mark is another one. A second setting is the session's from the commit on: after a
rollback it tells whether the marked transaction was committed.

Settings, since a statement that reads would take the snapshot, and a handler could no longer set
the isolation level.
"""

from __future__ import annotations

import functools
import re
import secrets
from enum import Enum
from typing import Any, NamedTuple

_MARK, _COMMITTED = "rifl.transaction", "rifl.committed"
# There is no such setting: to read it is an error, whose text has the name.
_ENDED = "rifl.transaction_was_ended"
_NO_SETTING = "42704"
# What other code may leave set, and our statements, which are qualified, need as it was.
_PUT_BACK = "role"
# In our own sessions also what would hold for the next transaction.
OF_SESSIONS = (
    _PUT_BACK,
    "search_path",
    "default_transaction_read_only",
    "default_transaction_isolation",
    "default_transaction_deferrable",
    "synchronous_commit",
    "session_replication_role",
    "statement_timeout",
    "lock_timeout",
)
# Nothing of the handler's, such as a deferred trigger, runs after our own statements.
CHECKED = "SET CONSTRAINTS ALL IMMEDIATE"
# ``TransactionMark.check`` as rifl's PL/pgSQL function does it, which costs a fraction: it is
# told the mark's ``token`` as p_mark, empty for a transaction without one. What was left set has to
# be ``put_back`` before.
CHECKING_ITSELF = f"""IF p_mark <> '' THEN
        IF current_setting('{_MARK}', true) IS DISTINCT FROM p_mark THEN
            PERFORM current_setting('{_ENDED}');
        END IF;
        {CHECKED};
    END IF;"""
READ_MARK = f"SELECT current_setting('{_MARK}', true)"
READ_COMMITTED = f"SELECT current_setting('{_COMMITTED}', true)"


class Fate(Enum):
    """What became of a marked transaction, once whatever ran in its place is rolled back."""

    UNDONE = "it was rolled back"
    COMMITTED = "a COMMIT (or PREPARE TRANSACTION) ended it"
    LOST = "a ROLLBACK or RESET ALL ended it or wiped its mark, and what ran then is not known"
    CLOSED = "its connection was closed within the block"
    # Usually a server that stopped, or a network failure, and no mistake of the handler's.
    CUT_OFF = "its connection was lost"


class TransactionMark(NamedTuple):
    """The mark of a transaction.

    ``settings``: what is put back before our own statements, as it was at the beginning, or when
    the session was opened. ``lasting``: put back for the session, which is ours.
    """

    token: str
    settings: tuple[tuple[str, bytes], ...] = ()
    lasting: bool = False
    # Another transaction is known to run in its place.
    is_lost: bool = False

    @classmethod
    def new(cls) -> TransactionMark:
        """Return a mark that no other transaction has."""
        return cls(secrets.token_hex(8))

    @classmethod
    def of_session(cls, settings: tuple[tuple[str, bytes], ...]) -> TransactionMark:
        """Return a mark for one of our sessions; ``settings``: as they were when it was opened."""
        return cls(secrets.token_hex(8), settings, lasting=True)

    @property
    def statements(self) -> tuple[str, ...]:
        """What marks the transaction, as its first statements."""
        return f"SET LOCAL {_MARK} = '{self.token}'", f"SET {_COMMITTED} = '{self.token}'"

    @property
    def message(self) -> bytes:
        """The same, in one message, which reads the settings last, if need be: see ``begun``."""
        return (_MARKED if self.lasting else _MARKED_AND_SHOWN) % {b"token": self.token.encode()}

    def begun(self, results: list[Any]) -> TransactionMark:
        """Return it with the settings, by libpq's results of the message."""
        if self.lasting:
            return self
        return TransactionMark(self.token, ((_PUT_BACK, results[-1].get_value(0, 0) or b""),))

    @property
    def put_back(self) -> bytes:
        """Statements that put back for the transaction what was left set: see ``CHECKING_ITSELF``.

        Nothing of another transaction is lost by them.
        """
        return _put_back(self.settings)

    @property
    def check(self) -> bytes:
        """What comes before our own statements: ``judging``, then ``CHECKED``."""
        return self.judging + b"; " + CHECKED.encode()

    @property
    def judging(self) -> bytes:
        """A statement that fails in another transaction (``is_ended``).

        In this one it puts back what was left set.
        """
        return _judging(self.settings, self.lasting).replace(b"%token%", self.token.encode())

    def fate(self, mark: str | None, committed: str | None, *, failed: bool) -> Fate:
        """Return what became of it, by what is read.

        ``mark`` before the rollback of what was open, None if nothing was or it had ``failed``;
        ``committed`` after it.
        """
        if committed == self.token:
            return Fate.COMMITTED
        undone = not self.is_lost and (failed or mark == self.token)
        return Fate.UNDONE if undone else Fate.LOST


_MARKED = f"SET LOCAL {_MARK} = '%(token)s'; SET {_COMMITTED} = '%(token)s'".encode()
_MARKED_AND_SHOWN = _MARKED + f"; SHOW {_PUT_BACK}".encode()


@functools.lru_cache(maxsize=256)
def _judging(settings: tuple[tuple[str, bytes], ...], lasting: bool) -> bytes:
    """Return what judges a transaction, with a place for its mark's token."""
    ended = (
        f"CASE WHEN current_setting('{_MARK}', true) IS DISTINCT FROM '%token%' "
        f"THEN current_setting('{_ENDED}') END"
    ).encode()
    local = b"false" if lasting else b"true"
    back = [
        b"CASE WHEN current_setting('%s') <> %s THEN set_config('%s', %s, %s) END"
        % (name.encode(), literal, name.encode(), literal, local)
        for name, value in settings
        for literal in (_literal(value),)
    ]
    return b"SELECT " + b", ".join((ended, *back))


@functools.lru_cache(maxsize=256)
def _put_back(settings: tuple[tuple[str, bytes], ...]) -> bytes:
    # A tenth of what it costs to compare them first.
    return b"; ".join(
        b"SET LOCAL %s = %s" % (name.encode(), _literal(value)) for name, value in settings
    )


def settings_of(names: tuple[str, ...], results: list[Any]) -> tuple[tuple[str, bytes], ...]:
    """Return settings by libpq's results of a SHOW of each, the last ones."""
    shown = zip(names, results[-len(names) :], strict=True)
    return tuple([(name, each.get_value(0, 0) or b"") for name, each in shown])


def is_ended(sqlstate: str | None, text: str | None) -> bool:
    """Whether an error is that of a ``check`` in another transaction."""
    return sqlstate == _NO_SETTING and _ENDED in (text or "")


def _literal(value: bytes) -> bytes:
    """Return a text as SQL has it, whatever the session's settings for text are."""
    return b"E'" + value.replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"


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
