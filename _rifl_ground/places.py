"""A bounded number of places, of which an exception at any line loses none."""

from __future__ import annotations

import functools
import queue
from contextlib import AbstractContextManager


def places(number: int, timeout_s: float) -> AbstractContextManager[None]:
    """Return what takes one of ``number`` places for a block of ``with``. Any thread, re-entrant.

    Raises ``queue.Empty`` after ``timeout_s`` without one. Use it in a ``with`` of the function
    that does the work, and in no ``contextmanager``, whose lines can be interrupted.
    """
    free: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(number):
        free.put(None)
    # A place is taken and put back by C: no signal comes between that and the block. ``put`` takes
    # what ``__exit__`` is given: the exception's type as the item, the rest it ignores.
    taken = type(
        "Places",
        (),
        {
            "__slots__": (),
            "__enter__": staticmethod(functools.partial(free.get, True, timeout_s)),
            "__exit__": staticmethod(free.put),
        },
    )
    made: AbstractContextManager[None] = taken()
    return made
