"""The code that a failed call is raised with (DESIGN §3)."""

from __future__ import annotations

import pytest

from _rifl_ground.refusals import Outcome
from rifl.core._calling.answer import may_call_again
from rifl.core._shared.codes import CODE_NUMBERS, raised_code

# What Google's clients repeat, and gRPC's own policies are written for.
_REPEATED = {"ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL"}


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("code", sorted(_REPEATED | {"UNKNOWN", "CANCELLED", "DATA_LOSS"}))
def test_an_unknown_outcome_never_has_a_code_that_is_repeated(code: str, attempts: int) -> None:
    """A repeated unknown is a second effect, so it is FAILED_PRECONDITION (DESIGN §3)."""
    assert raised_code(code, Outcome.UNKNOWN, "", attempts=attempts) == "FAILED_PRECONDITION"


@pytest.mark.parametrize("code", sorted(set(CODE_NUMBERS) - {"OK"}))
@pytest.mark.parametrize("outcome", [Outcome.NOT_EXECUTED, Outcome.EXECUTED, Outcome.REPLAYED])
def test_what_did_not_run_and_what_the_handler_said_keeps_its_code(
    code: str, outcome: Outcome
) -> None:
    """Repeating those is right, or the application's own affair (DESIGN §3)."""
    assert raised_code(code, outcome, "", attempts=3) == code


@pytest.mark.parametrize("outcome", [Outcome.EXECUTED, Outcome.REPLAYED])
def test_an_answer_too_large_is_not_repeated(outcome: Outcome) -> None:
    """RESPONSE_TOO_LARGE ran: RESOURCE_EXHAUSTED would have it run again (DESIGN §3)."""
    found = raised_code("RESOURCE_EXHAUSTED", outcome, "RESPONSE_TOO_LARGE", attempts=1)
    assert found == "FAILED_PRECONDITION"


def test_deadline_exceeded_is_kept_where_the_application_asks() -> None:
    """Only that code, and only by the option (DESIGN §3)."""
    keep = {"attempts": 2, "keep_deadline_exceeded": True}
    assert raised_code("DEADLINE_EXCEEDED", Outcome.UNKNOWN, "", **keep) == "DEADLINE_EXCEEDED"
    assert raised_code("UNAVAILABLE", Outcome.UNKNOWN, "", **keep) == "FAILED_PRECONDITION"


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"])
def test_somebody_elses_refusal_of_the_only_attempt_keeps_its_code(code: str) -> None:
    """An interceptor in front of ours refuses as with bare gRPC (DESIGN §3)."""
    assert raised_code(code, Outcome.UNKNOWN, "", attempts=1) == code
    assert raised_code(code, Outcome.UNKNOWN, "", attempts=2) == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("code", "outcome", "reason", "unkeyed", "keyed"),
    [
        # Nothing ran, and the trouble may pass.
        ("DEADLINE_EXCEEDED", Outcome.NOT_EXECUTED, "", True, True),
        ("UNAVAILABLE", Outcome.NOT_EXECUTED, "", True, True),
        ("UNAVAILABLE", Outcome.NOT_EXECUTED, "DRAINING", True, True),
        ("DEADLINE_EXCEEDED", Outcome.NOT_EXECUTED, "WINDOW_EXCEEDED", True, False),
        # Another call is another identity; a key stays resolved.
        ("ABORTED", Outcome.NOT_EXECUTED, "NOT_EXECUTED", True, False),
        # Nothing ran, and it would be the same again.
        ("INTERNAL", Outcome.NOT_EXECUTED, "", False, False),
        ("CANCELLED", Outcome.NOT_EXECUTED, "", False, False),
        ("UNAUTHENTICATED", Outcome.NOT_EXECUTED, "", False, False),
        ("INVALID_ARGUMENT", Outcome.NOT_EXECUTED, "BAD_HEADER", False, False),
        ("FAILED_PRECONDITION", Outcome.NOT_EXECUTED, "NOT_DEDUPLICATED", False, False),
        # It may have run.
        ("UNAVAILABLE", Outcome.UNKNOWN, "", False, True),
        ("DEADLINE_EXCEEDED", Outcome.UNKNOWN, "", False, True),
        ("INTERNAL", Outcome.UNKNOWN, "", False, True),
        ("UNAVAILABLE", Outcome.UNKNOWN, "OVERLOADED", False, True),
        ("ABORTED", Outcome.UNKNOWN, "IN_PROGRESS", False, True),
        ("CANCELLED", Outcome.UNKNOWN, "", False, False),
        ("PERMISSION_DENIED", Outcome.UNKNOWN, "", False, False),
        # Another store, a server without records, a new session of the name: it would run again.
        ("FAILED_PRECONDITION", Outcome.UNKNOWN, "STORE_MISMATCH", False, False),
        ("UNKNOWN", Outcome.UNKNOWN, "NOT_WRAPPED", False, False),
        ("FAILED_PRECONDITION", Outcome.UNKNOWN, "SESSION_CLOSED", False, False),
        # Final.
        ("ABORTED", Outcome.UNKNOWN, "OUTCOME_UNKNOWN", False, False),
        # The handler's answer.
        ("UNAVAILABLE", Outcome.EXECUTED, "", False, False),
        ("UNAVAILABLE", Outcome.REPLAYED, "", False, False),
        ("ABORTED", Outcome.EXECUTED, "ANSWER_LOST", False, False),
    ],
)
def test_when_a_loop_may_call_again(
    code: str, outcome: Outcome, reason: str, unkeyed: bool, keyed: bool
) -> None:
    """A new call cannot run a second time, and may fare better (DESIGN §3)."""
    assert may_call_again(code, outcome, reason, keyed=False) is unkeyed
    assert may_call_again(code, outcome, reason, keyed=True) is keyed
