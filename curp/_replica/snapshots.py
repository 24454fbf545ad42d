"""Takes the snapshots of one leadership (DESIGN §7, invariant 8)."""

from __future__ import annotations

import threading
from typing import Any

from curp._core.compaction import Copy, GoOn, Halt, Save, Trim, compact
from curp._core.leader import Leader
from curp._core.state import GroupState
from curp._core.steps import Sync
from curp._core.turns import Turn
from curp._replica.driving import drive
from curp._replica.group_store import GroupStore
from curp._replica.settings import ReplicaSettings, StateHooks
from curp._wire import snapshot_to_chunks
from curp.log._engine import LogEngine
from rifl._log import get_logger

_log = get_logger("curp.replica")
_TURN_S = 5.0
# Entries that stay behind a snapshot: for standbys that are not far behind.
_KEPT_BEHIND = 1000


class Snapshots:
    """Any thread; one snapshot is taken at a time."""

    def __init__(
        self,
        engine: LogEngine,
        store: GroupStore,
        state: GroupState,
        leader: Leader,
        settings: ReplicaSettings,
        hooks: StateHooks,
    ) -> None:
        self._engine = engine
        self._store = store
        self._state = state
        self._leader = leader
        self._settings = settings
        self._hooks = hooks
        self._taking = threading.Lock()
        self._newest = state.applied
        self._turn: Turn | None = None
        self._copied: tuple[list[Any], bytes] | None = None

    def due(self) -> bool:
        """Whether the log has grown enough for the next one."""
        grown = self._state.applied - self._newest
        return self._may_take() and grown >= self._settings.snapshot_entries

    def take(self) -> int | None:
        """Save a snapshot at the log's tail and trim behind it; its LSN.

        Nothing runs while the state is written into memory: that is the pause it
        costs. None if it could not be taken now. Blocks; raises ``LogError``, ``RiflError``.
        """
        if not self._may_take():
            return None
        with self._taking:
            try:
                lsn = drive(compact(_KEPT_BEHIND), self._step)
            finally:
                self._go_on()
                self._copied = None
            if lsn is not None:
                self._newest = lsn
                _log.info("snapshot_saved", replica=self._settings.name, lsn=lsn)
            return lsn

    def _may_take(self) -> bool:
        # Until the upgrade is finalized replicas of the version before may come back, which
        # could not read what this one writes.
        active = self._state.version == self._settings.application_version
        return active and self._hooks.snapshot is not None

    def _step(self, step: Any) -> Any:
        if isinstance(step, Halt):
            self._turn = self._store.exclusively(_TURN_S)
            return self._turn is not None
        if isinstance(step, Sync):
            self._store.wait_synced(step.lsn)
            return None
        if isinstance(step, Copy):
            return self._copy()
        if isinstance(step, GoOn):
            self._go_on()
            return None
        configuration = self._leader.configuration
        if isinstance(step, Save):
            chunks = snapshot_to_chunks(*(self._copied or ([], b"")))
            self._engine.save_snapshot(step.lsn, chunks, configuration=configuration)
            return None
        if isinstance(step, Trim):
            self._engine.trim(step.through, configuration=configuration)
            return None
        raise RuntimeError(f"no such step: {step!r}")

    def _copy(self) -> int | None:
        if self._hooks.snapshot is None:
            return None
        services = self._hooks.snapshot()
        with self._store.work:
            if self._store.leader is not self._leader:
                return None
            self._copied = list(self._state.dump()), services
            return self._state.applied

    def _go_on(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._store.give_back(turn)
