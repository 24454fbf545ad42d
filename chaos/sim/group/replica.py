"""A replica of a group: follows, takes over, leads, steps down."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from random import Random
from typing import Any, Protocol

from chaos.sim.faults import Fault, Point
from chaos.sim.group.desk import GroupDesk
from chaos.sim.group.driving import Bell
from chaos.sim.group.leadership import TERM_S, Leadership
from chaos.sim.loop import Process
from chaos.sim.machine import Machine, Unreadable
from chaos.sim.network import Rpc
from chaos.sim.schedule import Setting
from chaos.sim.server import POLICIES, Server
from chaos.sim.witness import GROUP, Witness
from chaos.sim.world import World
from curp._core.endings import CannotApply, Ending, ending_of
from curp._core.state import GroupState
from curp._core.succession import Standing, Succession
from curp._core.witness_table import group_of_log
from curp._replica.authority import GroupAuthority
from curp._replica.engine import GroupEngine
from curp._replica.follower import Follower
from curp._replica.group_store import GroupStore
from curp._replica.metadata import TRANSFER_KEY, read_asked_for
from curp._replica.settings import StateHooks
from curp._replica.survival import Survival
from curp._replica.waiting import Waiting
from curp.log._creation import LOG_ID_KEY
from curp.log._engine import LogEngine
from curp.log._errors import Deposed, EngineUnavailable, LeaseHeld, LogError, TrimmedLog
from curp.log._memory import MemoryLog, Moment
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.errors import StoreUnavailable
from rifl.core._shared.record import CompletionRecord

__all__ = ["Group", "Replica"]

_LOOK_S = 0.1
_CATCH_UP_S = 0.002


class Group(Protocol):
    """What the replicas of a deployment share."""

    world: World
    random: Random
    log: MemoryLog
    witness_names: tuple[str, ...]
    lossy_until: list[float]
    stalled_until: list[float]
    loss: float

    def lives(self) -> int:
        """Count the lives of replicas: each is another one to the engine."""

    def witness(self, address: str) -> Witness:
        """Return the witness at an address."""

    def number_ended(self) -> None:
        """Take that a leader let its number end: nothing is unsynced."""

    def version(self) -> int:
        """Return the application version that the next life of a replica has."""

    def may_finalize(self, version: int) -> bool:
        """Whether all replicas that live are of that version; then none is older any more."""


class Replica:
    """One life of one replica."""

    def __init__(self, process: Process, index: int, setting: Setting, group: Group) -> None:
        self.process = process
        self.index = index
        # To the engine each life is another replica.
        self.name = f"server{index}/{group.lives()}"
        self.address = f"server{index}:1"
        self.setting = setting
        self.world = group.world
        self.random = group.random
        self.witness_names = group.witness_names
        self.witness = group.witness
        self._group = group
        self.log: LogEngine = group.log.engine(self._strike)
        self.machine = Machine()
        self.application_version = self.machine.application_version = group.version()
        self.store = GroupStore(boottime=process.clock, append_id=lambda: self.random.randbytes(16))
        self.authority = GroupAuthority(setting.term_s, self.store.takes_calls)
        self.store.bind(
            self.authority,
            POLICIES,
            clock=process.clock,
            bounds=Bounds(window=2 * setting.window + setting.max_unsynced),
            key_bounds=KeyBounds(retention_s=None),
        )
        self.store.application_version = self.application_version
        self.store.work = Bell()  # type: ignore[assignment]  # one thread waits for none
        self.leadership: Leadership | None = None
        self._desk = GroupDesk(self)
        # Counts changes of role, so that what was planned in an earlier one is told apart.
        self._term = 0
        self._begun = False
        name = f"server{index}"
        self._succession = Succession(name, self.name, term_s=TERM_S)
        hooks = StateHooks(
            reset=self.machine.reset, snapshot=self.machine.snapshot, restore=self.machine.restore
        )
        self.follower = Follower(
            name,
            self.log,
            self.store,
            self.machine,  # type: ignore[arg-type]  # stands for services
            hooks,
            # Nobody waits: it is asked for nothing while handlers run.
            Waiting(name, threading.Event()),
        )
        self.survival = Survival(self.log, self.store.executing)
        process.after(0.01 + 0.05 * self.random.random(), self._follow, self._term)

    @property
    def state(self) -> GroupState:
        """What it knows."""
        return self.follower.state

    @property
    def group_id(self) -> str:
        """What witnesses know the group by."""
        return group_of_log(GROUP, self.log_id)

    @property
    def log_id(self) -> int:
        """The log's, 0 while nobody drew one."""
        return int.from_bytes(self._group.log.metadata.get(LOG_ID_KEY, b""))

    # -- as a server sees it -----------------------------------------------------------------

    def engine(self, *arguments: Any, **keywords: Any) -> GroupEngine:
        """Make the engine by which calls arrive."""
        return GroupEngine(self.store, self.machine, *arguments, **keywords)  # type: ignore[arg-type]

    def commit(self, attempt: Attempt, record: CompletionRecord) -> None:
        """No method of a group has a transaction of its own."""
        raise NotImplementedError

    def crash(self, *, flushed: bool) -> None:
        """The log is elsewhere: everything here is gone; of an append, nobody knows."""
        if self.leadership is not None and flushed:
            self.leadership.crash()

    def serve_group(self, server: Server, rpc: Rpc) -> None:
        """Answer a request of ``curp.v1.Group``."""
        self._desk.serve(server, rpc)

    def close(self) -> None:
        """End the leadership, so that nobody need wait for its lease."""
        leadership = self.leadership
        if leadership is not None and self.store.leader is not None:
            try:
                leadership.flush()
                self.log.end_leadership(leadership.configuration)
            except LogError:
                return

    # -- faults of the engine --------------------------------------------------------------

    def _strike(self, name: str, moment: Moment) -> None:
        group = self._group
        now = self.world.loop.now
        if group.stalled_until[self.index] > now:
            self.world.coverage.hit(Fault.STORE_STALL, Point.OTHER_REQUEST)
            raise EngineUnavailable("timed out")
        if group.lossy_until[self.index] > now and self.random.random() < group.loss:
            point = Point.APPEND if name == "append" else Point.OTHER_REQUEST
            self.world.coverage.hit(Fault.STORE_LOSS, point)
            raise EngineUnavailable(f"{moment.value} {name}")

    # -- following ---------------------------------------------------------------------------

    def _follow(self, term: int) -> None:
        if term != self._term:
            return
        again = _LOOK_S * (0.5 + self.random.random())
        begun = self._begun
        try:
            if self.store.executing():
                # Handlers of an earlier leadership change the services' state.
                self.process.after(0.01, self._follow, term)
                return
            self.survival.tell()
            if not self._begun:
                self._rebuild()
            behind = self.follower.apply_more()
            if self._may_take_over(behind=behind):
                self._take_over()
                return
            if behind:
                again = _CATCH_UP_S
        except TrimmedLog as error:
            if not begun:
                # Nothing came in between: whoever begins now never gets on.
                self.world.broken(self.process.name, error)
            self.world.coverage.hit(Fault.SNAPSHOT, Point.BEHIND_SNAPSHOT)
            self._begun = False
        except EngineUnavailable:
            again = 0.1
        except CannotApply as error:
            self.world.trace(self.process.name, f"waits for {error}")
        except Unreadable as error:
            self.world.broken(self.process.name, error)
        self.process.after(again, self._follow, term)

    def _rebuild(self) -> None:
        self.follower.rebuild()
        self._begun = True
        if self.state.applied:
            self.world.trace(self.process.name, f"begins at {self.state.applied}")
            self.world.coverage.hit(Fault.SNAPSHOT, Point.FROM_SNAPSHOT)

    def _may_take_over(self, *, behind: bool) -> bool:
        leadership = self.log.leadership()
        self.store.name_leader(self._succession.leader(leadership))
        asked_for = partial(read_asked_for, self.log)
        now = self.process.clock()
        standing = self._succession.look(leadership, asked_for, now, behind=behind)
        return standing is Standing.TAKE

    # -- leading (invariant 5) ---------------------------------------------------------------

    def _take_over(self) -> None:
        self._term += 1
        sent_at = self.process.clock()
        try:
            number = self.log.take_leadership(self.name, self.address, term_s=TERM_S)
        except (LeaseHeld, EngineUnavailable):
            self.process.after(_LOOK_S, self._follow, self._term)
            return
        self.world.trace(self.process.name, f"takes over under number {number}")
        self.leadership = Leadership(self, number, sent_at)
        self.leadership.begin()

    def transfer(self, wanted: str) -> None:
        """Hand the leadership over, to a replica by name or to any other.

        Raises ``NotLeader``, ``StoreUnavailable``.
        """
        leadership = self.leadership
        if leadership is None or not self.store.serving:
            raise self.store.not_leader()
        if wanted == f"server{self.index}":
            return
        try:
            self.log.put_metadata(
                {TRANSFER_KEY: wanted.encode() or None}, configuration=leadership.configuration
            )
        except LogError as error:
            raise StoreUnavailable(f"the transfer was not begun: {error}") from error
        self.world.trace(self.process.name, f"hands over to {wanted or 'anybody'}")
        self._succession.let_others_try(self.process.clock())
        leadership.hand_over()

    def may_finalize(self) -> bool:
        """Whether its own version is to be the active one from now on."""
        newer = self.application_version > self.state.version
        return newer and self._group.may_finalize(self.application_version)

    def number_ended(self) -> None:
        """Tell the group, all of whose witnesses may be stopped now."""
        self._group.number_ended()

    def give_up(self) -> None:
        """End a recovery that reached no witness, and let others try."""
        self._succession.let_others_try(self.process.clock())
        self.step_down(Deposed("no witness can be asked"), end_lease=True)

    def step_down(self, error: Exception, *, end_lease: bool = False) -> None:
        """End the leadership, and begin over."""
        leadership = self.leadership
        if leadership is None:
            return
        self.world.trace(self.process.name, f"steps down: {error}")
        if isinstance(error, LogError) and ending_of(error) is Ending.STOP:
            # The engine forgot what it had acknowledged, which this one never does.
            self.world.broken(self.process.name, error)
        self.leadership = None
        leadership.end()
        self.survival.stepped_down(leadership.taken, leadership.configuration)
        if end_lease:
            with contextlib.suppress(LogError):
                self.survival.tell()
            with contextlib.suppress(LogError):
                leadership.end_lease()
        self._term += 1
        self._begun = False
        self.process.after(_LOOK_S, self._follow, self._term)
