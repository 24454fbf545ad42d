"""The taker of a leadership's snapshots: when one is due, and its steps (DESIGN §7: 8)."""

from __future__ import annotations

import threading
from typing import Any

from _rifl_ground.log import get_logger
from curp._core.compaction import Copy, GoOn, Halt, Save, Trim, compact
from curp._core.key_locks import KeyLock
from curp._core.steps import Pause, Sync
from curp._replica.driver import Bounded, Rule
from curp._replica.parts import Parts, Tenure
from curp._wire.snapshots import snapshot_to_chunks
from rifl._stores.pending import Pending

_log = get_logger("curp.replica")
_TURN_S = 5.0
# Between two looks whether another one was taken.
_ANOTHER_S = 0.05


class SnapshotTaker:
    """Takes snapshots, one at a time, by the rule ``taking`` and its ``step``. Any thread."""

    def __init__(self, parts: Parts, tenure: Tenure, over: Pending) -> None:
        """``over``: done when the leadership is."""
        self._engine = parts.engine
        self._store = parts.store
        self._settings = parts.settings
        self._hooks = parts.hooks
        self._state = tenure.state
        self._leader = tenure.leader
        self._over = over
        self._taking = threading.Lock()
        self._newest = self._state.applied
        self._turn: KeyLock | None = None
        self._copied: tuple[list[Any], bytes] | None = None

    def due(self) -> bool:
        """Whether the log has grown enough for the next one."""
        grown = self._state.applied - self._newest
        return self._may_take() and grown >= self._settings.tuning.snapshot_entries

    def taking(self) -> Rule:
        """Save a snapshot at the log's tail and trim behind it; a rule, which gives its LSN.

        Nothing runs while the state is written into memory: that is the pause it
        costs. None if it could not be taken now. Raises ``LogError``, ``RiflError``.
        """
        if not self._may_take():
            return None
        while not self._taking.acquire(blocking=False):
            yield Pause(_ANOTHER_S)
        try:
            lsn = yield from compact(self._settings.snapshot_kept_behind)
        except Exception:
            self._end()
            raise
        self._end()
        if lsn is not None:
            self._newest = lsn
            _log.info("snapshot_saved", replica=self._settings.name, lsn=lsn)
        return lsn

    def _end(self) -> None:
        self._go_on()
        self._copied = None
        self._taking.release()

    def _may_take(self) -> bool:
        allowed = self._state.may_save(self._settings.application_version)
        return allowed and self._hooks.snapshot is not None

    def step(self, step: Any) -> Any:
        """Do a step of ``taking``."""
        if isinstance(step, Pause):
            return Bounded(self._over, step.seconds)
        if isinstance(step, Halt):
            return self._halt()
        if isinstance(step, Sync):
            return self._store.synced(step.lsn)
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

    def _halt(self) -> Bounded | bool:
        """Ask for the turn on everything; given back by ``_go_on``, whether it came or not."""
        asked = self._store.ask_exclusively()
        if asked is None:
            return False
        self._turn, pending = asked
        return True if pending is None else Bounded(pending, _TURN_S)

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
