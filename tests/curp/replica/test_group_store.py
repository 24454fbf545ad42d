"""The group's store by itself (DESIGN §7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from curp._core.entries import ClientRegistered
from curp._core.state import Witnessed
from curp._replica.follower import EntryApplier
from curp._replica.group_store import GroupStore
from curp._replica.settings import StateHooks
from curp._wire.entries import entry_to_bytes
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


class _Deposing:
    """A log of two entries; when the second is read, its reader has just lost the lead."""

    def __init__(self, store: GroupStore) -> None:
        self._store = store

    def load_snapshot(self) -> None:
        """Return that there is none."""

    def read(self, after: int, *, limit: int) -> list[Any]:
        """Return the entry behind that one."""
        if after == 1:
            # As the lease's keeper does, in its own thread.
            self._store.step_down()
        if after == 2:
            return []
        return [SimpleNamespace(lsn=after + 1, body=entry_to_bytes(ClientRegistered(after + 7)))]


def test_who_is_deposed_while_it_reads_the_log_reads_on() -> None:
    """What it reads is for the state that it has read so far, not for the next one (4)."""
    store = GroupStore()
    store.bind(
        AliveLeases(), MethodPolicies({}, MethodPolicy()), clock=lambda: 0.0, bounds=Bounds()
    )
    log: Any = _Deposing(store)
    services: Any = None
    follower = EntryApplier("r1", log, store, services, StateHooks())
    follower.rebuild()
    assert follower.apply_to_end() == 2
    assert follower.state.clients == {7, 8}
    # What comes next begins with nothing.
    assert store.state.applied == 0
    assert store.state is not follower.state
