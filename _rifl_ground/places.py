"""A bounded number of places, of which an exception at any line loses none."""

from __future__ import annotations

import functools
import queue
from types import TracebackType
from typing import Protocol

# Of so many different time-outs the places are kept.
_TIMES = 64


class Places(Protocol):
    """Takes one of the places for a block of ``with``. Any thread, re-entrant."""

    def __enter__(self) -> None:
        """Take a place; raises ``queue.Empty`` after the time-out."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Put it back."""

    def all_free(self) -> bool:
        """Return whether no block runs."""

    def within(self, timeout_s: float) -> Places:
        """Return the same places for who waits so long for one."""


def places(number: int, timeout_s: float) -> Places:
    """Return what takes one of ``number`` places for a block of ``with``. Any thread, re-entrant.

    Raises ``queue.Empty`` after ``timeout_s`` without one. Use it in a ``with`` of the function
    that does the work, and in no ``contextmanager``, whose lines can be interrupted.
    """
    free: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(number):
        free.put(None)

    @functools.lru_cache(_TIMES)
    def within(timeout_s: float) -> Places:
        # A place is taken and put back by C: no signal comes between that and the block. ``put``
        # takes what ``__exit__`` is given: the exception's type as the item, the rest it ignores.
        taken = type(
            "Places",
            (),
            {
                "__slots__": (),
                "__enter__": staticmethod(functools.partial(free.get, True, timeout_s)),
                "__exit__": staticmethod(free.put),
                "all_free": staticmethod(lambda: free.qsize() == number),
                "within": staticmethod(within),
            },
        )
        made: Places = taken()
        return made

    return within(timeout_s)
