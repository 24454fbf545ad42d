"""The refusals of the lease service: part of the one tree."""

import pickle

import pytest

import lease_server
import rifl.core
from rifl.core import Outcome
from rifl.core._shared.reasons import REASONS

# Those that it has of its own: their reason and code, and which they are one of.
OWN = {
    lease_server.TooManyClients: ("TOO_MANY", "RESOURCE_EXHAUSTED", rifl.core.RiflError),
    lease_server.TooManySessions: ("TOO_MANY", "RESOURCE_EXHAUSTED", rifl.core.RiflError),
    lease_server.TooManyRefusals: ("TOO_MANY", "RESOURCE_EXHAUSTED", rifl.core.RiflError),
    lease_server.StorageUnavailable: (
        *("STORE_UNAVAILABLE", "UNAVAILABLE"),
        rifl.core.StoreUnavailable,
    ),
}
ALL = [
    kind
    for kind in (getattr(lease_server, name) for name in lease_server.__all__)
    if isinstance(kind, type) and issubclass(kind, rifl.core.RiflError)
]


@pytest.mark.parametrize("kind", ALL)
def test_errors_pickle(kind):
    """Every error class survives pickling with its message (§3)."""
    copy = pickle.loads(pickle.dumps(kind("why")))  # noqa: S301 - made right here
    assert type(copy) is kind
    assert str(copy) == "why"


@pytest.mark.parametrize("kind", ALL)
def test_one_reason_is_one_class_for_leases_and_calls(kind):
    """Who catches what calls are refused with catches what leases are refused with (§3)."""
    if kind in OWN:
        assert (kind.reason, kind.code_name, *kind.__bases__) == OWN[kind]
        assert kind.outcome is Outcome.NOT_EXECUTED
    else:
        assert kind is getattr(rifl.core, kind.__name__)
        assert REASONS[kind.reason].error is kind
