"""gRPC's status codes, by name: their numbers, and what each says of a call (DESIGN §3).

``rifl._grpc.codes`` has them as gRPC's own enum.
"""

from __future__ import annotations

from _rifl_ground.refusals import Outcome
from rifl.core._shared.errors import ResponseTooLarge

# google.rpc.Code, by its numbers, which records keep.
_NAMES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS "
    "PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED "
    "INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
)
CODE_NUMBERS = {name: number for number, name in enumerate(_NAMES.split())}
_DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
# What transports, proxies and gRPC's own runtime answer. None of them says whether the
# handler ran; UNAVAILABLE does not either unless it is labelled. And since they may pass,
# retry loops around a channel repeat them: those of libraries, and those anyone would write.
TRANSPORT_CODES = frozenset(
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
# Codes by which gRPC says that no server answered: of a call, and of a heartbeat. A heartbeat's
# deadline is our own and only its shell cancels it, when no answer came in time; a call's
# deadline and cancellation are the caller's, and say nothing of the server.
UNREACHED_CODES = frozenset({"UNAVAILABLE"})
# A server that stops may cancel its calls before it closes the connection.
LOST_CODES = frozenset({"UNAVAILABLE", "CANCELLED"})
UNREACHED_HEARTBEAT_CODES = frozenset({"UNAVAILABLE", _DEADLINE_EXCEEDED, "CANCELLED"})
# What a call that may have run is raised with: no retry policy repeats it.
MAY_HAVE_RUN_CODE = "FAILED_PRECONDITION"


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
    # A party on the way answered the one attempt there was, such as an interceptor that
    # authorises: by a code that is not repeated, and that applications look for.
    return MAY_HAVE_RUN_CODE if attempts > 1 or code in TRANSPORT_CODES else code
