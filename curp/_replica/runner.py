"""The thread that makes a replica follow, take over, lead and step down (DESIGN §7)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from functools import partial

from curp._core.endings import BeginOver, CannotApply, Ending, ending_of
from curp._core.leader import Leader
from curp._core.poison import Watch
from curp._core.read_lease import ReadLease
from curp._core.recovery import Recovered, WitnessList
from curp._core.state import GroupState
from curp._core.succession import Standing, Succession
from curp._replica.clock import boottime
from curp._replica.driving import Driver, drive
from curp._replica.errors import ReplicaStopped
from curp._replica.follower import Follower
from curp._replica.group_store import GroupStore
from curp._replica.keeper import LeaseKeeper
from curp._replica.leading import Leading
from curp._replica.metadata import read_asked_for
from curp._replica.picture import Picture
from curp._replica.recovering import Recovering
from curp._replica.replay_guard import ReplayGuard
from curp._replica.role import Role
from curp._replica.services import Services
from curp._replica.settings import ReplicaSettings, StateHooks
from curp._replica.survival import Survival
from curp._replica.waiting import Waiting
from curp._replica.witnesses import Witnesses
from curp.log._engine import LogEngine
from curp.log._errors import (
    Deposed,
    EngineStopped,
    EngineUnavailable,
    LeaseHeld,
    LogError,
    TrimmedLog,
    may_pass,
)
from curp.observer import GroupObservers, TakeOver
from lease_server._errors import StorageUnavailable
from rifl._log import get_logger
from rifl.core._shared.errors import RiflError

_log = get_logger("curp.replica")

_LOOK_S = 0.1
# Who is asked to stop waits so long for an engine that does not answer.
_ENGINE_S = 5.0
# Between two looks whether what cannot be applied can be.
_HELD_S = 0.5
# Engines count in milliseconds.
_TICK_S = 0.002


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
        leading: Callable[[GroupState, Leader, LeaseKeeper, WitnessList, Watch], Leading],
        picture: Picture,
        driver: Driver,
        observer: GroupObservers | None = None,
        role_changed: Callable[[str], None] = lambda role: None,
    ) -> None:
        """``picture``: drawn here, of the engine.

        ``role_changed``: told of each change, in the runner's thread; not to block.
        """
        self._engine = engine
        self._store = store
        self._settings = settings
        self._make_leading = leading
        self._picture = picture
        self._driver = driver
        self._observer = observer
        self._role_changed = role_changed
        # Another process under the same name is another replica to the engine: it must
        # wait until this one's reads are over.
        self._incarnation = f"{settings.name}/{os.urandom(4).hex()}"
        self._succession = Succession(settings.name, self._incarnation, term_s=settings.term_s)
        self._closing = threading.Event()
        self._over = threading.Event()
        self._waiting = Waiting(settings.name, self._closing)
        guard = ReplayGuard(
            engine,
            settings.name,
            self._incarnation,
            settings.poison_deaths,
            partial(setattr, store, "ledger"),
        )
        self._follower = Follower(
            settings.name, engine, store, services, hooks, self._waiting, guard
        )
        self._survival = Survival(engine, store.executing)
        self._recovering = Recovering(
            engine,
            self._follower,
            services,
            witnesses,
            settings,
            self._waiting,
            store,
            self._survival,
        )
        self._thread = threading.Thread(target=self._run, name="curp-replica", daemon=True)
        self._role = Role.STANDBY
        self.leading: Leading | None = None
        self._error: Exception | None = None
        self.stopped = threading.Event()

    @property
    def waiting_for(self) -> str:
        """What it waits for, or why it stopped; empty if neither."""
        return self._waiting.reason

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

    def close(self, unanswered_s: Callable[[], float] = lambda: 0.0) -> bool:
        """End the leadership, if there is one, after what is placed was synced.

        Whether it has ended: it is not waited for where the engine has answered nothing for
        five seconds since it was asked to. ``unanswered_s``: for how long it has not.
        """
        self._closing.set()
        self._over.set()
        if self._thread.ident is None:
            return True
        began = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)
            if min(time.monotonic() - began, unanswered_s()) >= _ENGINE_S:
                break
        return not self._thread.is_alive()

    def hand_over(self) -> None:
        """End this leadership, and do not take the next one for a while."""
        self._succession.let_others_try(time.monotonic())
        self._over.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.role = Role.STANDBY
                self._picture.begin()
                self._follower.wait_for_handlers()
                # Though it may not be able to begin over.
                self._survival.tell()
                self._follower.rebuild()
                while not self._closing.is_set():
                    self._follow()
                    if not self._closing.is_set():
                        self._lead()
            except Exception as error:  # noqa: BLE001 - judged
                if not self._goes_on_after(error):
                    self._stop(error)
                    return
        self._follower.close()
        self._tell_survival()
        self.role = Role.STOPPED
        self.stopped.set()

    def _goes_on_after(self, error: Exception) -> bool:
        replica = self._settings.name
        ending = ending_of(error)
        if isinstance(error, EngineStopped) and self._closing.is_set():
            # Its engine was closed: nobody waited any longer.
            return True
        if ending is Ending.WAIT:
            self._waiting.wait(f"the log engine: {error}")
        elif isinstance(error, Deposed):
            _log.warning("stepped_down", replica=replica, error=str(error))
        elif isinstance(error, TrimmedLog):
            _log.info("behind_the_snapshot", replica=replica)
        elif isinstance(error, BeginOver):
            _log.warning("begins_over", replica=replica, error=str(error))
        elif isinstance(error, CannotApply):
            self._waiting.wait(str(error), _HELD_S)
        elif not isinstance(error, LogError | ReplicaStopped):
            _log.error("replica_failed", replica=replica, exc_info=error)
        return ending is not Ending.STOP

    def _stop(self, error: Exception) -> None:
        self._store.step_down()
        self.role = Role.STOPPED
        self._waiting.reason = f"{type(error).__name__}: {error}"
        _log.critical("replica_stopped", replica=self._settings.name, error=self.waiting_for)
        self.stopped.set()

    # -- following ------------------------------------------------------------------------

    def _follow(self) -> None:
        """Apply what others append, until nobody leads."""
        self.role = Role.STANDBY
        while not self._closing.is_set():
            try:
                behind = self._follower.apply_more()
                if behind:
                    self._picture.look_at_tail()
                else:
                    behind = self._wait_for_more()
                # Late is safe: counted from when the entry was read here.
                self._store.expire_keys()
                self._survival.tell()
                if self._may_take_over(behind=behind):
                    return
            except EngineUnavailable as error:
                if not may_pass(error):
                    raise
                # What was applied stands.
                self._waiting.wait(f"the log engine: {error}")
            except CannotApply as error:
                # It does not come to a turn at leading, and tells callers who leads.
                self._store.name_leader(self._succession.leader(self._picture.look()))
                self._waiting.wait(str(error), _HELD_S)

    def _wait_for_more(self) -> bool:
        """Wait for another entry, no longer than until the leader's lease is over."""
        applied = self._follower.state.applied
        left_s = self._picture.lease_left_s()
        wait_s = min(_LOOK_S, left_s + _TICK_S) if left_s > 0 else _LOOK_S
        tail = self._engine.wait(applied, timeout_s=wait_s)
        self._picture.followed(tail)
        return tail > applied

    def _may_take_over(self, *, behind: bool) -> bool:
        leadership = self._picture.look()
        now = time.monotonic()
        self._store.name_leader(self._succession.leader(leadership))
        standing = self._succession.look(
            leadership, lambda: read_asked_for(self._engine), now, behind=behind
        )
        if standing is Standing.LED:
            self._waiting.reason = ""
        return standing is Standing.TAKE

    # -- leading --------------------------------------------------------------------------

    def _lead(self) -> None:
        """Take over, serve until deposed or asked to end, and step down.

        Ends with an error always, since the state has to be made anew; it returns
        only if nothing was begun: the state is still what the log made it.
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
            self._engine,
            number,
            read_lease,
            term_s=settings.term_s,
            clock=boottime,
            refused=self._end,
            driver=self._driver,
        )
        keeper.start()
        leading: Leading | None = None
        gave_up = False
        try:
            found = self._recovering.run(number, self._store.now, self._go_on)
            if found is None:
                self._give_up(number)
                gave_up = True
            else:
                leading = self.leading = self._leading_by(found, keeper)
                leading.start(self._end)
                self._began(number, found, time.monotonic() - began)
                while not (self._over.wait(_LOOK_S) or self._closing.is_set()):
                    pass
                if self._error is None:
                    # Deposed meanwhile: others lead already, or will when the lease is over.
                    with contextlib.suppress(LogError, RiflError):
                        handing_over = leading.handing_over()
                        drive(handing_over.rule, handing_over.do)
        except (StorageUnavailable, RiflError) as error:
            # The leadership ended under what was being done.
            raise self._error or Deposed(str(error)) from error
        finally:
            self.role = Role.STANDBY
            self.leading = None
            if not gave_up:
                self._store.step_down()
            if leading is not None:
                leading.stop()
            keeper.stop()
            self._survival.stepped_down(number, keeper.configuration)
            if self._error is None:
                # Before anybody counts what it left noted.
                self._tell_survival()
                # Asked to end, or it failed here: nobody need wait for the lease.
                with contextlib.suppress(LogError):
                    self._engine.end_leadership(keeper.configuration)
        if not gave_up or self._error is not None:
            raise self._error or Deposed("the leadership was given up")

    def _tell_survival(self) -> None:
        with contextlib.suppress(LogError):
            self._survival.tell()

    def _give_up(self, number: int) -> None:
        """Cut off from the witnesses: whoever reaches one may lead."""
        _log.warning(
            "recovery_given_up",
            replica=self._settings.name,
            configuration=number,
            reason=self.waiting_for,
        )
        self._succession.let_others_try(time.monotonic())

    def _leading_by(self, found: Recovered, keeper: LeaseKeeper) -> Leading:
        leader = Leader(
            found.witnesses.configuration,
            found.tail,
            witnessed=bool(found.witnesses.witnesses),
            bounds=self._settings.bounds.within(self._engine.limits),
        )
        return self._make_leading(
            self._follower.state, leader, keeper, found.witnesses, found.watch
        )

    def _began(self, number: int, found: Recovered, seconds: float) -> None:
        """Tell that a leadership serves."""
        replica = self._settings.name
        self.role = Role.LEADER
        self._waiting.reason = ""
        _log.info(
            "leading",
            replica=replica,
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
                TakeOver(replica, number, seconds, found.held, found.replayed, found.dropped)
            )

    def _end(self, error: Exception) -> None:
        """Note why the leadership is over; from the appender's or the keeper's thread."""
        if self._error is None:
            self._error = error if isinstance(error, LogError) else _broken(error)
        # Nothing more is answered from now on (invariant 4).
        self._store.step_down()
        self._over.set()

    def _go_on(self) -> None:
        """Raise what ended the leadership that is being taken over."""
        if self._error is not None:
            raise self._error
        if self._closing.is_set():
            raise Deposed("the replica is closed")


def _broken(error: Exception) -> Exception:
    stopped = ReplicaStopped(f"{type(error).__name__}: {error}")
    stopped.__cause__ = error
    return stopped
