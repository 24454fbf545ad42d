"""Driver of the product's engine, authority and store: a server process, through its lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from chaos.sim.call_server import Calls
from chaos.sim.faults import Fault, Point
from chaos.sim.known_clients import KnownClients
from chaos.sim.lease_calls import LeaseCalls
from chaos.sim.loop import Process
from chaos.sim.network import Rpc
from chaos.sim.server_life import Opened, ServerLife
from chaos.sim.service import POLICIES
from chaos.sim.world import World
from rifl._server.call_engine import CallEngine, KeysFrom
from rifl._server.sweeper import sweep
from rifl._stores.errors import StoreError
from rifl._stores.shared.backend import BackendError
from rifl.core._serving.bounds import Bounds
from rifl.core._shared.errors import RiflError

__all__ = ["Server"]

_SWEEPS_PER_TERM = 10
# After a handler ended its process.
_AGAIN_S = 0.1
# By the names that a group's store gives them.
_PASSED = {
    "answered": Point.ANSWERED_FIRST,
    "reply": Point.LOGGED,
    "frozen": Point.RECOVERING,
    "numbered": Point.NUMBERED,
    "relisted": Point.RELISTED,
    "handing-over": Point.HANDING_OVER,
    "saved": Point.SAVED,
    "trimmed": Point.TRIMMED,
    "renewing": Point.RENEWING,
    "renewed": Point.RENEWED,
}
_CALLS = ("call", "batch", "resolve", "request-stream", "response-stream")
_IN_THE_HANDLER = (Point.HANDLER, Point.EFFECT)
# Where a process that is dead cannot be said to be.
_LEADERS_ALONE = (
    Point.RECOVERING,
    Point.NUMBERED,
    Point.RELISTED,
    Point.HANDING_OVER,
    Point.SAVED,
    Point.TRIMMED,
    Point.RENEWING,
    Point.RENEWED,
)


class Server:
    """One server, through all its lives."""

    def __init__(
        self,
        world: World,
        index: int,
        random: Random,
        open_: Callable[[Process, int], Opened],
        *,
        rate: float,
        max_waiters: int,
        window: int,
    ) -> None:
        self.world = world
        self.index = index
        self.name = f"server{index}"
        self.rpcs: dict[Rpc, None] = {}
        self.lives = 0
        self._random = random.random
        self._open = open_
        self._rate = rate
        self._max_waiters = max_waiters
        self._window = window
        self.wall_offset_s = 0.0
        self._clients = KnownClients(world, self.name)
        self.process = Process(world.loop, self.name)
        self.process.alive = False
        self._life: ServerLife
        # All of them: what they have left is not collected before the end.
        self._ended: list[ServerLife] = []

    # -- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life; what cannot start tries again a second later."""
        world = self.world
        if self.process.alive or world.over:
            return
        self.lives += 1
        process = Process(world.loop, self.name, rate=self._rate, wall_offset_s=self.wall_offset_s)
        try:
            opened = self._open(process, self.index)
        except (StoreError, RiflError, BackendError) as error:
            world.trace(self.name, f"cannot start: {error}")
            world.loop.after(1.0, self.start)
            return
        self.process = process
        machine = getattr(opened, "machine", None)
        if machine is not None:
            machine.die = self._killed
        store, authority = opened.store, opened.authority
        make_engine: Any = getattr(opened, "engine", partial(CallEngine, store))
        engine = make_engine(
            authority,
            POLICIES,
            bounds=Bounds(max_aio_waiters=self._max_waiters, max_wait_s=10.0),
            peer_property=None,
            keys_from=KeysFrom.ANYONE,
        )
        life = self._life = ServerLife(world, process, opened, engine, self._clients)
        if hasattr(store, "fault"):
            store.fault = self._passed
        self._ended.append(life)
        self._calls = Calls(life)
        self._leases = LeaseCalls(life, self._window)
        self.rpcs = {}
        self._clients.begin(process, authority.term_s)
        world.network.hosts[self.index] = self
        if self.lives > 1 and self._random() < 0.5:
            world.network.send_again(self.index)
        world.trace(self.name, f"started, life {self.lives}")
        process.after(authority.term_s / _SWEEPS_PER_TERM, self._sweep)

    def overheard(self, session: str) -> None:
        """Be asked by a stranger, who knows a session's name, for its id and for its end."""
        if self.process.alive:
            self._leases.overheard(session)

    def crash(self, fault: Fault = Fault.CRASH) -> None:
        """End at once."""
        if not self.process.alive:
            return
        self.count(fault)
        self.world.trace(self.name, f"dies with {len(self._life.shell.served)} calls")
        self._clients.caught = {
            task.attempt.call.client_id
            for task in self._life.shell.served
            if task.point in _IN_THE_HANDLER and task.attempt is not None
        }
        self.process.kill()
        self.world.network.hosts.pop(self.index, None)
        self._life.opened.crash(flushed=self._random() < 0.5)
        self.world.network.host_died(self)

    def _killed(self) -> None:
        """Die of a handler; a supervisor starts it again soon."""
        self.crash()
        self.world.loop.after(_AGAIN_S, self.start)

    def aim(self, point: Point, strike: Callable[[], None]) -> None:
        """Have something strike when a call is next at a point, at once if one is."""
        if not self.process.alive:
            if point not in _LEADERS_ALONE:
                strike()
        elif any(task.point is point for task in self._life.shell.served):
            strike()
        else:
            self._life.shell.aims.setdefault(point, []).append(strike)

    def leads(self) -> bool:
        """Whether it leads a group, as far as it knows."""
        return self.process.alive and getattr(self._life.opened.store, "leader", None) is not None

    def _passed(self, point: str) -> None:
        if point in _PASSED:
            self._life.shell.reach(_PASSED[point])

    def stop(self, seconds: float) -> None:
        """Be suspended."""
        if self.process.alive:
            self.count(Fault.STOP)
            self.world.trace(self.name, f"stopped for {seconds:.3f} s")
            self.process.stop(seconds)

    def drain(self) -> None:
        """Stop in order: refuse new calls, let the others end, close."""
        if not self.process.alive:
            return
        self.count(Fault.DRAIN)
        self.world.trace(self.name, "drains")
        self._life.opened.store.refuse_new(True)
        self.process.after(0.5, self._closed)

    def rotate_secret(self) -> None:
        """Make a new secret for tokens."""
        if self.process.alive:
            try:
                self._life.opened.authority.rotate_secret()
            except RiflError as error:
                self.world.trace(self.name, f"secret not rotated: {error}")
            else:
                self.world.coverage.hit(Fault.ROTATE_SECRET, Point.IDLE)

    def jump(self, seconds: float) -> None:
        """Have the wall clock set."""
        self.wall_offset_s += seconds
        self.process.wall_offset_s = self.wall_offset_s
        self.world.coverage.hit(Fault.WALL_JUMP, Point.IDLE)
        self.world.trace(self.name, f"wall clock jumps by {seconds:.0f} s")

    def restart(self) -> None:
        """Die and begin anew, as if an operator had found it stopped."""
        if self.process.alive:
            self.crash()
            self.start()

    def heal(self) -> None:
        """Have it run, whatever became of it; no fault that waits for a call strikes any more."""
        if self.process.alive:
            self._life.shell.aims.clear()
            self.process.stopped_until = 0.0
        self.start()

    def running(self) -> int:
        """How many attempts are not settled, tasks that wait included."""
        return (
            len(self._life.shell.served) + self._life.opened.store.running()
            if self.process.alive
            else 0
        )

    def _closed(self) -> None:
        if self._life.opened.store.running():
            # As `close` does when its timeout passes.
            self.world.trace(self.name, "closes with calls running")
        self._clients.caught = set()
        self.process.kill()
        self.world.network.hosts.pop(self.index, None)
        self._life.opened.close()
        self.world.network.host_died(self)

    def count(self, fault: Fault) -> None:
        """Count where a fault struck: at the points of all calls, or at none."""
        coverage = self.world.coverage
        if not self._life.shell.served:
            coverage.hit(fault, Point.IDLE)
        for task in self._life.shell.served:
            coverage.hit(fault, task.point)

    def _sweep(self) -> None:
        authority = self._life.opened.authority
        if ended := sweep(self._life.opened.store, authority):
            self.world.trace(self.name, f"{len(ended)} clients ended")
        self.process.after(authority.term_s / _SWEEPS_PER_TERM, self._sweep)

    # -- requests --------------------------------------------------------------------------

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""
        if rpc.kind in _CALLS:
            self._calls.receive(rpc)
        elif rpc.kind in ("group", "operator"):
            self._life.opened.serve_group(self, rpc)  # type: ignore[attr-defined]  # of a group
        else:
            self._leases.receive(rpc)

    def forget(self) -> None:
        """End what its lives have left, when the run is over and judged."""
        for life in self._ended:
            life.process.alive = False
            life.shell.forget()

    def forget_whom_it_knew(self) -> None:
        """Lose the store, or what came after a copy of it: no client has to be known."""
        self._clients.forget()

    def refuse(self, rpc: Rpc, error: RiflError) -> None:
        """Answer a request that is no call with a refusal."""
        self._life.refuse(rpc, error)
