"""The thread that makes a replica follow, take over, lead and step down (DESIGN §7)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from curp.core.entries import Operation
from curp.core.leader import Leader
from curp.core.read_lease import ReadLease
from curp.core.recovery import (
    Append,
    Freeze,
    Publish,
    ReadToEnd,
    ReadWitnessList,
    Recovered,
    Run,
    StartWitness,
    TakeNumber,
    Wait,
    WitnessList,
    recover,
)
from curp.core.state import GroupState
from curp.log.engine import LogEngine, NewEntry
from curp.log.errors import (
    CorruptLog,
    Deposed,
    EngineStopped,
    EngineUnavailable,
    LeaseHeld,
    LogError,
    TailMismatch,
    TrimmedLog,
)
from curp.observer import GroupObservers, TakeOver
from curp.replica.clock import boottime
from curp.replica.errors import ReplicaStopped
from curp.replica.group_store import GroupStore
from curp.replica.keeper import LeaseKeeper
from curp.replica.leading import LIST_KEY, Leading
from curp.replica.services import Services
from curp.replica.settings import ReplicaSettings, StateHooks
from curp.replica.witnesses import Witnesses
from curp.wire import (
    entry_from_bytes,
    entry_to_bytes,
    secrets_to_message,
    snapshot_from_chunks,
    witness_list_from_bytes,
    witness_list_to_bytes,
)
from lease_server.errors import StorageUnavailable
from lease_server.log import get_logger
from rifl.core.errors import RiflError

__all__ = ["TRANSFER_KEY", "Role", "Runner"]

_log = get_logger("curp.replica")

# Engine metadata.

TRANSFER_KEY = "curp-transfer"
_LOOK_S = 0.1
_RETRY_S = 0.1
_READ_LIMIT = 2000
_SECRET_BYTES = 32


class Role:
    """What a replica does, as ``curp.v1.GroupStatusReply`` names it."""

    LEADER = "leader"
    STANDBY = "standby"
    RECOVERING = "recovering"
    STOPPED = "stopped"


class Runner:
    """Follows the log until the leader's lease is over, then takes over, and so on.

    One thread; everything that changes the replica's role happens in it. What the
    appender and the lease keeper meet is only noted, and ends the leadership here.
    """

    def __init__(
        self,
        engine: LogEngine,
        store: GroupStore,
        services: Services,
        witnesses: Witnesses,
        settings: ReplicaSettings,
        hooks: StateHooks,
        leading: Callable[[GroupState, Leader, LeaseKeeper, WitnessList], Leading],
        observer: GroupObservers | None = None,
        role_changed: Callable[[str], None] = lambda role: None,
    ) -> None:
        """``role_changed``: told of each change, in the runner's thread; not to block."""
        self._engine = engine
        self._store = store
        self._services = services
        self._witnesses = witnesses
        self._settings = settings
        self._hooks = hooks
        self._make_leading = leading
        self._observer = observer
        self._role_changed = role_changed
        # Another process under the same name is another replica to the engine: it must
        # wait until this one's reads are over.
        self._incarnation = f"{settings.name}/{os.urandom(4).hex()}"
        self._closing = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="curp-replica", daemon=True)
        self._role = Role.STANDBY
        self.waiting_for = ""
        self.leading: Leading | None = None
        self._state = store.state
        # Whether the services' state is no longer what it was before the first entry.
        self._begun = False
        self._error: Exception | None = None
        self._hold_off_until = 0.0
        self.stopped = threading.Event()

    @property
    def role(self) -> str:
        """What the replica does now, a ``Role``."""
        return self._role

    @role.setter
    def role(self, role: str) -> None:
        if role != self._role:
            self._role = role
            self._role_changed(role)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """End the leadership, if there is one, after what is placed was synced."""
        self._closing.set()
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def hand_over(self) -> None:
        """End this leadership, and do not take the next one for a while."""
        self._hold_off_until = time.monotonic() + 3 * self._settings.term_s
        self._over.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._rebuild()
                while not self._closing.is_set():
                    self._follow()
                    if not self._closing.is_set():
                        self._lead()
            except Deposed as error:
                _log.warning("stepped_down", replica=self._settings.name, error=str(error))
            except TrimmedLog:
                _log.info("behind_the_snapshot", replica=self._settings.name)
            except (EngineStopped, CorruptLog, TailMismatch, ReplicaStopped) as error:
                # A tail that is not where it was left: the engine forgot what it had
                # acknowledged. Going on would make that final.
                self._stop(error)
                return
            except EngineUnavailable as error:
                self._wait_visibly(f"the log engine: {error}")
            except Exception as error:  # noqa: BLE001 - named, and nothing is served any more
                _log.exception("replica_failed", replica=self._settings.name)
                self._stop(error)
                return
        self.role = Role.STOPPED
        self.stopped.set()

    def _stop(self, error: Exception) -> None:
        self._store.step_down()
        self.role = Role.STOPPED
        self.waiting_for = f"{type(error).__name__}: {error}"
        _log.critical("replica_stopped", replica=self._settings.name, error=self.waiting_for)
        self.stopped.set()

    # -- following ------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Begin over from the newest snapshot, or from nothing (invariant 4)."""
        self.role = Role.STANDBY
        if self._begun:
            self._wait_for_handlers()
            if self._hooks.reset is None:
                raise ReplicaStopped(
                    "the services' state may hold what never reached the log, and there is no "
                    "reset hook to begin over with: restart the process"
                )
            self._hooks.reset()
        self._begun = False
        state = self._store.new_state()
        snapshot = self._engine.load_snapshot()
        self._begun = True
        if snapshot is not None:
            if self._hooks.restore is None:
                raise ReplicaStopped("the log begins with a snapshot, and there is no restore hook")
            items, services = snapshot_from_chunks(snapshot.chunks)
            state.load(items, self._store.now())
            if state.applied != snapshot.lsn:
                raise CorruptLog("the snapshot is of another position than the engine says")
            self._hooks.restore(services)
            _log.info("snapshot_loaded", replica=self._settings.name, lsn=snapshot.lsn)
        self._state = state
        self._store.follow(state)
        self.waiting_for = ""

    def _follow(self) -> None:
        """Apply what others append, until nobody leads."""
        self.role = Role.STANDBY
        while not self._closing.is_set():
            try:
                if not self._apply_more():
                    self._engine.wait(self._state.applied, timeout_s=_LOOK_S)
                # Late is safe: counted from when the entry was read here.
                self._store.expire_keys()
                if self._may_take_over():
                    return
            except EngineStopped:
                raise
            except EngineUnavailable as error:
                # What was applied stands.
                self._wait_visibly(f"the log engine: {error}")

    def _apply_more(self) -> bool:
        entries = self._engine.read(self._state.applied, limit=_READ_LIMIT)
        for found in entries:
            entry = entry_from_bytes(found.lsn, found.body)
            if isinstance(entry, Operation) and not entry.refusal:
                self._services.replay(entry)
            self._store.apply(found.lsn, entry)
        return bool(entries)

    def _may_take_over(self) -> bool:
        leadership = self._engine.leadership()
        if leadership is not None and leadership.expires_in_s > 0:
            own = leadership.replica == self._incarnation
            self._store.name_leader("" if own else leadership.address)
            self.waiting_for = ""
            return False
        self._store.name_leader("")
        if time.monotonic() < self._hold_off_until:
            return False
        wanted = self._engine.metadata(TRANSFER_KEY)
        if wanted and wanted.decode() != self._settings.name and leadership is not None:
            # Another was asked for: it has a term's time.
            return leadership.expires_in_s < -self._settings.term_s
        return True

    # -- leading --------------------------------------------------------------------------

    def _lead(self) -> None:
        """Take over, serve until deposed or asked to end, and step down.

        Ends with an error always, since the state has to be made anew; it returns
        only if nothing was begun.
        """
        settings = self._settings
        self._over.clear()
        self._error = None
        sent_at = boottime()
        try:
            number = self._engine.take_leadership(
                self._incarnation, settings.address, term_s=settings.term_s
            )
        except LeaseHeld:
            # Somebody was faster: what was followed is still the log's.
            return
        self.role = Role.RECOVERING
        began = time.monotonic()
        _log.info("taking_over", replica=settings.name, configuration=number)
        read_lease = ReadLease(settings.term_s, drift=settings.drift)
        read_lease.renewed(sent_at)
        keeper = LeaseKeeper(
            self._engine, number, read_lease, term_s=settings.term_s, refused=self._end
        )
        keeper.start()
        leading: Leading | None = None
        try:
            found = self._recover(number)
            leader = Leader(
                found.witnesses.configuration,
                found.tail,
                witnessed=bool(found.witnesses.witnesses),
                bounds=settings.bounds,
            )
            leading = self._make_leading(self._state, leader, keeper, found.witnesses)
            self.leading = leading
            leading.start(self._end)
            seconds = time.monotonic() - began
            self.role = Role.LEADER
            self.waiting_for = ""
            _log.info(
                "leading",
                replica=settings.name,
                configuration=number,
                tail=found.tail,
                frozen=found.frozen,
                held=found.held,
                replayed=found.replayed,
                dropped=found.dropped,
                witnesses=list(found.witnesses.witnesses),
                seconds=round(seconds, 3),
            )
            if self._observer is not None:
                self._observer.took_over(
                    TakeOver(
                        settings.name, number, seconds, found.held, found.replayed, found.dropped
                    )
                )
            while not (self._over.wait(_LOOK_S) or self._closing.is_set()):
                pass
            if self._error is None:
                leading.hand_over()
        except (StorageUnavailable, RiflError) as error:
            # The leadership ended under what was being done.
            raise self._error or Deposed(str(error)) from error
        finally:
            self.role = Role.STANDBY
            self.leading = None
            self._store.step_down()
            if leading is not None:
                leading.stop()
            keeper.stop()
            if self._error is None:
                # Asked to end, or it failed here: nobody need wait for the lease.
                with contextlib.suppress(LogError):
                    self._engine.end_leadership(keeper.configuration)
        raise self._error or Deposed("the leadership was given up")

    def _end(self, error: Exception) -> None:
        """Note why the leadership is over; from the appender's or the keeper's thread."""
        if self._error is None:
            self._error = error if isinstance(error, LogError) else _broken(error)
        # Nothing more is answered from now on (invariant 4).
        self._store.step_down()
        self._over.set()

    def _recover(self, number: int) -> Recovered:
        settings = self._settings
        rule = recover(
            settings.name,
            self._state,
            settings.witnesses,
            self._store.now,
            secret=os.urandom(_SECRET_BYTES),
        )
        answer: Any = None
        while True:
            try:
                step = rule.send(answer)
            except StopIteration as stop:
                found: Recovered = stop.value
                return found
            if self._error is not None:
                raise self._error
            if self._closing.is_set():
                raise Deposed("the replica is closed")
            answer = number if isinstance(step, TakeNumber) else self._step(step)

    def _step(self, step: Any) -> Any:
        if isinstance(step, ReadWitnessList):
            data = self._engine.metadata(LIST_KEY)
            return None if data is None else witness_list_from_bytes(data)
        if isinstance(step, ReadToEnd):
            while self._apply_more():
                pass
            return self._state.applied
        if isinstance(step, Freeze):
            self.waiting_for = f"witness {step.address}"
            return self._witnesses.freeze(step.address, step.configuration)
        if isinstance(step, Wait):
            self._wait_visibly(step.reason, step.seconds)
            return None
        if isinstance(step, Run):
            return self._services.run(step.witnessed.call, step.witnessed.request)
        if isinstance(step, Append):
            return self._append(step)
        if isinstance(step, StartWitness):
            secrets = secrets_to_message(self._state.secrets)
            return self._witnesses.start(step.address, step.configuration, secrets)
        if isinstance(step, Publish):
            self._engine.put_metadata(
                {LIST_KEY: witness_list_to_bytes(step.witnesses), TRANSFER_KEY: None},
                configuration=step.witnesses.configuration,
            )
            return None
        raise RuntimeError(f"no such step: {step!r}")

    def _append(self, step: Append) -> int:
        entries = [NewEntry(entry_to_bytes(entry)) for entry in step.entries]
        append_id = os.urandom(16)
        while True:
            try:
                return self._engine.append(
                    entries,
                    configuration=step.witnesses.configuration,
                    expected_tail=step.expected_tail,
                    append_id=append_id,
                    metadata={LIST_KEY: witness_list_to_bytes(step.witnesses)},
                )
            except EngineStopped:
                raise
            except EngineUnavailable as error:
                self._wait_visibly(f"the log engine: {error}")
                if self._closing.is_set():
                    raise

    def _wait_for_handlers(self) -> None:
        """Let handlers of an earlier leadership end: they change the services' state."""
        while self._store.executing() and not self._closing.is_set():
            self._wait_visibly("handlers of an earlier leadership to end", 0.01)

    def _wait_visibly(self, reason: str, seconds: float = _RETRY_S) -> None:
        if reason != self.waiting_for:
            self.waiting_for = reason
            _log.warning("waiting", replica=self._settings.name, reason=reason)
        self._closing.wait(seconds)


def _broken(error: Exception) -> Exception:
    stopped = ReplicaStopped(f"{type(error).__name__}: {error}")
    stopped.__cause__ = error
    return stopped
