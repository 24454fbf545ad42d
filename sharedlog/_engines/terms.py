"""Terms of keys, and what is left of one by the clock that it ends by (DESIGN §7, invariant 10).

``BootClock`` is a machine's, shared by its processes, and counts its sleep; ``BootTerms`` reads
terms by it. ``ServerTerms`` reads those that end by a server's clock, which may jump.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from _rifl_ground.system import boot, boottime

# So much a server's clock may seem to jump against this machine's because a reply was slow.
_JUMP_S = 0.25
# Terms of other boots that are remembered: each renewal in another container is one.
_MOST_FOREIGN = 100


class BootClock(NamedTuple):
    """Seconds since the machine's boot, and which boot that was.

    Dates of two boots cannot be compared. ``boot`` also tells time namespaces apart,
    as containers may have, for these shift the clock.
    """

    now: Callable[[], float]
    boot: str

    @classmethod
    def of_this_machine(cls) -> BootClock:
        """Return the machine's own."""
        return cls(boottime, boot())


class Term(NamedTuple):
    """When a term ends, as one process wrote it down for the others.

    ``number`` tells it from others that may have the same dates. ``boot`` is empty where a
    server's clock counts.
    """

    number: int
    boot: str
    expires_at: float
    term_s: float


class BootTerms:
    """What is left of terms that others wrote down; for one engine, under its lock.

    A term of another boot runs in full from when it is first seen here: the process that began it
    has most likely ended, and late is safe while early is not.
    """

    def __init__(self, clock: BootClock | None = None) -> None:
        """``clock``: this machine's, if none is given, once there is a term."""
        self._clock = clock
        self._foreign: dict[Term, float] = {}

    @property
    def clock(self) -> BootClock:
        """What terms end by."""
        if self._clock is None:
            self._clock = BootClock.of_this_machine()
        return self._clock

    def term(self, number: int, term_s: float) -> Term:
        """Return one that runs from now."""
        return Term(number, self.clock.boot, self.clock.now() + term_s, term_s)

    def remaining_s(self, term: Term) -> float:
        """Return the seconds left, 0.0 or less once it is over."""
        now = self.clock.now()
        if term.boot == self.clock.boot:
            return term.expires_at - now
        foreign = self._foreign
        while len(foreign) > _MOST_FOREIGN:
            # It would begin anew.
            foreign.pop(next(iter(foreign)), None)
        return foreign.setdefault(term, now) + term.term_s - now


class ServerTerms:
    """Keeps a clock that jumps forward from ending a term early. For one engine.

    The process that began a term counts from when it asked, by a clock that does not jump. So
    once the server's clock is seen to jump between two looks, each term that began before gets
    its whole length from then: late is safe, early is not. A jump back only makes a term longer.
    A jump while no process looks cannot be noticed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, float] | None = None
        # The newest jump: where the server's clock was behind it, and when it was seen.
        self._jumped_to = float("-inf")
        self._seen = 0.0

    def remaining_s(self, term: Term, server_now: float) -> float:
        """Return the seconds left, as of the server's time just read."""
        now = self._clock()
        if self._last is not None:
            server_then, then = self._last
            if server_now - server_then > now - then + _JUMP_S:
                self._jumped_to, self._seen = server_now, now
        self._last = (server_now, now)
        left_s = term.expires_at - server_now
        if term.expires_at - term.term_s < self._jumped_to:
            left_s = max(left_s, self._seen + term.term_s - now)
        return left_s
