"""Terms of keys in a SQLite file, by the clock of the machine's boot."""

from __future__ import annotations

import math
import sqlite3

from sharedlog._core.errors import CorruptLog
from sharedlog._engines.terms import BootTerms, Term

_ALL = "SELECT key, 0, boot, expires_at, term_s FROM sharedlog_term"
_SET = "INSERT OR REPLACE INTO sharedlog_term VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM sharedlog_term WHERE key = ?"


def read_terms(connection: sqlite3.Connection) -> dict[str, Term]:
    """Return all of them, by key; in a transaction."""
    found = {key: Term(*term) for key, *term in connection.execute(_ALL)}
    for key, term in found.items():
        told = isinstance(term.expires_at, float) and isinstance(term.term_s, float)
        if not (told and math.isfinite(term.expires_at) and math.isfinite(term.term_s)):
            raise CorruptLog(f"the term of the log's key {key!r} is damaged")
    return found


class Terms:
    """The terms that a transaction finds, and those it begins and ends."""

    def __init__(self, terms: dict[str, Term], boots: BootTerms) -> None:
        """``terms``: what the file holds; changed with it."""
        self._terms = terms
        self._boots = boots
        self._changed: set[str] = set()

    @property
    def any(self) -> bool:
        """Whether any key has one."""
        return bool(self._terms)

    def over(self, key: str) -> bool:
        """Whether the key had a term that is over."""
        term = self._terms.get(key)
        return term is not None and self._boots.remaining_s(term) <= 0

    def put(self, key: str, term_s: float | None) -> None:
        """Begin a key's term; None: end it, for the key stays."""
        if term_s is not None:
            self._terms[key] = self._boots.term(0, term_s)
        elif not self._terms or self._terms.pop(key, None) is None:
            return
        self._changed.add(key)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write what changed."""
        for key in self._changed:
            term = self._terms.get(key)
            if term is None:
                connection.execute(_DROP, (key,))
            else:
                connection.execute(_SET, (key, term.boot, term.expires_at, term.term_s))
