"""One leadership: what serves, appends, expires and collects while it lasts (DESIGN §7)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from curp.core.handover import CountRunning, EndLease, RefuseCalls, StepDown, hand_over
from curp.core.leader import Leader
from curp.core.recovery import Publish, StartWitness, Wait, WitnessList
from curp.core.state import GroupState
from curp.core.steps import Sync
from curp.core.witness_change import HoldBack, NextNumber, Serve, change_witnesses, left_out
from curp.log.engine import LogEngine
from curp.log.errors import Deposed, LogError
from curp.replica.appender import Appender
from curp.replica.authority import GroupAuthority
from curp.replica.collector import Collector
from curp.replica.driving import drive
from curp.replica.group_store import GroupStore
from curp.replica.keeper import LeaseKeeper
from curp.replica.lease_storage import LogLeaseStorage
from curp.replica.metadata import LIST_KEY
from curp.replica.services import Services
from curp.replica.settings import ReplicaSettings, StateHooks
from curp.replica.snapshots import Snapshots
from curp.replica.witnesses import Witnesses
from curp.wire import secrets_to_message, witness_list_to_bytes
from lease_server.authority import LeaseAuthority
from lease_server.log import get_logger
from rifl.core.errors import NotLeader, RiflError

__all__ = ["LIST_KEY", "Leading"]

_log = get_logger("curp.replica")

_SWEEPS_PER_TERM = 20
_LOOK_S = 0.25
_LOOK_FOR_WITNESSES_S = 1.0
_STATUS_S = 0.5


class Leading:
    """The threads and parts of one leadership. ``start`` once, ``stop`` once."""

    def __init__(
        self,
        engine: LogEngine,
        store: GroupStore,
        services: Services,
        authority: GroupAuthority,
        witnesses: Witnesses,
        settings: ReplicaSettings,
        hooks: StateHooks,
        fault: Callable[[str], None] | None,
        state: GroupState,
        leader: Leader,
        keeper: LeaseKeeper,
        listed: WitnessList,
    ) -> None:
        self._engine = engine
        self._store = store
        self._services = services
        self._authority = authority
        self._witnesses = witnesses
        self._settings = settings
        self._fault = fault
        self._state = state
        self._leader = leader
        self._keeper = keeper
        self.listed = listed
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._end: Callable[[Exception], None] | None = None
        self._appender: Appender | None = None
        self._collector: Collector | None = None
        self._housekeeper = threading.Thread(
            target=self._keep_house, name="curp-housekeeper", daemon=True
        )
        self._look_again_at = time.monotonic() + _LOOK_FOR_WITNESSES_S
        self._snapshots = Snapshots(engine, store, state, leader, settings, hooks)
        self._secrets = state.secrets

    def start(self, end: Callable[[Exception], None]) -> None:
        """Take calls; ``end`` is told, in any thread, why the leadership is over."""
        self._end = end
        appending = self._store.lead(self._leader, self._keeper.read_lease)
        self._appender = Appender(self._engine, self._store, appending, end, self._fault)
        self._appender.start()
        storage = LogLeaseStorage(self._store, self._state)
        self._store.leases = storage
        authority = LeaseAuthority(storage, term_s=self._settings.client_term_s)
        self._collector = Collector(
            self._store, self._services, self._witnesses, self._state, self._relist
        )
        self._collector.serve(self.listed.configuration, self.listed.witnesses)
        self._store.on_synced = self._collector.synced
        self._collector.start()
        self._authority.lead(authority)
        self._store.open(authority)
        self._housekeeper.start()

    def hand_over(self) -> None:
        """Let what runs end, within bounds, have it synced, and let the leadership go."""
        # Deposed meanwhile: others lead already, or will when the lease is over.
        with contextlib.suppress(LogError, RiflError):
            drive(hand_over(time.monotonic), self._step)

    def stop(self) -> None:
        """End all threads; the store has stepped down."""
        self._stopping.set()
        self._authority.lead(None)
        self._store.on_synced = None
        if self._appender is not None:
            self._appender.stop()
        if self._collector is not None:
            self._collector.stop()
        if self._housekeeper.ident is not None:
            self._housekeeper.join()

    @property
    def trouble(self) -> str:
        """Why nothing gets into the log now, empty if it does."""
        return "" if self._appender is None else self._appender.trouble

    @property
    def configuration(self) -> int:
        """The configuration number in force."""
        return self._leader.configuration

    # -- the witness list (invariant 11) --------------------------------------------------

    def change_witnesses(self, wanted: Sequence[str], configuration: int) -> WitnessList:
        """Put another list in force, under the next number. Blocks.

        Everything answered first under the old one is synced before; nothing is
        answered first in between; and a witness serves the new number only from
        empty. Raises ``NotLeader`` if another number is in force than the caller
        knows, ``LogError``.
        """
        with self._changing:
            return self._put_in_force(tuple(wanted), configuration)

    def _put_in_force(self, wanted: tuple[str, ...], configuration: int) -> WitnessList:
        if configuration != self._leader.configuration or self._stopping.is_set():
            raise NotLeader(
                f"configuration {self._leader.configuration} is in force, not {configuration}"
            )
        try:
            serving = drive(change_witnesses(configuration, wanted), self._step_of_change)
        except Exception as error:
            # Whether the number was taken may not be known. Answering first under the
            # old one again could be in nobody's log, and on no witness that is asked.
            # A leadership that is over has no end: it would be the next one's.
            if self._end is not None and not self._stopping.is_set():
                self._end(Deposed(f"the witness list may have changed: {error}"))
            raise
        _log.info(
            "witnesses_changed",
            replica=self._settings.name,
            configuration=serving.configuration,
            witnesses=list(serving.witnesses),
            wanted=list(wanted),
        )
        return serving

    def _step_of_change(self, step: Any) -> Any:
        if self._stopping.is_set():
            raise NotLeader("the leadership is over")
        return self._step(step)

    def _next_number(self, step: NextNumber) -> int:
        """Take the next number between two appends and two renewals."""

        def take() -> int:
            with self._keeper.renewing:
                number = self._engine.next_configuration(
                    step.configuration,
                    {LIST_KEY: witness_list_to_bytes(step.witnesses)},
                    term_s=self._settings.term_s,
                )
                self._keeper.configuration = number
            # No list is served under it yet: everything is synced.
            self._store.changed(number, witnessed=False)
            return number

        if self._appender is None:
            raise NotLeader("the leadership is over")
        taken: Future[int] = self._appender.between(take)
        return taken.result()

    def _serve(self, listed: WitnessList) -> None:
        self.listed = listed
        if self._collector is not None:
            self._collector.serve(listed.configuration, listed.witnesses)
        self._store.changed(listed.configuration, witnessed=bool(listed.witnesses))

    def _look_for_witnesses(self) -> None:
        """List those anew that were wanted, could not be started, and answer by now."""
        missing = left_out(self.listed)
        if not missing or time.monotonic() < self._look_again_at:
            return
        self._look_again_at = time.monotonic() + _LOOK_FOR_WITNESSES_S
        if any(self._witnesses.status(address, _STATUS_S) is not None for address in missing):
            self._relist(self.listed.configuration)

    def _relist(self, configuration: int) -> None:
        """Begin a new number with the wanted list: a witness forgot what it held, or is back.

        Unless another number than ``configuration``, under which that was found, is in
        force by now: its list may be another one, and its witnesses began anew. Or is about
        to come into force, which is not waited for: the leadership might be over meanwhile.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            if self.listed.configuration == configuration:
                self._put_in_force(self.listed.wanted, configuration)
        except (LogError, RiflError, RuntimeError) as error:
            _log.warning("witnesses_not_changed", error=str(error))
        finally:
            self._changing.release()

    # -- housekeeping ---------------------------------------------------------------------

    def _keep_house(self) -> None:
        sweep_s = min(_LOOK_S, self._settings.client_term_s / _SWEEPS_PER_TERM)
        while not self._stopping.wait(sweep_s):
            try:
                if ended := self._authority.expire():
                    self._store.drop(ended)
                    _log.info("clients_ended", clients=len(ended))
                self._store.expire_keys()
                self._refresh_secrets()
                self._look_for_witnesses()
                if self._snapshots.due():
                    self._snapshots.take()
            except (LogError, RiflError) as error:
                _log.warning("housekeeping_failed", error=str(error))
            except Exception:  # noqa: BLE001 - logged with its traceback; the next round may work
                _log.exception("housekeeping_failed")

    def _refresh_secrets(self) -> None:
        secrets = self._state.secrets
        if secrets == self._secrets:
            return
        for address in self.listed.witnesses:
            self._witnesses.refresh(address, self.listed.configuration, secrets_to_message(secrets))
        self._secrets = secrets

    def snapshot(self) -> int | None:
        """Save a snapshot at the log's tail and trim behind it; see ``Snapshots.take``."""
        return self._snapshots.take()

    # -- driving the core's rules ---------------------------------------------------------

    def _step(self, step: Any) -> Any:
        if isinstance(step, Sync):
            if (pending := self._store.synced(step.lsn)) is not None:
                pending.wait()
            return None
        if isinstance(step, HoldBack):
            with self._store.work:
                return self._leader.begin_change()
        if isinstance(step, NextNumber):
            return self._next_number(step)
        if isinstance(step, StartWitness):
            secrets = secrets_to_message(self._state.secrets)
            return self._witnesses.start(step.address, step.configuration, secrets)
        if isinstance(step, Publish):
            self._engine.put_metadata(
                {LIST_KEY: witness_list_to_bytes(step.witnesses)},
                configuration=step.witnesses.configuration,
            )
            return None
        if isinstance(step, Serve):
            self._serve(step.witnesses)
            return None
        return self._step_of_hand_over(step)

    def _step_of_hand_over(self, step: Any) -> Any:
        if isinstance(step, RefuseCalls):
            with self._store.work:
                self._store.serving = False
                self._leader.begin_change()
        elif isinstance(step, CountRunning):
            return self._store.count_running()
        elif isinstance(step, Wait):
            self._stopping.wait(step.seconds)
        elif isinstance(step, StepDown):
            self._store.step_down()
        elif isinstance(step, EndLease):
            # Renewed once more, it would not have ended.
            self._keeper.stop()
            self._engine.end_leadership(self._keeper.configuration)
        else:
            raise RuntimeError(f"no such step: {step!r}")
        return None
