"""The teller of commits of handlers' transactions that we make in PostgreSQL (DESIGN §9)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from rifl._stores.postgres.commits import was_answered
from rifl._stores.shared.backend import BackendError


class Teller:
    """Tells of a commit that was done, or of which no answer came.

    One that was refused is the handler's, or another copy of its call has committed. ``observe``
    hears when it began, by ``clock``, its error if it is not known to have been done or refused,
    and how many records are in it.
    """

    def __init__(self, clock: Callable[[], float], observe: Callable[..., None]) -> None:
        self._clock = clock
        self._observe = observe

    def begun(self) -> float:
        """Say that a commit begins; returns what the others are given of it."""
        return self._clock()

    def done(self, began: float, entries: int = 1) -> None:
        """Tell of one that was done."""
        self._observe(began, None, entries)

    def unanswered(self, began: float, error: BaseException, entries: int = 1) -> None:
        """Tell of one of which no answer came, if that is the server's or the way's error."""
        if isinstance(error, (psycopg.Error, BackendError)):
            self._observe(began, error, entries)

    @contextlib.contextmanager
    def of(self, transaction: Any, entries: int) -> Iterator[None]:
        """Have the commit of a transaction within."""
        began = self.begun()
        try:
            yield
        except BaseException as error:
            if not was_answered(transaction):
                self.unanswered(began, error, entries)
            raise
        self.done(began, entries)
