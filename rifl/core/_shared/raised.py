"""The status code that a failed call is raised with (DESIGN §3)."""

from __future__ import annotations

from rifl.core._shared.errors import ResponseTooLarge, RiflError
from rifl.core._shared.outcome import Outcome

MAY_HAVE_RUN_CODE = "FAILED_PRECONDITION"
_DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
# What retry loops around a channel repeat: those of libraries, and those anyone would write.
_REPEATED_CODES = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DATA_LOSS",
        _DEADLINE_EXCEEDED,
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNKNOWN",
    }
)


def told_outcome(refusal: RiflError | type[RiflError], *, keyed: bool) -> Outcome:
    """Return the outcome that a refused call is told: ``keyed`` tells that it has a key.

    Of one refusal, which may say less than its class (DESIGN §7, invariant 13), or of all
    of a class.
    """
    if keyed and refusal.outcome is Outcome.NOT_EXECUTED and not refusal.of_the_key:
        return Outcome.UNKNOWN
    return refusal.outcome


def raised_code(
    code: str,
    outcome: Outcome,
    reason: str,
    *,
    attempts: int,
    keep_deadline_exceeded: bool = False,
) -> str:
    """Return the code that the application sees, for a call with an identity that ended so.

    A loop around the channel repeats a call by its code, and each repetition has an
    identity of its own. So a call that may have run gets a code that no policy
    repeats; what did not run, and what the handler itself answered, keeps its own.
    ``keep_deadline_exceeded``: the application looks for that code, and repeats nothing.
    """
    if outcome is Outcome.NOT_EXECUTED:
        return code
    if outcome is not Outcome.UNKNOWN:
        # The handler's answer is too large, and would be again after a second effect.
        return MAY_HAVE_RUN_CODE if reason == ResponseTooLarge.reason else code
    if code == _DEADLINE_EXCEEDED and keep_deadline_exceeded:
        return code
    # Somebody on the way answered the one attempt there was, such as an interceptor that
    # authorises: by a code that is not repeated, and that applications look for.
    return MAY_HAVE_RUN_CODE if attempts > 1 or code in _REPEATED_CODES else code
