"""Runs that no caller waits for: which are cancelled, and how many may run then (DESIGN §4).

No clock: times are given.
"""

from __future__ import annotations

import math
from collections import deque

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.call import Call

# A client's deadline and its server's are so much apart: of the attempt's time, and in seconds.
_DRIFT_SHARE = 0.1
_DRIFT_S = 0.05
# So many handlers may always run.
_LEAST = 4
# New calls are refused if, of so many calls, as many came too late as did not.
_KNOWN = 64
# So many ends tell at what rate handlers end.
_ENDS = 128
# A new call may wait for so much of its own time.
_SHARE = 0.75
# Of a call without a deadline, in seconds.
_NO_DEADLINE_S = 10.0
# Calls are refused for so many times of one; of those beyond the bound one in so many goes.
_REFUSING = 16
_SPARED = 8


def may_be_cancelled(policy: MethodPolicy) -> bool:
    """Whether a method's calls may run again, so that a handler need not go on for no caller."""
    return policy.cancel_unheard and policy.kind is not Kind.PLAIN


def tried_until(call: Call, remaining_s: float | None, now: float) -> float:
    """Return until when an arrival that ends at ``now`` may be followed by another attempt.

    Its header said that the call may be tried for longer. If its deadline was an attempt's, and
    time was left, its caller has cancelled the call; if it was the call's, its client may have cut
    off the attempt.
    """
    if not call.tried_until:
        return now
    of_attempt = call.attempt_s < (1 - _DRIFT_SHARE) * call.try_ms / 1000
    if of_attempt and remaining_s is not None and not is_over(call, remaining_s):
        return now
    return max(now, call.tried_until)


def is_over(call: Call, remaining_s: float | None) -> bool:
    """Whether the time of an arrival that ends was over: its caller did not cancel it."""
    drift_s = max(_DRIFT_S, _DRIFT_SHARE * call.attempt_s)
    return remaining_s is not None and remaining_s <= drift_s


def cancelled_at(attempt: Attempt, until: float) -> float | None:
    """Return when a run is cancelled whose caller left, and may come again ``until`` then.

    None: not as long as a duplicate waits here, and never once what it did may be committed: the
    handler's COMMIT, or the end of its part of a shared transaction, has begun.
    """
    if attempt.duplicates or attempt.committing or attempt.recorded is not None:
        return None
    return until


class RunBound:
    """How many coroutine handlers of a method may run, once its calls come too late.

    Handlers wait for what they share, such as connections, and callers leave meanwhile. If as many
    of the last calls came too late as did not, a new call is refused while more run than end within
    three quarters of its own time, so that those that run end in time. Ends are also those of
    handlers that are cancelled: calls that wait for something else, each by itself, keep others out
    only if they are most of them.

    Invariants:

    1. Until a call comes too late, none is counted, or refused.
    2. One in eight beyond the bound goes, and after sixteen times of one call all go, until as many
       came too late again: no estimate keeps calls out.

    ``most``: in place of that, how many may run for no caller. Not thread-safe.
    """

    def __init__(self, most: int | None = None) -> None:
        # Whether new calls are counted: shells look before each.
        self.counts = False
        self.running = self.unheard = 0
        self._most = most
        self._ends: deque[float] = deque(maxlen=_ENDS)
        # Whether the last calls that were counted came too late, and how many did.
        self._last: deque[bool] = deque(maxlen=_KNOWN)
        self._late = 0
        self._refusing_until = -math.inf
        self._beyond = 0

    def begin(self, time_s: float | None, now: float) -> bool:
        """Count a new call's handler, which has so much time; False: it is refused."""
        if self._refuses(_NO_DEADLINE_S if time_s is None else time_s, now):
            return False
        self.running += 1
        return True

    def end(self, now: float, *, ran: bool = True, late: bool = False) -> None:
        """Count one no longer. ``late``: its call came too late, which is noted already."""
        self.running -= 1
        if not ran:
            return
        self._ends.append(now)
        if not late:
            self._note(late=False)
        if self._most is None and not self._late and len(self._last) == _KNOWN:
            self.counts = now < self._refusing_until
        if not self.counts:
            self._ends.clear()
            self._last.clear()

    def too_late(self, time_s: float | None, now: float) -> None:
        """Note that a call's time was over while its handler ran.

        ``time_s``: how much it had, None if it was not counted.
        """
        if self._most is not None:
            return
        self.counts = True
        if time_s is not None:
            self._note(late=True)
            if self._late >= _KNOWN / 2 and now >= self._refusing_until:
                self._refusing_until = now + _REFUSING * time_s
                self._last.clear()
                self._late = 0

    def left(self, *, counted: bool) -> None:
        """Note that a handler runs for no caller. ``counted``: since it began."""
        self.unheard += 1
        self.running += not counted
        self.counts = self.counts or self._most is not None

    def heard(self, *, counted: bool, ended_at: float | None = None) -> None:
        """Note that one of them has ended, or, ``ended_at`` None, runs for a caller again."""
        self.unheard -= 1
        if not counted:
            self.running -= 1
            if ended_at is not None:
                self._ends.append(ended_at)
        if self._most is not None:
            self.counts = self.unheard > 0

    def _note(self, *, late: bool) -> None:
        if len(self._last) == _KNOWN:
            self._late -= self._last[0]
        self._last.append(late)
        self._late += late

    def _refuses(self, time_s: float, now: float) -> bool:
        if self._most is not None:
            return self.unheard > self._most
        if now >= self._refusing_until or self.running < _LEAST:
            return False
        ends = self._ends
        while ends and ends[0] < now - time_s:
            ends.popleft()
        if ends and self.running * (now - ends[0]) <= _SHARE * time_s * len(ends):
            return False
        self._beyond += 1
        return self._beyond % _SPARED != 0
