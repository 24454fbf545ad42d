"""One leadership: what serves, appends, expires and collects while it lasts (DESIGN §7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from curp.core.leader import Leader
from curp.core.recovery import WitnessList
from curp.core.state import GroupState
from curp.log.engine import LogEngine
from curp.log.errors import Deposed, LogError
from curp.replica.appender import Appender
from curp.replica.authority import GroupAuthority
from curp.replica.collector import Collector
from curp.replica.group_store import GroupStore
from curp.replica.keeper import LeaseKeeper
from curp.replica.lease_storage import LogLeaseStorage
from curp.replica.services import Services
from curp.replica.settings import ReplicaSettings, StateHooks
from curp.replica.witnesses import Witnesses
from curp.wire import secrets_to_message, snapshot_to_chunks, witness_list_to_bytes
from lease_server.authority import LeaseAuthority
from lease_server.log import get_logger
from rifl.core.errors import NotLeader, RiflError

__all__ = ["LIST_KEY", "Leading"]

_log = get_logger("curp.replica")

# Engine metadata: the witness list.
LIST_KEY = "curp-witnesses"
_SWEEPS_PER_TERM = 20
_LOOK_S = 0.25
_DRAIN_S = 5.0
_SNAPSHOT_TURN_S = 5.0
_LOOK_FOR_WITNESSES_S = 1.0
_STATUS_S = 0.5
# Entries that stay behind a snapshot: for standbys that are not far behind.
_KEPT_BEHIND = 1000


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
        self._hooks = hooks
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
        self._snapshot_at = state.applied
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

    def drain(self) -> None:
        """Let what runs end, within bounds, and have it synced (for a hand-over)."""
        with self._store.work:
            self._store.serving = False
            self._leader.begin_change()
        until = time.monotonic() + _DRAIN_S
        while self._store.count_running() and time.monotonic() < until:
            self._stopping.wait(0.01)
        try:
            if (pending := self._store.synced()) is not None:
                pending.wait()
        except RiflError:
            # Deposed meanwhile: others lead already.
            pass

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
            serving = self._change(configuration, wanted)
        except Exception as error:
            # Whether the number was taken may not be known. Answering first under the
            # old one again could be in nobody's log, and on no witness that is asked.
            if self._end is not None:
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

    def _change(self, configuration: int, wanted: tuple[str, ...]) -> WitnessList:
        with self._store.work:
            before = self._leader.begin_change()
        if (pending := self._store.synced(before)) is not None:
            pending.wait()
        listed = self._next_number(configuration, wanted)
        started = tuple(
            address
            for address in listed.wanted
            if self._witnesses.start(
                address, listed.configuration, secrets_to_message(self._state.secrets)
            )
        )
        serving = listed._replace(witnesses=started, serving=True)
        self._engine.put_metadata(
            {LIST_KEY: witness_list_to_bytes(serving)}, configuration=serving.configuration
        )
        self.listed = serving
        if self._collector is not None:
            self._collector.serve(serving.configuration, started)
        self._store.changed(serving.configuration, witnessed=bool(started))
        return serving

    def _next_number(self, configuration: int, wanted: tuple[str, ...]) -> WitnessList:
        """Take the next number between two appends and two renewals."""
        listed = WitnessList(configuration + 1, wanted, False, wanted)

        def take() -> int:
            with self._keeper.renewing:
                number = self._engine.next_configuration(
                    configuration,
                    {LIST_KEY: witness_list_to_bytes(listed)},
                    term_s=self._settings.term_s,
                )
                self._keeper.configuration = number
            # No list is served under it yet: everything is synced.
            self._store.changed(number, witnessed=False)
            return number

        if self._appender is None:
            raise NotLeader("the leadership is over")
        taken: Future[int] = self._appender.between(take)
        number = taken.result()
        if number != listed.configuration:
            # Engines count by one; a list under another number would be nobody's.
            raise NotLeader(f"the engine gave number {number}, not {listed.configuration}")
        return listed

    def _look_for_witnesses(self) -> None:
        """List those anew that were wanted, could not be started, and answer by now."""
        missing = [one for one in self.listed.wanted if one not in self.listed.witnesses]
        if not missing or time.monotonic() < self._look_again_at:
            return
        self._look_again_at = time.monotonic() + _LOOK_FOR_WITNESSES_S
        if any(self._witnesses.status(address, _STATUS_S) is not None for address in missing):
            self._relist(self.listed.configuration)

    def _relist(self, configuration: int) -> None:
        """Begin a new number with the wanted list: a witness forgot what it held, or is back.

        Unless another number than ``configuration``, under which that was found, is in
        force by now: its list may be another one, and its witnesses began anew.
        """
        try:
            with self._changing:
                if self.listed.configuration == configuration:
                    self._put_in_force(self.listed.wanted, configuration)
        except (LogError, RiflError, RuntimeError) as error:
            _log.warning("witnesses_not_changed", error=str(error))

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
                if (
                    self._hooks.snapshot is not None
                    and self._state.applied - self._snapshot_at >= self._settings.snapshot_entries
                ):
                    self.snapshot()
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
        """Save a snapshot at the log's tail and trim behind it; its LSN (invariant 8).

        Nothing runs while the state is written into memory: that is the pause it
        costs. None if it could not be taken now.
        """
        if self._hooks.snapshot is None:
            return None
        turn = self._store.exclusively(_SNAPSHOT_TURN_S)
        if turn is None:
            return None
        try:
            # Nothing runs: once all is synced, the services' state is the log's.
            if (pending := self._store.synced()) is not None:
                pending.wait()
            services = self._hooks.snapshot()
            with self._store.work:
                if self._store.leader is not self._leader:
                    return None
                lsn = self._state.applied
                items = list(self._state.dump())
        finally:
            self._store.give_back(turn)
        configuration = self._leader.configuration
        self._engine.save_snapshot(
            lsn, snapshot_to_chunks(items, services), configuration=configuration
        )
        self._snapshot_at = lsn
        if lsn > _KEPT_BEHIND:
            self._engine.trim(lsn - _KEPT_BEHIND, configuration=configuration)
        _log.info("snapshot_saved", replica=self._settings.name, lsn=lsn)
        return lsn
