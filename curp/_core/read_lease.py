"""The leadership's lease: how it is kept, and how long reads are answered by it (DESIGN §7: 10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from curp._core.steps import Pause
from curp.log._errors import may_pass

_RENEWALS_PER_TERM = 4
# A lease runs from when the engine judges it, and is seen, also to run on, once it is committed:
# so long is one that is asked for, in what a renewal takes, beside the pause before the next one.
_COMMITS = 3
# And no longer than so many terms: as long is a leader missed that died.
_MOST_TERMS = 8


class LeaseLength:
    """How long a lease is asked for: a term, or longer while the engine is slow.

    It follows from the time that the engine took for the last grant, so that no lease ends
    before it can be renewed. If a term is enough, it is a term. One thread.
    """

    def __init__(self, term_s: float) -> None:
        self._term_s = term_s
        self.every_s = term_s / _RENEWALS_PER_TERM
        self._took_s = 0.0

    def took(self, seconds: float) -> None:
        """Take how long the engine took to grant one."""
        self._took_s = seconds

    @property
    def asked_s(self) -> float:
        """How long the next lease must be, seconds."""
        wanted_s = _COMMITS * self._took_s + self.every_s
        return min(max(self._term_s, wanted_s), _MOST_TERMS * self._term_s)

    @property
    def first_pause_s(self) -> float:
        """When to renew one that was just taken, of which so much was over when it was seen."""
        return max(0.0, self.every_s - self._took_s)


class ReadLease:
    """A leader's own view of its lease, which ends before the engine's does.

    Invariant 10 (DESIGN §7): it counts from when the renewal that succeeded was
    *sent*, and ends earlier by ``drift`` of its term: a clock here may run slower
    than the engine's by as much, and a take-over waits out the engine's lease.

    It counts on a term, however much longer the lease is that was asked for: a renewal that was
    sent before, and not answered, may arrive later, and asks for a term at least.

    Times are seconds of one clock that also counts while the machine sleeps
    (``CLOCK_BOOTTIME``). Not thread-safe, but ``valid`` may be asked at any time.
    """

    def __init__(self, term_s: float, *, drift: float) -> None:
        if not (math.isfinite(term_s) and term_s > 0):
            raise ValueError("term_s must be positive and finite")
        if not 0 < drift < 1:
            raise ValueError("drift is a share of the term, between 0 and 1")
        self._term_s = term_s
        self._length_s = term_s * (1 - drift)
        self._until = -math.inf
        self._ends = -math.inf

    def renewed(self, sent_at: float, asked_s: float = 0.0) -> None:
        """Note that the engine granted a renewal sent at ``sent_at``, for a term or longer."""
        self._until = max(self._until, sent_at + self._length_s)
        self._ends = max(self._ends, sent_at + max(self._term_s, asked_s))

    def end(self) -> None:
        """Answer no more reads, until renewed."""
        self._until = self._ends = -math.inf

    def over(self, now: float) -> bool:
        """Return whether another replica may lead by now, as far as this clock tells.

        Only a hint where to send calls: no safety depends on it.
        """
        return now >= self._ends

    def valid(self, now: float) -> bool:
        """Whether a read whose state was read before ``now`` may be answered."""
        return now < self._until


class Renew(NamedTuple):
    """Ask the engine to renew the leadership's lease so long, under the number in force."""

    term_s: float


class Resume(NamedTuple):
    """A lease that was over runs again: no other replica has led."""


def keep_lease(
    lease: ReadLease, length: LeaseLength, clock: Callable[[], float], over: Callable[[], bool]
) -> Generator[Pause | Renew | Resume, Any, None]:
    """Renew until the leadership ends. Raises what the engine refuses with.

    Also through a recovery, however long that takes. While the engine cannot be asked it goes
    on trying, and the read lease runs out by itself (invariant 10). ``over``: whether the
    leadership is given up, so that no read uses the lease any more.
    """
    pause_s = length.first_pause_s
    while not (yield Pause(pause_s)):
        pause_s = length.every_s
        sent_at, asked_s = clock(), length.asked_s
        try:
            yield Renew(asked_s)
        except Exception as error:
            if may_pass(error):
                continue
            lease.end()
            raise
        if over():
            return
        now = clock()
        length.took(now - sent_at)
        if lease.over(now):
            yield Resume()
        if not over():
            lease.renewed(sent_at, asked_s)
