"""The error tree against DESIGN §3's table."""

from __future__ import annotations

import pickle

import grpc
import pytest

from rifl.core import Outcome, RiflError
from rifl.core._shared import errors
from rifl.core._shared.reasons import REASONS, error_class

N, U, E = Outcome.NOT_EXECUTED, Outcome.UNKNOWN, Outcome.EXECUTED

# DESIGN §3, row by row; below the line what only one side of the wire ever says.
TABLE = {
    "BadHeader": ("BAD_HEADER", "INVALID_ARGUMENT", N),
    "PayloadMismatch": ("PAYLOAD_MISMATCH", "INVALID_ARGUMENT", N),
    "StaleRpc": ("STALE_RPC", "FAILED_PRECONDITION", U),
    "LeaseExpired": ("LEASE_EXPIRED", "FAILED_PRECONDITION", U),
    "SessionClosed": ("SESSION_CLOSED", "FAILED_PRECONDITION", U),
    "NotYours": ("NOT_YOURS", "PERMISSION_DENIED", N),
    "StoreMismatch": ("STORE_MISMATCH", "FAILED_PRECONDITION", U),
    "WindowExceeded": ("WINDOW_EXCEEDED", "RESOURCE_EXHAUSTED", N),
    "InProgress": ("IN_PROGRESS", "ABORTED", U),
    "OutcomeUnknown": ("OUTCOME_UNKNOWN", "ABORTED", U),
    "NotLeader": ("NOT_LEADER", "UNAVAILABLE", N),
    "Draining": ("DRAINING", "UNAVAILABLE", N),
    "StoreUnavailable": ("STORE_UNAVAILABLE", "UNAVAILABLE", N),
    "Overloaded": ("OVERLOADED", "UNAVAILABLE", N),
    "Deposed": ("DEPOSED", "ABORTED", U),
    "RecordPending": ("RECORD_PENDING", "ABORTED", U),
    "ResponseTooLarge": ("RESPONSE_TOO_LARGE", "RESOURCE_EXHAUSTED", E),
    "RequestTooLarge": ("REQUEST_TOO_LARGE", "RESOURCE_EXHAUSTED", N),
    "BatchTooLarge": ("BATCH_TOO_LARGE", "RESOURCE_EXHAUSTED", N),
    # ---
    "AnswerLost": ("ANSWER_LOST", "FAILED_PRECONDITION", E),
    "NotExecuted": ("NOT_EXECUTED", "ABORTED", N),
    "NotRecorded": ("NOT_RECORDED", "INTERNAL", U),
    "NotDeduplicated": ("NOT_DEDUPLICATED", "FAILED_PRECONDITION", N),
    "ForkedProcess": ("FORKED_PROCESS", "FAILED_PRECONDITION", N),
    "ReentrantCall": ("REENTRANT_CALL", "FAILED_PRECONDITION", N),
    "NotWrapped": ("NOT_WRAPPED", "UNKNOWN", U),
}
CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_the_tree_is_the_table() -> None:
    """Every class has the reason, code and outcome of DESIGN §3, and there is no other."""
    found = {cls.__name__: (cls.reason, cls.code_name, cls.outcome) for cls in CLASSES}
    assert found.pop("RiflError") == ("RIFL", "INTERNAL", U)
    assert found == TABLE


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_pickle(cls: type[RiflError]) -> None:
    """Every class survives pickling with its message (DESIGN §3)."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copied = pickle.loads(pickle.dumps(cls("why ü"), protocol))  # noqa: S301 - our own
        assert type(copied) is cls
        assert str(copied) == "why ü"


@pytest.mark.parametrize("cls", CLASSES)
def test_codes_are_grpc_codes(cls: type[RiflError]) -> None:
    """Each code is the name of a gRPC status that is not OK (DESIGN §3)."""
    assert grpc.StatusCode[cls.code_name] is not grpc.StatusCode.OK


@pytest.mark.parametrize("cls", CLASSES)
def test_reasons_lead_back_to_their_class(cls: type[RiflError]) -> None:
    """A reason read off the wire names one class (DESIGN §3)."""
    assert error_class(cls.reason) is cls
    assert error_class(cls.reason + "?") is None


def test_unavailable_is_said_only_when_nothing_ran() -> None:
    """UNAVAILABLE means not executed (DESIGN §3, below the table)."""
    unavailable = [cls for cls in CLASSES if cls.code_name == "UNAVAILABLE"]
    assert unavailable
    assert all(cls.outcome is Outcome.NOT_EXECUTED for cls in unavailable)


def test_every_reason_has_one_row() -> None:
    """What a client does next stands in one table, a row for each class (DESIGN §3)."""
    assert {row.error for row in REASONS.values()} == set(CLASSES)
    assert len(REASONS) == len(CLASSES)
