"""Runs that no caller waits for: which are cancelled, and how many others there may be (DESIGN §4).

No clock: times are given.
"""

from __future__ import annotations

from collections import deque

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.call import Call

# A client's deadline and its server's are so much apart: of the attempt's time, and in seconds.
_DRIFT_SHARE = 0.1
_DRIFT_S = 0.05
# So many runs for no caller are always allowed; so many deadlines, and ends, are remembered.
_LEAST = 16
_SEEN = 64
_ENDS = 4096
# As long as no deadline was seen, in seconds.
_DEADLINE_S = 10.0


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
    drift_s = max(_DRIFT_S, _DRIFT_SHARE * call.attempt_s)
    if of_attempt and remaining_s is not None and remaining_s > drift_s:
        return now
    return max(now, call.tried_until)


def cancelled_at(attempt: Attempt, until: float) -> float | None:
    """Return when a run is cancelled whose caller left, and may come again ``until`` then.

    None: not as long as a duplicate waits here, and never once what it did may be committed: the
    handler's COMMIT, or the end of its part of a shared transaction, has begun.
    """
    if attempt.duplicates or attempt.committing or attempt.recorded is not None:
        return None
    return until


class UnheardBound:
    """How many handlers of a method that are not cancelled may run for no caller.

    So few that they end within half of the deadlines seen: as many as have ended in that time just
    now, and a few more. Beyond, new calls are refused until they have ended: these would wait
    behind them, and be too late. ``most``: a number in place of that. Not thread-safe.
    """

    def __init__(self, most: int | None = None) -> None:
        self.running = 0
        self._most = most
        self._ends: deque[float] = deque(maxlen=_ENDS)
        self._seen: deque[float] = deque(maxlen=_SEEN)

    def left(self) -> None:
        """Note that a handler runs for no caller."""
        self.running += 1

    def heard(self) -> None:
        """Note that a duplicate has come for one of them."""
        self.running -= 1

    def ended(self, now: float) -> None:
        """Note that one of them has ended."""
        self.running -= 1
        self._ends.append(now)

    def refuses(self, remaining_s: float | None, now: float) -> bool:
        """Whether a new call, with so much time left, is refused."""
        if remaining_s is not None:
            self._seen.append(remaining_s)
        return self.running > (self._allowed(now) if self._most is None else self._most)

    def _allowed(self, now: float) -> int:
        seen = sorted(self._seen)
        half_s = (seen[len(seen) // 2] if seen else _DEADLINE_S) / 2
        while self._ends and self._ends[0] < now - half_s:
            self._ends.popleft()
        return max(_LEAST, len(self._ends))
