"""Runs without a claim: calls whose handlers run before a store has decided (DESIGN §4, step 6)."""

from __future__ import annotations

from rifl.core._serving.policy import Kind, MethodPolicy
from rifl.core._shared.call import Call

# How a method is declared whose first attempts may run so: by its kind, and what it says of claims.
Declared = tuple[Kind, str | None]
# Its handler's transaction decides, and undoes a run that comes second.
BY_COMMIT: Declared = (Kind.ATOMIC, None)
# Its record decides, and nothing is undone.
BY_RECORD: Declared = (Kind.IDEMPOTENT, "never")


def may_run_unclaimed(call: Call, policy: MethodPolicy) -> bool:
    """Whether the handler may run before anything is decided about this arrival.

    All that it does is in a transaction, whose commit decides; or the method is idempotent, and
    says that its record alone decides. Only a first attempt, since for any other the handler
    would mostly run for nothing, and one that was not asked about yet: who lost a race does not
    enter it again.
    """
    return _may_begin_so(call, policy) and is_first(call) and not call.asked


def may_run_beside(call: Call, policy: MethodPolicy) -> bool:
    """Whether a first attempt of the call may run somewhere without a claim, beside this arrival.

    It may be suspended and commit later, as long as no record of the call stands: without one
    this arrival must not be told that the call is not executed.
    """
    return _may_begin_so(call, policy) and not is_first(call)


def _may_begin_so(call: Call, policy: MethodPolicy) -> bool:
    return (
        (policy.kind, policy.claim) in (BY_COMMIT, BY_RECORD)
        and call.key is None
        and not call.streamed
    )


def is_first(call: Call) -> bool:
    """Whether the header says that this is the first attempt, and gRPC made no other."""
    return call.attempt == 1 and not call.retried_by_grpc
