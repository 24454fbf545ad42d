"""The HTTP status of each error of a call: the table of docs/how-to/recipes.md."""

from __future__ import annotations

import grpc

import rifl

__all__ = ["status_of"]

# What the bank means. Other codes of a handler are its bugs: their texts stay inside.
_MEANT = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}
# A retry gets the same, until an operator settles it or corrects the deployment.
_STAY = {"BAD_HEADER", "NOT_DEDUPLICATED", "NOT_YOURS", "OUTCOME_UNKNOWN", "SESSION_CLOSED"}
_REFUSED = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}


def status_of(error: rifl.CallError) -> tuple[int, str]:
    """Return the status, and a text for the customer: whether to try again, under the same key."""
    if isinstance(error, rifl.core.PayloadMismatch):
        return 422, "this key was used for another payment"
    answered = error.outcome in (rifl.Outcome.EXECUTED, rifl.Outcome.REPLAYED)
    if answered and error.code() in _MEANT:
        return 409, error.details()
    if answered or error.reason in _STAY or error.code() in _REFUSED:
        return 500, "we are looking at this payment"
    return 503, "try again"
