"""One leadership: what recovers, serves, renews and appends while it lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from chaos.sim.group.collector import Collector
from chaos.sim.group.compacting import Compacting
from chaos.sim.group.driving import SimulatedDriver
from chaos.sim.group.handing_over import HandingOver
from chaos.sim.group.recovering import Recovering
from chaos.sim.group.relisting import Relisting
from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.schedule import Setting
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp._core.entries import ApplicationVersion
from curp._core.handover import hand_over
from curp._core.leader import Leader, LeaderBounds
from curp._core.read_lease import ReadLease
from curp._core.recovery import Recovered, WitnessList, recover
from curp._core.state import GroupState
from curp._replica.appender import Appender
from curp._replica.authority import GroupAuthority
from curp._replica.follower import Follower
from curp._replica.group_store import GroupStore
from curp._replica.lease_storage import LogLeaseStorage
from curp._replica.metadata import LIST_KEY, read_store_id
from curp._replica.survival import Survival
from curp._wire import witness_list_to_bytes
from curp.log._engine import LogEngine
from curp.log._errors import EngineUnavailable, LogError
from lease_server._errors import StorageUnavailable
from lease_server._lease_authority import LeaseAuthority
from rifl.core._shared.errors import Deposed, RiflError

__all__ = ["DRIFT", "TERM_S", "Leadership", "Led"]

# Of the leadership's lease.
TERM_S = 1.0
DRIFT = 0.2
_HOUSE_S = 0.25
_REPLY_S = 0.0003


class Led(Protocol):
    """The replica that leads."""

    name: str
    world: World
    process: Process
    random: Random
    setting: Setting
    log: LogEngine
    store: GroupStore
    follower: Follower
    machine: Machine
    survival: Survival
    authority: GroupAuthority
    witness_names: tuple[str, ...]

    def witness(self, address: str) -> Witness:
        """Return the witness at an address."""

    @property
    def state(self) -> GroupState:
        """What it knows."""

    @property
    def group_id(self) -> str:
        """What witnesses know the group by."""

    application_version: int

    def may_finalize(self) -> bool:
        """Whether its own version is to be the active one from now on."""

    def number_ended(self) -> None:
        """Take that nothing is unsynced, and that the engine knows it."""

    def give_up(self) -> None:
        """End a recovery that reached no witness, and let others try."""

    def step_down(self, error: Exception, *, end_lease: bool = False) -> None:
        """End the leadership, and with ``end_lease`` let nobody wait for its lease."""


class Leadership:
    """Begins with a number that was taken; recovers, then serves, until it is over."""

    def __init__(self, replica: Led, number: int, sent_at: float) -> None:
        self._replica = replica
        self._process = replica.process
        self.taken = number
        # The number in force.
        self.configuration = number
        self.over = False
        # None until it serves.
        self.listed: WitnessList | None = None
        self._collector: Collector | None = None
        self._relisting: Relisting | None = None
        self._compacting: Compacting | None = None
        self._let_go = False
        self.read_lease = ReadLease(TERM_S, drift=DRIFT)
        self.read_lease.renewed(sent_at)
        self._driver = SimulatedDriver(self._process, replica.random)
        self.appender: Appender | None = None
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
            # What a witness holds is mostly more than one append.
            bounds=LeaderBounds(append_entries=2),
            application_version=replica.application_version,
            patience_s=2 * TERM_S,
        )
        steps = Recovering(replica, self._is_over, self.configuration)
        # It failed here: nobody need wait for the lease.
        steps.carry_out(rule, self._lead, lambda error: replica.step_down(error, end_lease=True))

    def end(self) -> None:
        """Do nothing more."""
        self.over = True
        if self.appender is not None:
            self.appender.stop()
        self.read_lease.end()
        if self._collector is not None:
            self._collector.stop()
        replica = self._replica
        replica.authority.lead(None)
        replica.store.on_synced = None
        replica.store.step_down()

    def change_witnesses(
        self, wanted: tuple[str, ...], configuration: int, done: Callable[[], None]
    ) -> bool:
        """Put another list in force in the place of that number's, as an operator asks for.

        False if it is not that number's turn; else ``done`` is called when it is in force.
        """
        relisting = self._relisting
        return relisting is not None and relisting.change(wanted, configuration, done)

    def snapshot(self) -> None:
        """Take a snapshot now, as an operator asks for."""
        replica = self._replica
        if self._compacting is not None and replica.state.may_save(replica.application_version):
            self._compacting.begin()

    def hand_over(self) -> None:
        """Let the leadership go, as an operator asks for."""
        steps = HandingOver(
            self._replica, self._is_over, self._stop_changes, self._end_number, self.end_lease
        )
        steps.carry_out(
            hand_over(self._process.clock),
            lambda _: self._replica.step_down(Deposed("the leadership was given up")),
            lambda error: self._replica.step_down(error, end_lease=True),
        )

    def _stop_changes(self) -> bool:
        return self._relisting is not None and self._relisting.stop()

    def _end_number(self) -> None:
        """Say that nothing is unsynced, by the next number."""
        wanted = () if self.listed is None else self.listed.wanted
        ended = WitnessList(self.configuration + 1, wanted, False, wanted)
        self.configuration = self._replica.log.next_configuration(
            self.configuration, {LIST_KEY: witness_list_to_bytes(ended)}, term_s=TERM_S
        )
        self._replica.number_ended()

    def end_lease(self) -> None:
        """Renew no more, and let nobody wait for the lease."""
        self._let_go = True
        self.read_lease.end()
        self._replica.log.end_leadership(self.configuration)

    def serve(self, listed: WitnessList) -> None:
        """Go on under another list."""
        self.listed = listed
        if self._collector is not None:
            self._collector.serve(listed)
        self._replica.store.changed(listed.configuration, witnessed=bool(listed.witnesses))

    def give_up(self, error: Exception) -> None:
        """End: whether another number was taken may not be known."""
        self._replica.step_down(Deposed(f"the witness list may have changed: {error}"))

    def flush(self) -> None:
        """Append everything that waits, now, if the engine answers."""
        if self.appender is not None:
            self.appender.loop.flush()  # type: ignore[attr-defined]  # a course

    def crash(self) -> None:
        """Let the append under way arrive at the engine, though nobody hears of it."""
        appending = self._replica.store.appending
        if self.appender is not None and appending is not None and appending.under_way is not None:
            with contextlib.suppress(LogError):
                self.appender.append(appending.under_way)

    def _refused(self, error: Exception) -> None:
        if not self.over:
            self._replica.step_down(error)

    def _is_over(self) -> bool:
        return self.over

    def _keep_house(self) -> None:
        if self.over or self._relisting is None or self._compacting is None:
            return
        self._process.after(_HOUSE_S, self._keep_house)
        self._relisting.keep_up()
        replica = self._replica
        if replica.may_finalize():
            replica.world.trace(self._process.name, "an operator finalizes the upgrade")
            replica.store.log(ApplicationVersion(replica.application_version, "operator"))
        if self._compacting.due():
            self.snapshot()

    def _lead(self, found: Recovered | None) -> None:
        replica, setting = self._replica, self._replica.setting
        if found is None:
            replica.give_up()
            return
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
            replica.group_id,
            witnesses,
            self._relist,
        )
        appending = replica.store.lead(leader, self.read_lease, found.watch)
        self.appender = Appender(replica.log, replica.store, appending, self._refused, self._driver)
        self.appender.start()
        try:
            store_id = read_store_id(replica.log, self.configuration, replica.random.randbytes)
        except LogError as error:
            replica.step_down(error)
            return
        storage = _Storage(replica.store, replica.state, store_id, self.flush)
        replica.store.leases = storage
        replica.store.on_synced = self._collector.synced
        try:
            authority = LeaseAuthority(
                storage,
                term_s=setting.term_s,
                clock=self._process.clock,
                wall_clock=self._process.wall_clock,
                id_block=16,
                randbits=self._process.dice().getrandbits,
            )
        except StorageUnavailable as error:
            replica.step_down(error)
            return
        replica.authority.lead(authority)
        replica.store.open(authority)
        self._relisting = Relisting(replica, self, witnesses, TERM_S)
        self._compacting = Compacting(
            replica,
            self._is_over,
            lambda: self.configuration,
            every=setting.snapshot_entries,
            kept_behind=setting.kept_behind,
        )
        self._process.after(_HOUSE_S, self._keep_house)

    def _relist(self, configuration: int) -> None:
        if self._relisting is not None:
            self._relisting.relist(configuration)

    def _renew(self) -> None:
        if self.over or self._let_go:
            return
        replica = self._replica
        self._pass_by("renewing")
        # A request and its reply: the request arrives, though the leader be suspended by
        # then; and what is asked of one that was may be answered before it learns that it
        # leads no more.
        delay_s = 0.0005 + 0.002 * replica.random.random()
        replica.world.loop.after(delay_s, self._ask_to_renew, self._process.clock())

    def _ask_to_renew(self, sent_at: float) -> None:
        if self.over or self._let_go:
            return
        refused = None
        try:
            self._replica.log.renew_leadership(self.configuration, term_s=TERM_S)
        except LogError as error:
            refused = error
        self._process.after(_REPLY_S, self._renewed, sent_at, refused)

    def _renewed(self, sent_at: float, refused: LogError | None) -> None:
        if self.over or self._let_go:
            return
        if refused is None:
            if self.read_lease.over(self._process.clock()):
                self._replica.authority.extend()
            self.read_lease.renewed(sent_at)
            self._pass_by("renewed")
        elif not isinstance(refused, EngineUnavailable):
            self._replica.step_down(refused)
            return
        self._process.after(TERM_S / 4, self._renew)

    def _pass_by(self, point: str) -> None:
        if self._replica.store.fault is not None:
            self._replica.store.fault(point)


class _Storage(LogLeaseStorage):
    """Where the product blocks until an entry is in the log, it is appended at once."""

    def __init__(
        self, store: GroupStore, state: GroupState, store_id: int, flush: Callable[[], None]
    ) -> None:
        super().__init__(store, state, store_id)
        self._flush = flush

    def _write(self, entry: Any) -> None:
        try:
            pending = self._store.log(entry)
            self._flush()
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error
        if not pending.done or pending.error is not None:
            raise StorageUnavailable("it is not in the log yet")
