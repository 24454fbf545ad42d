"""The answer to one attempt of a call, and the judgement of it (DESIGN §3)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from _rifl_ground.refusals import Outcome
from rifl.core._calling.issued_call import IssuedCall
from rifl.core._calling.retry import pause_s
from rifl.core._shared import errors
from rifl.core._shared.codes import LOST_CODES, TRANSPORT_CODES
from rifl.core._shared.reasons import (
    FINAL_REASONS,
    FORGOTTEN_REASONS,
    MOMENTARY_REASONS,
    NOT_OF_THE_KEY,
    REASONS,
    RETRIED_REASONS,
    SENT_ON_REASONS,
)

_NO_INFO: Mapping[str, str] = MappingProxyType({})


# What a call that was not executed ends with for a reason that may pass.
_PASSING_CODES = frozenset({"ABORTED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})


class AttemptAnswer(NamedTuple):
    """One attempt's answer as the rules see it.

    ``code`` is a gRPC status name. ``outcome`` is the label it carried, None if
    none; ``reason`` and ``info`` come from its ErrorInfo. ``retry_after_s`` is
    the server's pushback: negative means never. ``permanent`` marks what this
    process refused to receive or could not decode: it would be the same again.
    ``too_long`` marks a message over gRPC's size limits, which a smaller batch may keep to.
    ``limited``: gRPC's own server refused it by its ``maximum_concurrent_rpcs``, before
    any rifl handler or interceptor. ``unconnected``: no server answered, and there is no
    connection to the target; it says what the next attempt costs, and nothing of the outcome.
    ``foreign``: a server over another store refused it, and the next attempt goes to one over
    the store that granted the client id.
    """

    code: str
    outcome: Outcome | None = None
    reason: str = ""
    info: Mapping[str, str] = _NO_INFO
    retry_after_s: float | None = None
    permanent: bool = False
    limited: bool = False
    too_long: bool = False
    unconnected: bool = False
    foreign: bool = False

    @property
    def unreached(self) -> bool:
        """Whether no server that is known to be one answered, so that a connection may be lost."""
        return self.code in LOST_CODES and self.outcome is None and not self.reason

    @property
    def sends_on(self) -> bool:
        """Whether the next attempt needs no token: see ``RetryBudget``."""
        return self.unconnected or self.foreign or self.reason in SENT_ON_REASONS

    @property
    def store(self) -> int:
        """The store that refused, 0 if unknown."""
        try:
            return int(self.info.get("store", ""), 16)
        except ValueError:
            return 0

    @property
    def transient(self) -> bool:
        """Whether asking again may help where asking twice does no harm."""
        return self.code in TRANSPORT_CODES and not self.permanent


class Step(enum.Enum):
    """What follows an attempt's answer."""

    RETURN = "return"
    RETRY = "retry"
    RAISE = "raise"
    NEW_IDENTITY = "new-identity"


class Judgement(NamedTuple):
    """A step and its data.

    ``after_s`` belongs to RETRY, and so does ``least_s``, the part of it that the server
    told and that no shortage of time cuts; ``outcome`` and ``reason`` to RAISE; RETRY
    carries the outcome to raise where the retries have run out. ``final`` tells
    that another attempt in flight cannot change it; ``resolvable`` that
    the server may still be asked about the call.
    """

    step: Step
    after_s: float = 0.0
    outcome: Outcome = Outcome.UNKNOWN
    reason: str = ""
    final: bool = False
    resolvable: bool = False
    least_s: float = 0.0


