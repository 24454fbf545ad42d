"""Reasons of refusals, in one table: what each says to who gets it (DESIGN §3)."""

from __future__ import annotations

from typing import NamedTuple

from _rifl_ground.refusals import Outcome
from rifl.core._shared import errors
from rifl.core._shared.errors import RiflError


class Reason(NamedTuple):
    """One row: a reason, by its class, which has its gRPC code and whether the call can have run.

    ``retried``: the same identity is worth another attempt; ``retry_after_s`` is what servers
    say with it, the seconds after which asking again can make a difference. ``elsewhere``:
    nothing can be had at that server now. ``final``: it is said about the identity for all
    time, whatever earlier attempts met. ``forgotten``: the server keeps nothing under the
    identity, so that there is nothing to resolve. ``ends_lease``: said of a client id, that is
    of no more use. ``sends_on``: the next attempt goes to a server that can take it, and needs
    no token of the budget.
    """

    error: type[RiflError]
    retried: bool = False
    elsewhere: bool = False
    final: bool = False
    forgotten: bool = False
    ends_lease: bool = False
    sends_on: bool = False
    retry_after_s: float | None = None


_TABLE = (
    Reason(errors.RiflError),
    Reason(errors.BadHeader),
    Reason(errors.PayloadMismatch),
    Reason(errors.StaleRpc, forgotten=True),
    Reason(errors.LeaseExpired, forgotten=True, ends_lease=True),
    Reason(errors.SessionClosed, forgotten=True, ends_lease=True),
    Reason(errors.NotYours, ends_lease=True),
    Reason(errors.StoreMismatch, ends_lease=True),
    # The retry's header acknowledges more, so that there may be room then.
    Reason(errors.WindowExceeded, retried=True),
    Reason(errors.InProgress, retried=True, retry_after_s=0.05),
    Reason(errors.OutcomeUnknown, final=True),
    Reason(errors.NotExecuted, final=True),
    Reason(errors.NotLeader, retried=True, elsewhere=True, sends_on=True),
    Reason(errors.Draining, retried=True, elsewhere=True, sends_on=True, retry_after_s=0.1),
    Reason(errors.StoreUnavailable, retried=True, elsewhere=True, retry_after_s=0.1),
    Reason(errors.Overloaded, retried=True, elsewhere=True, retry_after_s=0.1),
    Reason(errors.Deposed, retried=True, sends_on=True, retry_after_s=0.1),
    Reason(errors.RecordPending, retried=True, retry_after_s=0.1),
    Reason(errors.ResponseTooLarge),
    Reason(errors.RequestTooLarge),
    Reason(errors.BatchTooLarge),
    Reason(errors.AnswerLost),
    Reason(errors.NotRecorded),
    Reason(errors.NotDeduplicated),
    Reason(errors.NotWrapped),
    Reason(errors.ForkedProcess),
    Reason(errors.ReentrantCall),
)
REASONS = {row.error.reason: row for row in _TABLE}

RETRIED_REASONS = frozenset(reason for reason, row in REASONS.items() if row.retried)
ELSEWHERE_REASONS = frozenset(reason for reason, row in REASONS.items() if row.elsewhere)
FINAL_REASONS = frozenset(reason for reason, row in REASONS.items() if row.final)
FORGOTTEN_REASONS = frozenset(reason for reason, row in REASONS.items() if row.forgotten)
SENT_ON_REASONS = frozenset(reason for reason, row in REASONS.items() if row.sends_on)
LOST_REASONS = frozenset(reason for reason, row in REASONS.items() if row.ends_lease)
# Refused for what the server was like at that moment. A copy of the attempt, such as a proxy
# makes, may meet another moment, and run, until the identity is acknowledged.
MOMENTARY_REASONS = frozenset(
    reason
    for reason, row in REASONS.items()
    if row.retried and row.error.outcome is Outcome.NOT_EXECUTED
)
# These say nothing of a key, which other callers share: it was not looked up.
NOT_OF_THE_KEY = frozenset(
    reason
    for reason, row in REASONS.items()
    if row.error.outcome is Outcome.NOT_EXECUTED and not row.error.of_the_key
)


def error_class(reason: str) -> type[RiflError] | None:
    """Return the class of an ErrorInfo reason, None for one we do not know."""
    row = REASONS.get(reason)
    return None if row is None else row.error


def told_outcome(refusal: RiflError | type[RiflError], *, keyed: bool) -> Outcome:
    """Return the outcome that a refused call is told: ``keyed`` tells that it has a key.

    Of one refusal, which may say less than its class (DESIGN §7, invariant 13), or of all
    of a class.
    """
    if keyed and refusal.outcome is Outcome.NOT_EXECUTED and not refusal.of_the_key:
        return Outcome.UNKNOWN
    return refusal.outcome
