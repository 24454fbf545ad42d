"""``Answer`` and ``HandlerResult``: what a handler ended with, and what leaves of that."""

from __future__ import annotations

from typing import NamedTuple

from _rifl_ground.refusals import Outcome, caller_text
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.records import Held
from rifl.core._serving.sendable import cut
from rifl.core._shared.codes import CODE_NUMBERS
from rifl.core._shared.errors import AnswerLost, ResponseTooLarge, RiflError
from rifl.core._shared.record import CompletionRecord

# gRPC's own, in bytes.
DEFAULT_RECEIVE_LIMIT = 4 << 20
# Smaller answers are bounded by the window well enough: 8 MiB of a client by default.
LARGE_BYTES = 16 << 10
# The most of an error's text, which travels twice: as the status, and in its details.
_MAX_TEXT_BYTES = 1000


class HandlerResult(NamedTuple):
    """What the handler did: its answer, and whether it raised instead of deciding.

    ``broken``: it did not get to its end, and why: its request stream broke off, or it was
    cancelled. ``undone``: the transaction of an atomic handler is known not to have been
    committed, unless its record stands.
    """

    record: CompletionRecord
    raised: bool = False
    broken: str = ""
    undone: bool = False


class Answer(NamedTuple):
    """What leaves: the record, and the outcome this arrival is told."""

    record: CompletionRecord
    outcome: Outcome


# What a handler ended with: the record of one that decided, or what says more.
Handled = CompletionRecord | HandlerResult


def bounded(
    record: CompletionRecord, attempt: Attempt, held: Held | None = None
) -> CompletionRecord:
    """Return the record, or the one that says it was too large to keep or to send.

    ``held``, if any, is told of one that is large, or of a caller without a name.
    """
    response = record.response
    if response is None:
        return record
    call = attempt.call
    size = len(response)
    if size <= attempt.policy.max_response_bytes and size <= (
        call.max_response_bytes or DEFAULT_RECEIVE_LIMIT
    ):
        if (size >= LARGE_BYTES or call.source) and held is not None:
            held.note(attempt, size)
        return record
    limit = min(attempt.policy.max_response_bytes, call.max_response_bytes or DEFAULT_RECEIVE_LIMIT)
    return refusal_record(ResponseTooLarge(f"the answer has {size} bytes, more than {limit}"))


def refusal_record(error: RiflError) -> CompletionRecord:
    """Return the record of a call that ends with a rifl error."""
    return CompletionRecord(
        CODE_NUMBERS[error.code_name],
        cut(caller_text(error), _MAX_TEXT_BYTES),
        outcome=error.outcome,
        reason=error.reason,
    )


def replayed(record: CompletionRecord) -> Outcome:
    """Return what an arrival is told that is answered from a record.

    A lost answer is none that could be replayed: every arrival is told that the call ran.
    """
    if record.outcome is not Outcome.EXECUTED or record.reason == AnswerLost.reason:
        return record.outcome
    return Outcome.REPLAYED
