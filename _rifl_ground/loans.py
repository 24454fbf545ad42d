"""Loans: a connection is lent to user code for one run, and refuses whatever that run left behind.

A coroutine or a thread can outlive the function that started it. What it was lent then belongs to
the next run's transaction.
"""

from __future__ import annotations

from collections.abc import Callable


class Loan:
    """One run of user code. Connections and cursors that were lent for it ask before they act."""

    __slots__ = ("_refusal", "over")

    def __init__(self, refusal: Callable[[], Exception]) -> None:
        """``refusal``: makes what is raised once the run is over."""
        self._refusal = refusal
        self.over = False

    def check(self) -> None:
        """Raise the refusal if the run is over."""
        if self.over:
            raise self._refusal()
