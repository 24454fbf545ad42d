"""One leadership, with all that serves, appends, expires and collects in it (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.handover import (
    ChangesUnderWay,
    CountRunning,
    EndLease,
    EndNumber,
    RefuseCalls,
    StepDown,
    hand_over,
)
from curp._core.housekeeping import (
    EndClients,
    ExpireKeys,
    LookAfterWitnesses,
    SnapshotIfDue,
    WarnOfGrowth,
    keep_house,
)
from curp._core.state import GroupState
from curp._core.steps import Pause, ReportFailure, Sync, VisibleWait
from curp._core.witness_list import WitnessList
from curp._replica.appender import AppendLoop
from curp._replica.collector import Collector
from curp._replica.driver import Bounded, Nested, Once, Rule, report
from curp._replica.group_store import GroupStore
from curp._replica.lease_storage import LogLeaseStorage
from curp._replica.metadata import LIST_KEY, read_witness_list
from curp._replica.parts import Parts, Tenure
from curp._replica.snapshot_taker import SnapshotTaker
from curp._replica.witness_list_keeper import WitnessListKeeper
from curp._wire.metadata import witness_list_to_bytes
from lease_server._lease_authority import LeaseAuthority
from rifl.core._serving.later import Later
from rifl.core._shared.errors import NotLeader, StoreUnavailable

_log = get_logger("curp.replica")

_SWEEPS_PER_TERM = 20
_LOOK_S = 0.25


class LeaderLoops:
    """The loops and parts of one leadership. ``start`` once, ``stop`` once."""

    def __init__(self, parts: Parts, tenure: Tenure) -> None:
        self._parts = parts
        self._tenure = tenure
        self._engine = parts.engine
        self._store = parts.store
        self._authority = parts.authority
        self._settings = settings = parts.settings
        self._driver = driver = parts.driver
        self._leader = tenure.leader
        self._keeper = tenure.keeper
        self.listed = tenure.listed
        self._keeps_all = parts.hooks.snapshot is None
        self._over = Once()
        self._warned = False
        self._appender: AppendLoop | None = None
        self._collector: Collector | None = None
        self._list_keeper: WitnessListKeeper | None = None
        sweep_s = min(_LOOK_S, settings.tuning.client_term_s / _SWEEPS_PER_TERM)
        self._housekeeper = driver.loop(
            "curp-housekeeper", keep_house(sweep_s), self.step, driver.work(), lambda error: None
        )
        self._snapshots = SnapshotTaker(parts, tenure, self._over)

    def start(self, end: Callable[[Exception], None]) -> None:
        """Take calls; ``end`` is told, in any thread, why the leadership is over."""
        driver = self._driver
        appending = self._store.lead(self._leader, self._keeper.read_lease, self._tenure.watch)
        self._appender = AppendLoop(self._engine, self._store, appending, end, driver)
        self._appender.start()
        storage = self._store.leases = self.lease_storage(self._store, self._tenure.state)
        authority = self.lease_authority(storage)
        keeper = self._list_keeper = WitnessListKeeper(
            self._parts, self._tenure, self._appender, self._serve, end
        )
        self._collector = Collector(
            self._parts,
            self._tenure.state,
            lambda number: Nested(keeper.again(number), keeper.step),
        )
        self._collector.serve(self.listed.configuration, self.listed.witnesses)
        self._store.on_synced = self._collector.synced
        self._collector.start()
        self._authority.lead(authority)
        # Who could not renew meanwhile has a full new term (DESIGN §5: late is safe).
        self._keeper.resuming = self._authority.extend
        self._store.open(authority)
        self._housekeeper.start()

    def lease_storage(self, store: GroupStore, state: GroupState) -> LogLeaseStorage:
        """Return where the lease server of this leadership keeps clients and sessions."""
        return LogLeaseStorage(store, state, self._parts.picture.store_id)

    def lease_authority(self, storage: LogLeaseStorage) -> LeaseAuthority:
        """Return the lease server of this leadership."""
        bounds = self._parts.bounds
        return LeaseAuthority(
            storage,
            term_s=self._settings.tuning.client_term_s,
            max_clients=bounds.max_clients,
            max_clients_per_caller=bounds.max_clients_per_caller,
            events=get_logger("lease_server"),
        )

    def handing_over(self) -> Rule:
        """Let what runs end, within bounds, have it synced, and let the leadership go.

        A rule, by ``step``.
        """
        return hand_over(self._driver.clock)

    def stop(self) -> list[Later]:
        """End all loops; the store has stepped down. Each is done when one has ended."""
        self._over.end()
        if self._list_keeper is not None:
            self._list_keeper.stop()
        self._authority.lead(None)
        self._store.on_synced = None
        loops = [self._housekeeper.ended()]
        if self._appender is not None:
            loops.append(self._appender.stop())
        if self._collector is not None:
            loops += self._collector.stop()
        return loops

    @property
    def trouble(self) -> str:
        """Why nothing gets into the log now, empty if it does."""
        return "" if self._appender is None else self._appender.trouble

    @property
    def configuration(self) -> int:
        """The configuration number in force."""
        return self._leader.configuration

    def warnings(self) -> list[str]:
        """Say what will be in the way one day."""
        entries = self._leader.synced
        if not self._keeps_all or entries < self._settings.tuning.snapshot_entries:
            return []
        return [
            f"the log has {entries} entries, and nothing trims it: the servicers have no snapshot "
            "and restore, so every replica reads all of it when it starts"
        ]

    def changing_witnesses(self, wanted: Sequence[str], configuration: int) -> Nested:
        """Put another list in force, under the next number; see ``WitnessListKeeper.changing``."""
        if self._list_keeper is None:
            raise NotLeader("the leadership has not begun")
        return Nested(self._list_keeper.changing(wanted, configuration), self._list_keeper.step)

    def taking_snapshot(self) -> Nested:
        """Save a snapshot at the log's tail and trim behind it; see ``SnapshotTaker.taking``."""
        return Nested(self._snapshots.taking(), self._snapshots.step)

    def _serve(self, listed: WitnessList) -> None:
        self.listed = listed
        if self._collector is not None:
            self._collector.serve(listed.configuration, listed.witnesses)
        self._store.changed(listed.configuration, witnessed=bool(listed.witnesses))

    # -- steps of ``keep_house`` and ``hand_over`` -------------------------------------------

    def step(self, step: Any) -> Any:
        """Do a step of either."""
        if isinstance(step, Pause | VisibleWait):
            return Bounded(self._over, step.seconds)
        if isinstance(step, ReportFailure):
            return report(step)
        if isinstance(step, WarnOfGrowth):
            return self._warn_of_growth()
        if isinstance(step, EndClients):
            return self._end_clients()
        if isinstance(step, ExpireKeys):
            return self._store.expire_keys()
        if isinstance(step, LookAfterWitnesses):
            keeper = self._list_keeper
            return keeper and Nested(keeper.keeping_up(), keeper.step)
        if isinstance(step, SnapshotIfDue):
            return self.taking_snapshot() if self._snapshots.due() else None
        return self._let_go(step)

    def _warn_of_growth(self) -> None:
        if not self._warned and (warnings := self.warnings()):
            self._warned = True
            _log.warning("log_grows", replica=self._settings.name, warning=warnings[0])

    def _end_clients(self) -> None:
        if ended := self._authority.expire():
            self._store.clients_ended(ended)
            _log.info("clients_ended", clients=len(ended))

    def _let_go(self, step: Any) -> Any:
        if isinstance(step, ChangesUnderWay):
            return self._list_keeper is not None and self._list_keeper.stop()
        if isinstance(step, RefuseCalls):
            with self._store.work:
                self._store.serving = False
                self._leader.begin_change()
        elif isinstance(step, CountRunning):
            return self._store.count_running()
        elif isinstance(step, Sync):
            return self._sync(step)
        elif isinstance(step, StepDown):
            self._store.step_down()
        elif isinstance(step, EndNumber):
            self._end_number()
        elif isinstance(step, EndLease):
            # Renewed once more, it would not have ended.
            return Nested(self._end_lease(), lambda waited: waited)
        else:
            raise RuntimeError(f"no such step: {step!r}")
        return None

    def _end_lease(self) -> Rule:
        yield self._keeper.stop()
        self._engine.end_leadership(self._keeper.configuration)

    def _sync(self, step: Sync) -> Any:
        pending, seconds = self._store.synced(step.lsn), step.timeout_s
        if pending is None or seconds is None:
            return pending
        late = StoreUnavailable(f"the log did not come so far in {seconds} seconds")
        return Bounded(pending, seconds, late)

    def _end_number(self) -> None:
        with self._keeper.renewing:
            number = self._leader.configuration
            # As the engine has it: a change that was begun may not have ended.
            wanted = (read_witness_list(self._engine) or self.listed).wanted
            ended = WitnessList(number + 1, wanted, False, wanted)
            self._keeper.configuration = self._engine.next_configuration(
                number,
                {LIST_KEY: witness_list_to_bytes(ended)},
                term_s=self._keeper.length.asked_s,
            )
        _log.info("number_ended", replica=self._settings.name, configuration=number)
