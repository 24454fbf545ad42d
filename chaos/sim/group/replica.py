"""Driver of the product's ``RoleRunner`` and all that it carries out, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from chaos.sim.faults import Fault, Point
from chaos.sim.group.driver import Bell, Renewing, SimulatedDriver
from chaos.sim.group.leadership import SimulatedLeading
from chaos.sim.group.log import LogStore, Moment
from chaos.sim.group.servicer import SimulatedServicer
from chaos.sim.group.witnesses import SimulatedWitnesses
from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.network import Rpc
from chaos.sim.planned import Setting
from chaos.sim.server import Server
from chaos.sim.service import POLICIES
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp._core.compaction import Save, Trim
from curp._core.entries import ApplicationVersion
from curp._core.handover import EndNumber, RefuseCalls
from curp._core.leader import LeaderBounds
from curp._core.read_lease import Renew
from curp._core.recovery import Append, Freeze
from curp._core.role import (
    ApplyMore,
    Rebuild,
    Role,
    RoleEnded,
    RoleEnding,
    TakeCalls,
    TakeLeadership,
)
from curp._core.witness_change import NextNumber, Serve
from curp._replica.authority import GroupAuthority
from curp._replica.group_engine import GroupEngine
from curp._replica.group_servicer import GroupServicer
from curp._replica.group_store import GroupStore
from curp._replica.group_view import GroupView
from curp._replica.parts import Parts
from curp._replica.runner import RoleRunner
from curp._replica.settings import ReplicaSettings, StateHooks, Tuning
from curp._replica.watched_engine import EngineWatch
from curp.log._errors import InvalidRequest, LogError, TrimmedLog
from curp.log._values import NewLogEntry
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._shared.errors import RiflError
from sharedlog._core.errors import LogUnavailable

__all__ = ["Replica", "SimulatedGroup"]

# Of the leadership's lease.
_TERM_S = 1.0
_DRIFT = 0.2
_FINALIZE_S = 0.25
# Entries that the engine takes of a recovery in one append.
_AT_ONCE = 5
# What a fault is aimed at, by the step that was done.
_POINTS = {
    NextNumber: "numbered",
    Serve: "relisted",
    RefuseCalls: "handing-over",
    Save: "saved",
    Trim: "trimmed",
    Renewing: "renewing",
    Renew: "renewed",
}
# Steps that are looked at when they were done; most are none of these.
_TOLD_OF = frozenset(
    (
        *_POINTS,
        *(Append, Freeze, EndNumber, TakeLeadership, TakeCalls, Rebuild, ApplyMore, RoleEnded),
    )
)


class SimulatedGroup(Protocol):
    """What the replicas of a deployment share."""

    world: World
    random: Random
    log: LogStore
    witness_names: tuple[str, ...]
    lossy_until: list[float]
    stalled_until: list[float]
    loss: float
    leaders: dict[int, Replica]

    def lives(self) -> int:
        """Count the lives of replicas: each is another one to the engine."""

    def witness(self, address: str) -> Witness:
        """Return the witness at an address."""

    def trimmed(self) -> int:
        """Return through which LSN the log was trimmed."""

    def number_ended(self) -> None:
        """Note that a leader let its number end: nothing is unsynced."""

    def version(self) -> int:
        """Return the application version that the next life of a replica has."""

    def may_finalize(self, version: int) -> bool:
        """Whether all replicas that live are of that version; then none is older any more."""


class _Runner(RoleRunner):
    def leader_bounds(self) -> LeaderBounds:
        # What a witness holds is mostly more than one append of a recovery.
        many = LeaderBounds().append_entries
        given = super().leader_bounds()
        return LeaderBounds(
            batch_entries=given.batch_entries,
            batch_delay_s=given.batch_delay_s,
            max_unsynced=given.max_unsynced,
            append_entries=many,
        )


class Replica:
    """One life of one replica."""

    def __init__(
        self, process: Process, index: int, setting: Setting, group: SimulatedGroup
    ) -> None:
        self.process = process
        self.index = index
        self.world = group.world
        self.random = random = group.random
        self._group = group
        self.log = group.log.engine(self._strike)
        # No thread blocks: the wait ends when it is asked.
        self.log.wait = lambda after, *, timeout_s: self.log.tail()  # type: ignore[method-assign]
        self.machine = Machine()
        self.application_version = self.machine.application_version = group.version()
        self._append = self.log.append
        self.log.append = self._append_at_most  # type: ignore[method-assign]
        self.driver = SimulatedDriver(process, random, self._did)
        self.store = GroupStore(boottime=process.clock, append_id=lambda: random.randbytes(16))
        self.authority = GroupAuthority(
            setting.term_s, self.store.takes_calls, lambda: self.store.not_leader().leader
        )
        tuning = self._tuning(setting)
        self.store.bind(
            self.authority,
            POLICIES,
            clock=process.clock,
            bounds=tuning.bounds_over_log(Bounds(window=setting.window)),
            key_bounds=KeyBounds(retention_s=None),
        )
        self.store.application_version = self.application_version
        self.store.work = Bell()  # type: ignore[assignment]  # one thread waits for none
        parts = self._parts(setting, tuning)
        self.group_servicer = GroupServicer(parts, EngineWatch(process.clock))
        self.runner = self.group_servicer.runner = _Runner(parts, SimulatedLeading)
        self._servicer = SimulatedServicer(self)
        # Whether it has begun over, and applied nothing since.
        # How far the log was trimmed when it began over, until it has read what comes then.
        self._begun_at: int | None = None
        process.after(0.01 + 0.05 * random.random(), self.runner.start)
        if setting.upgrades:
            process.after(_FINALIZE_S, self._finalize)

    def _tuning(self, setting: Setting) -> Tuning:
        return Tuning(
            lease_term_s=_TERM_S,
            drift=_DRIFT,
            client_term_s=setting.term_s,
            batch_entries=setting.batch_entries,
            batch_delay_s=setting.batch_delay_s,
            max_unsynced=setting.max_unsynced,
            snapshot_entries=setting.snapshot_entries,
        )

    def _parts(self, setting: Setting, tuning: Tuning) -> Parts:
        process, group, machine = self.process, self._group, self.machine
        name = f"server{self.index}"
        settings = ReplicaSettings(
            name=name,
            address=f"{name}:1",
            witnesses=group.witness_names,
            application_version=self.application_version,
            tuning=tuning,
            snapshot_kept_behind=setting.kept_behind,
            append_entries=2,
        )
        return Parts(
            engine=self.log,
            store=self.store,
            services=machine,  # type: ignore[arg-type]  # stands for services
            authority=self.authority,
            witnesses=SimulatedWitnesses(process, group.witness, machine),  # type: ignore[arg-type]
            settings=settings,
            hooks=StateHooks(
                reset=machine.reset, snapshot=machine.snapshot, restore=machine.restore
            ),
            driver=self.driver,
            picture=GroupView(self.log, process.clock),
            # To the engine each life is another replica.
            incarnation=f"{name}/{group.lives()}",
            boottime=process.clock,
            random_bytes=self.random.randbytes,
        )

    @property
    def leading(self) -> SimulatedLeading | None:
        """The leadership that serves, None while there is none here."""
        leading = self.runner.leading
        return leading if isinstance(leading, SimulatedLeading) else None

    # -- as a server sees it -----------------------------------------------------------------

    def engine(self, *arguments: Any, **keywords: Any) -> GroupEngine:
        """Make the engine by which calls arrive."""
        return GroupEngine(self.store, self.machine, *arguments, **keywords)  # type: ignore[arg-type]

    def commit(self, context: Any, reply: bytes) -> None:
        """No method of a group has a transaction of its own."""
        raise NotImplementedError

    def crash(self, *, flushed: bool) -> None:
        """The log is elsewhere: everything here is gone; the outcome of an append is unknown."""
        if self.leading is not None and flushed:
            self.leading.crash()

    def serve_group(self, server: Server, rpc: Rpc) -> None:
        """Answer a request of ``curp.v1.Group``."""
        self._servicer.serve(server, rpc)

    def close(self) -> None:
        """End the leadership, so that no replica must wait for its lease."""
        leading = self.leading
        if leading is not None and self.store.leader is not None:
            try:
                leading.flush()
                self.log.end_leadership(leading.configuration)
            except LogError:
                return

    def snapshot(self) -> None:
        """Take a snapshot now, as an operator asks for."""
        if self.leading is not None:
            self.driver.begin(self.leading.taking_snapshot())

    def _finalize(self) -> None:
        """Make its own version the active one, as an operator asks for when no older one lives."""
        self.process.after(_FINALIZE_S, self._finalize)
        version = self.application_version
        newer = self.store.serving and version > self.store.state.version
        if newer and self._group.may_finalize(version):
            self.world.trace(self.process.name, "an operator finalizes the upgrade")
            try:
                self.store.log(ApplicationVersion(version, "operator"))
            except RiflError as error:
                self.world.trace(self.process.name, f"not finalized: {error}")

    # -- faults of the engine, and what is aimed at a step -------------------------------------

    def _append_at_most(self, entries: Sequence[NewLogEntry], **conditions: Any) -> int:
        """Refuse a recovery that appends at once more than an engine takes, here a few entries."""
        if self.runner.role == Role.RECOVERING and len(entries) > _AT_ONCE:
            raise InvalidRequest(f"{len(entries)} entries in one append, of {_AT_ONCE} at most")
        return self._append(entries, **conditions)

    def _strike(self, name: str, moment: Moment) -> None:
        group = self._group
        now = self.world.loop.now
        if group.stalled_until[self.index] > now:
            self.world.coverage.hit(Fault.STORE_STALL, Point.OTHER_REQUEST)
            raise LogUnavailable("timed out")
        if group.lossy_until[self.index] > now and self.random.random() < group.loss:
            point = Point.APPEND if name == "append" else Point.OTHER_REQUEST
            self.world.coverage.hit(Fault.STORE_LOSS, point)
            raise LogUnavailable(f"{moment.value} {name}")

    def _did(self, step: Any, answer: Any) -> None:
        kind = type(step)
        if kind not in _TOLD_OF:
            return
        point = _POINTS.get(kind)
        if isinstance(step, Append) and step.witnesses is None:
            point = "frozen"
        elif isinstance(step, Freeze) and answer is not None and self.random.random() < 0.5:
            # Else what is aimed here strikes between two pieces.
            point = "frozen"
        if point is not None and self.store.fault is not None:
            self.store.fault(point)
        if isinstance(step, EndNumber):
            # All of its witnesses may be stopped now.
            self._group.number_ended()
        else:
            self._tell(step, answer)

    def _tell(self, step: Any, answer: Any) -> None:
        world, name = self.world, self.process.name
        if isinstance(step, TakeLeadership):
            world.trace(name, f"takes over under number {answer}")
            self._group.leaders[answer] = self
        elif isinstance(step, NextNumber):
            self._group.leaders[answer] = self
        elif isinstance(step, TakeCalls):
            found = step.found
            world.trace(
                name,
                f"leads {step.number} with {','.join(found.witnesses.witnesses)}; froze "
                f"{found.frozen or 'no witness'}, held {found.held}, replayed {found.replayed}",
            )
        elif isinstance(step, Serve):
            world.trace(
                name,
                f"leads {step.witnesses.configuration} with {','.join(step.witnesses.witnesses)}",
            )
        elif isinstance(step, Rebuild):
            self._begun_at = self._group.trimmed()
            if self.store.state.applied:
                world.trace(name, f"begins at {self.store.state.applied}")
                world.coverage.hit(Fault.SNAPSHOT, Point.FROM_SNAPSHOT)
        elif isinstance(step, ApplyMore):
            self._begun_at = None
        elif isinstance(step, RoleEnded):
            self._ended(step)

    def _ended(self, step: RoleEnded) -> None:
        world, error = self.world, step.error
        world.trace(self.process.name, f"steps down: {type(error).__name__}: {error}")
        if isinstance(error, TrimmedLog):
            world.coverage.hit(Fault.SNAPSHOT, Point.BEHIND_SNAPSHOT)
            if self._begun_at == self._group.trimmed():
                # No replica trimmed in between: one that begins now never gets on.
                world.broken(self.process.name, error)
        elif step.ending is RoleEnding.STOP:
            # The engine forgot what it had acknowledged, which this one never does.
            world.broken(self.process.name, error)
