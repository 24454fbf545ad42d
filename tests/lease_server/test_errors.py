"""The error tree."""

import pickle

import grpc
import pytest

from lease_server import _errors as errors

ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("kind", ALL)
def test_errors_pickle(kind):
    """Every error class survives pickling with its message (§3)."""
    copy = pickle.loads(pickle.dumps(kind("why")))  # noqa: S301 - made right here
    assert type(copy) is kind
    assert str(copy) == "why"


def test_reasons_and_codes():
    """Reasons and codes are those of the table in DESIGN §3."""
    code = grpc.StatusCode
    expected = {
        errors.BadRequest: ("BAD_HEADER", code.INVALID_ARGUMENT),
        errors.LeaseExpired: ("LEASE_EXPIRED", code.FAILED_PRECONDITION),
        errors.SessionClosed: ("SESSION_CLOSED", code.FAILED_PRECONDITION),
        errors.NotYours: ("NOT_YOURS", code.PERMISSION_DENIED),
        errors.ForkedProcess: ("FORKED_PROCESS", code.FAILED_PRECONDITION),
        errors.TooManyClients: ("TOO_MANY", code.RESOURCE_EXHAUSTED),
        errors.TooManySessions: ("TOO_MANY", code.RESOURCE_EXHAUSTED),
        errors.TooManyRefusals: ("TOO_MANY", code.RESOURCE_EXHAUSTED),
        errors.StoreMismatch: ("STORE_MISMATCH", code.FAILED_PRECONDITION),
        errors.StorageUnavailable: ("STORE_UNAVAILABLE", code.UNAVAILABLE),
    }
    assert {kind: (kind.reason, kind.code) for kind in expected} == expected
    assert set(expected) | {errors.LeaseError} == set(ALL)
