"""The leadership's lease: how it is kept, and how long reads are answered by it (DESIGN §7: 10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from curp._core.steps import Pause
from curp.log._errors import may_pass

_RENEWALS_PER_TERM = 4


class ReadLease:
    """A leader's own view of its lease, which ends before the engine's does.

    Invariant 10 (DESIGN §7): it counts from when the renewal that succeeded was
    *sent*, and ends earlier by ``drift`` of its term: a clock here may run slower
    than the engine's by as much, and a take-over waits out the engine's lease.

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

    def renewed(self, sent_at: float) -> None:
        """Take that the engine granted a renewal which was sent then."""
        self._until = max(self._until, sent_at + self._length_s)
        self._ends = max(self._ends, sent_at + self._term_s)

    def end(self) -> None:
        """Answer no more reads, until renewed."""
        self._until = self._ends = -math.inf

    def over(self, now: float) -> bool:
        """Whether somebody else may lead by now, as far as this clock tells.

        No more than a hint where calls had better go: nothing is safe by it.
        """
        return now >= self._ends

    def valid(self, now: float) -> bool:
        """Whether a read whose state was read before ``now`` may be answered."""
        return now < self._until

    def left_s(self, now: float) -> float:
        """How long it is valid from now on; 0.0 if it is not."""
        return max(0.0, self._until - now)


class Renew(NamedTuple):
    """Ask the engine to renew the leadership's lease, under the number in force."""


class Resume(NamedTuple):
    """Take that a lease which was over runs again: nobody else has led."""


def keep_lease(
    lease: ReadLease, term_s: float, clock: Callable[[], float], over: Callable[[], bool]
) -> Generator[Pause | Renew | Resume, Any, None]:
    """Renew until the leadership ends. Raises what the engine refuses with.

    Also through a recovery, however long that takes. While the engine cannot be asked it goes
    on trying, and the read lease runs out by itself (invariant 10). ``over``: whether the
    leadership is let go of, so that nothing is read by the lease any more.
    """
    while not (yield Pause(term_s / _RENEWALS_PER_TERM)):
        sent_at = clock()
        try:
            yield Renew()
        except Exception as error:
            if may_pass(error):
                continue
            lease.end()
            raise
        if over():
            return
        if lease.over(clock()):
            yield Resume()
        if not over():
            lease.renewed(sent_at)
