"""The follower: makes the services' state, and the group's, what the log says (DESIGN §7)."""

from __future__ import annotations

from _rifl_ground.log import get_logger
from curp._core.entries import ApplicationVersion, Operation
from curp._core.poison import Ledger
from curp._core.role import CannotApply
from curp._replica.errors import ReplicaStopped
from curp._replica.group_store import GroupStore
from curp._replica.replay_guard import ReplayGuard
from curp._replica.services import Services
from curp._replica.settings import StateHooks
from curp._wire.entries import entry_from_bytes
from curp._wire.snapshots import snapshot_from_chunks
from curp.log._commits import GroupLog
from curp.log._errors import CorruptLog

_log = get_logger("curp.replica")
_READ_LIMIT = 2000


class EntryApplier:
    """Applies what is in the log. In the replica's thread."""

    def __init__(
        self,
        replica: str,
        engine: GroupLog,
        store: GroupStore,
        services: Services,
        hooks: StateHooks,
        guard: ReplayGuard | None = None,
    ) -> None:
        """``guard``: against what kills in replay; None: nothing is noted."""
        self._guard = guard
        self._replica = replica
        self._engine = engine
        self._store = store
        self._services = services
        self._hooks = hooks
        self.state = store.state
        # Whether the services' state is no longer what it was before the first entry.
        self._begun = False

    def rebuild(self) -> None:
        """Begin over from the newest snapshot, or from nothing (invariant 4).

        While no handler of an earlier leadership runs: these change the services' state.
        Raises ``ReplicaStopped`` if the services cannot, ``CannotApply``, ``LogError``.
        """
        if self._begun:
            if self._hooks.reset is None:
                raise ReplicaStopped(
                    "the services' state may hold what never reached the log, and there is no "
                    "reset hook to begin over with: restart the process"
                )
            self._hooks.reset()
        self._begun = False
        state = self._store.new_state()
        snapshot = self._engine.load_snapshot()
        if snapshot is None:
            self._begun = True
        else:
            if self._hooks.restore is None:
                raise ReplicaStopped("the log begins with a snapshot, and there is no restore hook")
            items, services = snapshot_from_chunks(snapshot.chunks)
            state.load(items, self._store.now())
            self._require(state.version)
            self._begun = True
            if state.applied != snapshot.lsn:
                raise CorruptLog("the snapshot is of another position than the engine says")
            self._hooks.restore(services)
            _log.info("snapshot_loaded", replica=self._replica, lsn=snapshot.lsn)
        self.state = state
        self._store.follow(state)
        if self._guard is not None:
            self._guard.begin(state.applied)

    def apply_more(self) -> bool:
        """Apply what is in the log by now, or the beginning of it; False if there is nothing.

        Raises ``CannotApply`` in front of an entry that is not for this replica.
        """
        guard = self._guard
        entries = self._engine.read(self.state.applied, limit=_READ_LIMIT)
        for found in entries:
            entry = entry_from_bytes(found.lsn, found.body)
            guarded = guard is not None and guard.active
            runs = not guarded or guard.before(found.lsn, entry)  # type: ignore[union-attr]
            if isinstance(entry, Operation):
                if not entry.refusal and runs:
                    self._services.replay(entry, strict=not guarded or guard.strict())  # type: ignore[union-attr]
                elif guard is not None and entry.set_aside is not None and entry.set_aside.lsn:
                    guard.set_aside(entry.set_aside.lsn)
            elif isinstance(entry, ApplicationVersion):
                self._require(entry.version)
            self._store.apply(self.state, found.lsn, entry)
        if guard is not None and guard.active and not entries:
            guard.end(self.state.applied)
        return bool(entries)

    def require(self, ledger: Ledger) -> None:
        """Raise ``BeginOver`` if this replica has an effect that an operator gave up."""
        if self._guard is not None:
            self._guard.require(ledger, self.state.applied)

    def close(self) -> None:
        """Leave no note behind."""
        if self._guard is not None:
            self._guard.close()

    def apply_to_end(self) -> int:
        """Apply all that is in the log; its tail."""
        while self.apply_more():
            pass
        return self.state.applied

    def _require(self, version: int) -> None:
        own = self._services.application_version
        if version > own:
            raise CannotApply(
                f"an upgrade of this replica: the active application version is {version}, and "
                f"it is of version {own}"
            )
