"""The group's store by itself (DESIGN §7)."""

from __future__ import annotations

from curp._core.state import Witnessed
from curp._replica.group_store import GroupStore
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from tests.curp.core.groups import AliveLeases, call, committed, operation


def test_an_idle_clients_calls_stay_known_to_recovery() -> None:
    """However often the housekeeping passes: else what a witness held ran twice (6 and 12)."""
    store = GroupStore()
    store.bind(
        AliveLeases(), MethodPolicies({}, MethodPolicy()), clock=lambda: 0.0, bounds=Bounds()
    )
    state = committed(operation(7, 1), state=store.new_state())
    store.follow(state)
    for _ in range(3):
        store.expire_keys()
    assert state.witnessed(call(7, 1)) is Witnessed.KNOWN
    assert state.witnessed(call(7, 2)) is Witnessed.FRESH
