"""The group's store by itself (DESIGN §7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from curp._core.entries import ClientRegistered
from curp._core.leader import Leader
from curp._core.read_lease import ReadLease
from curp._core.state import Witnessed
from curp._replica.follower import EntryApplier
from curp._replica.group_store import GroupStore
from curp._replica.settings import StateHooks
from curp._wire.entries import entry_to_bytes
from curp.observer import GroupObservers
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._shared.errors import OutcomeUnknown
from rifl.core._shared.observer import Observer
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


def test_the_leader_counts_unknown_outcomes_for_all() -> None:
    """Until they are acknowledged; not one that another may have followed (DESIGN §9)."""
    now = 0.0
    store = GroupStore(boottime=lambda: now)
    leases = AliveLeases()
    store.bind(leases, MethodPolicies({}, MethodPolicy()), clock=lambda: now, bounds=Bounds())
    lost = refusal_record(OutcomeUnknown("it killed its leaders"))
    store.follow(committed(operation(7, 1, answer=lost), state=store.new_state()))
    lease = ReadLease(1.0, drift=0.1)
    lease.renewed(0.0)
    found = []
    for observer, leads in ((Observer(), False), (Observer(), True), (None, True)):
        store.observer = observer and GroupObservers([observer], lambda *_: None)
        if leads and not store.serving:
            store.lead(Leader(4, store.state.applied, witnessed=True), lease)
            store.open(leases)
        store.expire_keys()
        found.append(store.unresolved)
    assert found == [None, (1, 0.0), None]
    store.observer = GroupObservers([Observer()], lambda *_: None)
    now = 0.5
    store.expire_keys()
    assert store.unresolved == (1, 0.5)
    now = 2.0
    store.expire_keys()
    assert store.unresolved is None


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
