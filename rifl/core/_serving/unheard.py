"""Runs that no caller waits for: when their handlers are cancelled (DESIGN §4)."""

from __future__ import annotations

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.call import Call

# A client's deadline and its server's are so much apart: of the attempt's time, and in seconds.
_DRIFT_SHARE = 0.1
_DRIFT_S = 0.05


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
