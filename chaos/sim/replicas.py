"""Driver of the product's ``SharedStore``: replicas, over a store that is simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.sim.deployments import KEYS
from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.loop import Process
from chaos.sim.planned import Setting
from chaos.sim.server import Server
from chaos.sim.service import CLAIMED, POLICIES
from chaos.sim.store_leases import StoreLeases
from chaos.sim.store_server import POINTS, StoreBackend, StoreServer
from chaos.sim.world import World
from lease_server._shared_authority import SharedAuthority
from rifl._server.recording import record
from rifl._stores.shared.attempts import SharedAttempt, of_shared
from rifl._stores.shared.backend import BackendError, WentBackwards
from rifl._stores.shared.requests import CountBeat, Ending, Finish, RecordUnclaimed, Written
from rifl._stores.shared.store import SharedStore
from rifl._stores.shared.transactions import FencedTransactions, FinishOf
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind
from rifl.core._serving.unclaimed import BY_COMMIT, BY_RECORD
from rifl.core._shared.errors import RiflError, StaleRpc
from rifl.core._shared.record import CompletionRecord

__all__ = ["ReplicasDeployment"]

_BEAT_S = 0.25
_DEAD_AFTER_S = 1.0
_LATE_AFTER_S = 1.0


class _Transactions(FencedTransactions):
    """Handlers' transactions in the store's own database: each is the moment of its commit."""

    def __init__(
        self, store: StoreServer, finish_of: FinishOf, always: Callable[[str, str], None]
    ) -> None:
        super().__init__(finish_of, always)
        self._sim = store

    def _write(self, transaction: Any, finish: Written) -> None:
        data, call = self._sim.data, finish.call
        if isinstance(finish, RecordUnclaimed):
            taken = data.carry_out(finish).ending is Ending.DONE
        else:
            taken = isinstance(finish, Finish) and data.is_current(call, finish.token, Kind.ATOMIC)
            if taken:
                data.carry_out(finish)
        if not taken:
            raise StaleRpc(f"{call.rpc_id} is recorded, acknowledged or taken over")

    async def _write_async(self, transaction: Any, finish: Written) -> None:
        raise NotImplementedError


class _SimulatedStore(SharedStore):
    """The product's rules, its pulse driven by events."""

    unclaimed = (BY_COMMIT, BY_RECORD)

    def __init__(
        self, process: Process, store: StoreServer, backend: StoreBackend, leases: StoreLeases
    ) -> None:
        self._process = process
        self._events = store.world.events(process)
        super().__init__(
            backend,  # type: ignore[arg-type]  # what it awaits is an event, not a coroutine
            leases,
            beat_s=_BEAT_S,
            dead_after_s=_DEAD_AFTER_S,
            late_after_s=_LATE_AFTER_S,
            clock=process.clock,
            token_hex=lambda count: store.random.randbytes(count).hex(),
        )
        self.transactions = _Transactions(
            store, self._settlement.finish_of, self._unclaimed_runs.always
        )

    def _begin(self) -> None:
        self._backend.listen(self.owner, self._attempts.wake, self._attempts.wake_all)
        rule = self._heartbeat.beat()
        with contextlib.suppress(StopIteration):
            rule.send(self._backend.ask(next(rule)))
        self._process.after(_BEAT_S, self._beat)

    def _beat(self) -> None:
        self._events.create_task(self._carry(self._heartbeat.beat(), self._after_beat))

    def _after_beat(self, error: BaseException | None) -> None:
        if isinstance(error, WentBackwards):
            return
        self._process.after(_BEAT_S, self._beat)
        if error is None:
            self._look_after()
            for rule in (self._heartbeat.repeat(), *self._heartbeat.take_due()):
                self._events.create_task(self._carry(rule, lambda error: None))

    def commit(self, context: Any, reply: bytes) -> None:
        """Fence and record in one transaction of the store's own database, and commit it."""
        backend: Any = self._backend
        backend.reach()
        record(context, reply, None)
        backend.hear(Point.FINISH_REQUEST)
        attempt = context.rifl_attempt
        if of_shared(attempt).number % 2:
            # The others commit by themselves: what became of that is read.
            attempt.committed = CompletionRecord(response=reply)

    async def _carry(self, rule: Any, then: Callable[[BaseException | None], None]) -> None:
        try:
            await self._steps(rule)
        except (BackendError, RiflError) as error:
            then(error)
        else:
            then(None)


class ReplicasDeployment:
    """Several servers over one store."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None:
        self._world = world
        self._setting = setting
        self._store = StoreServer(world, random)

    def open(self, process: Process, index: int) -> _OpenedReplica:
        """Join the store."""
        return _OpenedReplica(process, self._setting, self._store)

    def strike(self, planned: PlannedFault, server: Server) -> None:
        """Take a fault of the store."""
        store, loop, fault = self._store, self._world.loop, planned.fault
        if fault is Fault.STORE_STALL:
            store.process.stop(planned.seconds)
        elif fault is Fault.STORE_RESTART:
            points = (None, *dict.fromkeys(POINTS.values()))
            store.restarts_at = points[int(planned.at * 1000) % len(points)]
            if store.restarts_at is None:
                store.restart()
        elif fault is Fault.STORE_LOSS:
            store.lossy_until, store.loss = loop.now + planned.seconds, planned.share * 0.5

    def heal(self) -> None:
        """Have the store answer from now on."""
        self._store.process.stopped_until = 0.0
        self._store.lossy_until = 0.0
        self._store.restarts_at = None

    def finish(self, world: World) -> None:
        """Record what the service holds."""
        world.accounts.finish()

    def close(self) -> None:
        """Do nothing."""


class _OpenedReplica:
    def __init__(self, process: Process, setting: Setting, store: StoreServer) -> None:
        self._backend = StoreBackend(process, store)
        leases = StoreLeases(process, store, self._backend)
        self.store = _SimulatedStore(process, store, self._backend, leases)
        self.authority = SharedAuthority(
            leases,
            term_s=setting.term_s,
            clock=process.clock,
            wall_clock=process.wall_clock,
            id_block=4,
            randbits=process.dice().getrandbits,
        )
        self.store.bind(
            self.authority,
            POLICIES if setting.never_claimed else CLAIMED,
            clock=process.clock,
            bounds=Bounds(window=setting.window),
            key_bounds=KEYS,
        )

    def commit(self, context: Any, reply: bytes) -> None:
        """Commit a handler's transaction, fenced."""
        self.store.commit(context, reply)

    def until_told(self, attempt: Attempt, told: Callable[[], Any]) -> None:
        """Have ``told`` called when the store takes what the attempt's own server says of it."""
        if isinstance(attempt, SharedAttempt):
            self._backend.until_told(attempt.token, told)

    def crash(self, *, flushed: bool) -> None:
        """Leave what was claimed; the others find out."""
        self._backend.close()

    def close(self) -> None:
        """Say that this replica is gone."""
        with contextlib.suppress(BackendError):
            self._backend.ask(CountBeat(self.store.owner, leaving=True))
        self._backend.close()