def judge(
    call: IssuedCall, answer: AttemptAnswer, backoff_s: float, *, attempt: int, grpc_retries: bool
) -> Judgement:
    """Apply the table of DESIGN §3 to one answer; changes only ``may_have_run``.

    ``attempt`` is the number of the attempt that was answered: if a hedge is in
    flight, not always the latest.
    ``grpc_retries`` tells that gRPC's own retries are on, which rifl does not see.
    """
    reason, label = answer.reason, answer.outcome
    if label is None and reason:
        label = REASONS[reason].error.outcome if reason in REASONS else Outcome.UNKNOWN
    # Attempt 1 of a call that was sent once, and by no other caller.
    sent_once = call.attempt == 1 and not grpc_retries and "previous_attempts" not in answer.info
    if answer.code == "OK":
        if label is None and attempt > 1:
            call.may_have_run = True
            return Judgement(
                Step.RAISE, reason=errors.NotWrapped.reason, final=True, resolvable=True
            )
        return Judgement(Step.RETURN, outcome=label or Outcome.EXECUTED, final=True)
    if label is None:
        if answer.limited and sent_once and not call.may_have_run and call.key is None:
            # As gRPC has it: told at once. Where another copy may have come before it,
            # and for keys, which others share, this answer says nothing of the call.
            return Judgement(Step.RAISE, outcome=Outcome.NOT_EXECUTED)
        call.may_have_run = True
        if answer.permanent:
            return Judgement(Step.RAISE, final=True, resolvable=True)
        if answer.code in TRANSPORT_CODES:
            return _retry(answer, backoff_s, Outcome.UNKNOWN)
        late = errors.NotWrapped.reason if attempt > 1 else ""
        return Judgement(Step.RAISE, reason=late, resolvable=True)
    if label in (Outcome.EXECUTED, Outcome.REPLAYED):
        return Judgement(Step.RAISE, outcome=label, reason=reason, final=True)
    if answer.foreign:
        # Nothing ran there, and the next attempt goes where any earlier one is known.
        call.may_have_run = True
        return _retry(answer, backoff_s, Outcome.UNKNOWN)
    if reason == errors.LeaseExpired.reason:
        # A store that did not grant the id knows nothing of what ran where it was granted.
        elsewhere = call.lease.store and answer.store not in (0, call.lease.store)
        if sent_once and not call.may_have_run and call.key is None and not elsewhere:
            return Judgement(Step.NEW_IDENTITY)
        call.may_have_run = True
        return Judgement(Step.RAISE, reason=reason)
    # This attempt ran nothing; another copy of it, or another caller with its key, may yet.
    open_ = reason in (MOMENTARY_REASONS if call.key is None else NOT_OF_THE_KEY)
    if label is Outcome.UNKNOWN and (call.key is None or not open_):
        # The call may be on a group's witnesses, which give it to the next leader, whatever the
        # next attempt is told (DESIGN §7.13). Of a call with a key some reasons say nothing of
        # the call itself (``NOT_OF_THE_KEY``): those do not count.
        call.may_have_run = True
    outcome = Outcome.UNKNOWN if call.may_have_run or open_ else Outcome.NOT_EXECUTED
    if reason in FINAL_REASONS:
        return Judgement(
            Step.RAISE,
            outcome=label,
            reason=reason,
            final=True,
            resolvable=label is Outcome.UNKNOWN,
        )
    # What is kept of keys is not acknowledged: there is no more room the next time.
    full = reason == errors.WindowExceeded.reason and call.key is not None
    if reason in RETRIED_REASONS and not full:
        return _retry(answer, backoff_s, outcome)
    return Judgement(
        Step.RAISE,
        outcome=outcome,
        reason=reason,
        resolvable=outcome is Outcome.UNKNOWN and reason not in FORGOTTEN_REASONS,
    )


def may_call_again(code: str, outcome: Outcome, reason: str, *, keyed: bool) -> bool:
    """Whether a new call in place of one that ended so runs no second time, and may fare better.

    ``code``: of gRPC, with which the call ended. ``keyed``: a new call has the same key.
    """
    if outcome not in (Outcome.NOT_EXECUTED, Outcome.UNKNOWN):
        return False
    if outcome is Outcome.UNKNOWN and not keyed:
        return False
    if not reason:
        # What ends as CANCELLED the application itself cancelled.
        unknown = outcome is Outcome.UNKNOWN
        return code in (TRANSPORT_CODES - {"CANCELLED"} if unknown else _PASSING_CODES)
    if keyed:
        return reason in RETRIED_REASONS and reason != errors.WindowExceeded.reason
    return reason in RETRIED_REASONS or reason == errors.NotExecuted.reason


def _retry(answer: AttemptAnswer, backoff_s: float, outcome: Outcome) -> Judgement:
    after_s = pause_s(backoff_s, answer.retry_after_s)
    return Judgement(
        Step.RAISE if after_s < 0 else Step.RETRY,
        after_s,
        outcome,
        answer.reason,
        resolvable=outcome is Outcome.UNKNOWN,
        least_s=answer.retry_after_s or 0.0,
    )
