"""Terms of keys in a SQLite file, by the clock of the machine's boot."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from types import MappingProxyType

from sharedlog._core.errors import CorruptLog
from sharedlog._engines.sqlite.renewals import Renewed, RenewedTerms, digest
from sharedlog._engines.terms import BootClock, BootTerms, Term

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


class FileTerms(BootTerms):
    """``BootTerms`` of a log file; ``renewals``: what is beside it, if anything."""

    def __init__(
        self, clock: BootClock | None = None, renewals: RenewedTerms | None = None
    ) -> None:
        super().__init__(clock)
        self.renewals = renewals


class Terms:
    """The terms that a transaction finds, and those it begins, renews and ends."""

    # As they are beside the file, once that was read.
    _beside: Mapping[bytes, Renewed] | None = None
    # By this transaction; few do.
    _renewed: Mapping[str, Term] = MappingProxyType({})

    def __init__(self, terms: dict[str, Term], boots: FileTerms) -> None:
        """``terms``: what the file holds; changed with it."""
        self._terms = terms
        self._boots = boots
        self._changed: set[str] = set()

    @property
    def any(self) -> bool:
        """Whether any key has one."""
        return bool(self._terms)

    @property
    def renewed(self) -> bool:
        """Whether this transaction renews terms."""
        return bool(self._renewed)

    def remaining_s(self, key: str) -> float | None:
        """Return the seconds left of a key's term, 0.0 or less once it is over; None: no term."""
        began = self._terms.get(key)
        if began is None:
            return None
        term = self._renewed.get(key)
        if term is None and self._boots.renewals is not None:
            if self._beside is None:
                self._beside = self._boots.renewals.read()
            found = self._beside.get(digest(key))
            # One of a term that was put anew since counts no more.
            if found is not None and found.began_with == began.expires_at:
                term = self._boots.renewals.term_of(found, self._boots.clock.boot)
        return self._boots.remaining_s(term or began)

    def over(self, key: str) -> bool:
        """Whether the key had a term that is over."""
        left_s = self.remaining_s(key)
        return left_s is not None and left_s <= 0

    def put(self, key: str, term_s: float | None) -> None:
        """Begin a key's term; None: end it, for the key stays."""
        if key in self._renewed:
            self._renewed = {each: term for each, term in self._renewed.items() if each != key}
        if term_s is not None:
            self._terms[key] = self._boots.term(0, term_s)
        elif not self._terms or self._terms.pop(key, None) is None:
            return
        self._changed.add(key)

    def renew(self, key: str, term_s: float) -> bool:
        """Have the term of a key that is there run anew; False: it must be put in the file."""
        if self._boots.renewals is None or key not in self._terms:
            return False
        self._renewed = {**self._renewed, key: self._boots.term(0, term_s)}
        self._changed.add(key)
        return True

    def write_beside(self) -> bool:
        """Write what was renewed beside the file; with its lock. False: it must go into it."""
        if self._boots.renewals is None:
            return False
        return self._boots.renewals.write(self._terms, self._renewed, self._boots.clock)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write what changed, and what was renewed."""
        for key in self._changed:
            if key in self._renewed:
                self._terms[key] = self._renewed[key]
            newest = self._terms.get(key)
            if newest is None:
                connection.execute(_DROP, (key,))
            else:
                connection.execute(_SET, (key, newest.boot, newest.expires_at, newest.term_s))
