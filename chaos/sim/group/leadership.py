"""One leadership: what recovers, serves, renews and appends while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from chaos.sim.group.appender import Appender
from chaos.sim.group.collector import Collector
from chaos.sim.group.steps import Steps
from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.schedule import Setting
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp.core.leader import Leader, LeaderBounds
from curp.core.read_lease import ReadLease
from curp.core.recovery import Recovered, WitnessList, recover
from curp.core.state import GroupState
from curp.log.engine import LogEngine
from curp.log.errors import EngineUnavailable, LogError
from curp.replica.authority import GroupAuthority
from curp.replica.group_store import GroupStore
from curp.replica.lease_storage import LogLeaseStorage
from lease_server.authority import LeaseAuthority
from lease_server.errors import StorageUnavailable
from rifl.core.errors import RiflError

__all__ = ["DRIFT", "TERM_S", "Leadership", "Led"]

# Of the leadership's lease.
TERM_S = 1.0
DRIFT = 0.2


class Led(Protocol):
    """The replica that leads."""

    name: str
    world: World
    process: Process
    random: Random
    setting: Setting
    log: LogEngine
    store: GroupStore
    state: GroupState
    machine: Machine
    authority: GroupAuthority
    witness_names: tuple[str, ...]

    def witness(self, address: str) -> Witness:
        """Return the witness at an address."""

    def apply_more(self) -> bool:
        """Apply what is in the log; False if there was nothing."""

    def step_down(self, error: Exception) -> None:
        """End the leadership."""


class Leadership:
    """Begins with a number that was taken; recovers, then serves, until it is over."""

    def __init__(self, replica: Led, number: int, sent_at: float) -> None:
        self._replica = replica
        self._process = replica.process
        # The number in force.
        self.configuration = number
        self.over = False
        # None until it serves.
        self.listed: WitnessList | None = None
        self._collector: Collector | None = None
        self.read_lease = ReadLease(TERM_S, drift=DRIFT)
        self.read_lease.renewed(sent_at)
        self.appender = Appender(
            self._process, replica.random, replica.log, replica.store, replica.step_down
        )
        self._process.after(TERM_S / 4, self._renew)

    def begin(self) -> None:
        """Recover, and serve."""
        replica = self._replica
        rule = recover(
            replica.name,
            replica.state,
            replica.witness_names,
            replica.store.now,
            secret=replica.random.randbytes(32),
        )
        Steps(replica, self).carry_out(rule, self._lead)

    def end(self) -> None:
        """Do nothing more."""
        self.over = True
        self.appender.stop()
        self.read_lease.end()
        if self._collector is not None:
            self._collector.stop()
        replica = self._replica
        replica.authority.lead(None)
        replica.store.on_synced = None
        replica.store.step_down()

    def _lead(self, found: Recovered) -> None:
        replica, setting = self._replica, self._replica.setting
        witnesses = found.witnesses
        replica.world.trace(
            self._process.name,
            f"leads {witnesses.configuration} with {','.join(witnesses.witnesses)}; froze "
            f"{found.frozen or 'nobody'}, held {found.held}, replayed {found.replayed}",
        )
        leader = Leader(
            witnesses.configuration,
            found.tail,
            witnessed=bool(witnesses.witnesses),
            bounds=LeaderBounds(
                batch_entries=setting.batch_entries,
                batch_delay_s=setting.batch_delay_s,
                max_unsynced=setting.max_unsynced,
            ),
        )
        self.listed = witnesses
        self._collector = Collector(
            replica.world,
            self._process,
            replica.store,
            replica.state,
            replica.machine,
            replica.witness,
            witnesses,
        )
        replica.store.lead(leader, self.read_lease)
        self.appender.look()
        storage = _Storage(replica.store, replica.state, self.appender.flush)
        replica.store.leases = storage
        replica.store.on_synced = self._collector.synced
        try:
            authority = LeaseAuthority(
                storage,
                term_s=setting.term_s,
                clock=self._process.clock,
                wall_clock=self._process.wall_clock,
                id_block=16,
            )
        except StorageUnavailable as error:
            replica.step_down(error)
            return
        replica.authority.lead(authority)
        replica.store.open(authority)

    def _renew(self) -> None:
        if not self.over:
            # A request and its reply: what is asked of a leader that was suspended may
            # be answered before it learns that it leads no more.
            delay_s = 0.0005 + 0.002 * self._replica.random.random()
            self._process.after(delay_s, self._renewed, self._process.clock())

    def _renewed(self, sent_at: float) -> None:
        if self.over:
            return
        try:
            self._replica.log.renew_leadership(self.configuration, term_s=TERM_S)
            self.read_lease.renewed(sent_at)
        except EngineUnavailable:
            pass
        except LogError as error:
            self._replica.step_down(error)
            return
        self._process.after(TERM_S / 4, self._renew)


class _Storage(LogLeaseStorage):
    """Where the product blocks until an entry is in the log, it is appended at once."""

    def __init__(self, store: GroupStore, state: GroupState, flush: Callable[[], None]) -> None:
        super().__init__(store, state)
        self._flush = flush

    def _write(self, entry: Any) -> None:
        try:
            pending = self._store.log(entry)
            self._flush()
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error
        if not pending.done or pending.error is not None:
            raise StorageUnavailable("it is not in the log yet")
