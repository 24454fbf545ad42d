"""Driver of the product's ``AioTarget``: processes whose handlers a player calls.

What runs is the product's target on an event loop, rules and shell; what is simulated is gRPC, the
store, and what handlers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any, NamedTuple

from chaos.sim.faults import Fault, Point
from chaos.sim.loop import Process
from chaos.sim.player.cast import LOG, METHODS, PlayerCast
from chaos.sim.player.network import Aborted, Call, Host
from chaos.sim.player.store import Effect, Store, Waits, moved
from rifl._server.local_calls import (
    Kind,
    LocalRun,
    Move,
    NotFound,
    RecordPending,
    RowCall,
    StoreUnavailable,
)
from sharedlog._core.target_methods import Delivered, Methods
from sharedlog._core.target_steps import HandlerKind
from sharedlog._target.access import PlayerAccess
from sharedlog._target.aio_target import AioTarget
from sharedlog._target.target import ServedTarget, TargetLimits
from sharedlog.v1 import target_pb2 as pb

__all__ = ["Setup", "SimulatedTarget", "TargetProcess"]

# How often a handler fails, kills its process, hangs for longer than anybody waits, or is slow.
_FAILS, _KILLS, _HANGS, _SLOW = 0.03, 0.005, 0.005, 0.03
# Of those that fail, and of those that kill: always.
_ALWAYS = 0.2
# Of messages, where some kill and nothing else goes wrong.
_KILLERS = 0.01
_INTERNAL, _ABORTED, _UNAVAILABLE, _UNIMPLEMENTED = 13, 10, 14, 12
_SHARED_S = 0.003


class Setup(NamedTuple):
    """How a target is. ``processes``: over one store."""

    name: str
    kind: HandlerKind
    streams: tuple[str, ...]
    processes: int = 1
    shares: bool = False


class SimulatedTarget:
    """One target: its store, and its processes."""

    def __init__(
        self, cast: PlayerCast, index: int, setup: Setup, *, calm: bool, kills: bool = False
    ) -> None:
        """``calm``: no handler fails; ``kills``: but some messages always kill."""
        self.cast = cast
        self.index = index
        self.setup = setup
        self.calm = calm
        self.kills = kills
        self.store = Store(cast, setup.name, shares=setup.shares)
        self.hung_until = 0.0
        # How often its store became another one.
        self.restores = 0
        self.processes = [TargetProcess(self, number) for number in range(setup.processes)]

    def find(self) -> TargetProcess | None:
        """Return the process that a new connection comes to."""
        there = [each for each in self.processes if each.process.alive]
        return self.cast.random.choice(there) if there else None

    def strike(self, fault: Fault, seconds: float, *, declared: bool) -> None:
        """Stop all, put another store in the place of its own, and begin again."""
        self.restores += 1
        for each in self.processes:
            each.crash(seconds, fault)
        if fault is Fault.WIPE:
            self.store.wipe()
        else:
            self.store.restore(declared=declared)
            if declared:
                self.cast.adoptable.add(self.store.held.id)

    def judge(self, effect: Effect, *, begins: bool) -> bool:
        """Hold a handler that runs against its index: it is before that, and begun if it has to.

        False: it was abandoned, and its message passed over, since it began (P7).
        """
        key = f"index/{effect.number}/{effect.tag}@{LOG}"
        row = pb.KeptIndex.FromString(self.store.held.rows.get(key, b""))
        if row.HasField("at") and (row.at.lsn, row.at.ordinal) >= effect.place:
            if not begins and (key, *effect.place) in self.store.skipped:
                return False
            self.broken(f"runs {effect.body!r} at {effect.place}, which it has taken")
        if self.setup.kind is HandlerKind.PLAIN:
            begun = (row.begun.lsn, row.begun.ordinal)
            if begun != effect.place:
                self.broken(f"runs {effect.body!r} at {effect.place}, and begun is {begun}")
        return True

    def broken(self, text: str) -> None:
        """Note what nothing may cause."""
        self.cast.oracle.broken("target", f"{self.setup.name} {text}")

    def behaviour(self, body: bytes) -> str:
        """Say what a handler does with a message this time."""
        cast = self.cast
        cast.tries[self.index, body] += 1
        tries = cast.tries[self.index, body]
        if self.calm:
            return "kills" if self.is_killer(body) else "ok"
        dice = Random(f"{cast.seed} {self.index} {body!r}")  # noqa: S311 - repeatable
        drawn, times = dice.random(), dice.randint(1, 4)
        always = dice.random() < _ALWAYS
        for share, name in ((_FAILS, "fails"), (_KILLS, "kills")):
            if drawn < share:
                return name if always or tries <= times else "ok"
            drawn -= share
        for share, name in ((_HANGS, "hangs"), (_SLOW, "slow")):
            if drawn < share:
                return name if tries == 1 else "ok"
            drawn -= share
        return "ok"

    def is_killer(self, body: bytes) -> bool:
        """Whether a message kills each process that is called with it."""
        dice = Random(f"kills {self.cast.seed} {self.index} {body!r}")  # noqa: S311 - repeatable
        return self.kills and dice.random() < _KILLERS


class TargetProcess(Host):
    """One process of a target, through its lives."""

    def __init__(self, of: SimulatedTarget, number: int) -> None:
        self.of = of
        self.name = f"{of.setup.name}{number}"
        self.courses: dict[Any, None] = {}
        self.calls: dict[Call, None] = {}
        # Handlers that run, and commits in flight.
        self.doing: dict[object, Point] = {}
        self.process = Process(of.cast.loop, self.name)
        self.process.alive = False

    def start(self) -> None:
        """Begin a life, unless it lives."""
        cast = self.of.cast
        if self.process.alive or cast.over:
            return
        self.process = cast.life(self.name)
        self.events = cast.events(self.process)
        self.calls, self.doing = {}, {}
        self.opened = self.of.store.open()
        calls: Any = _Calls(self)
        streams = {name: METHODS[name] for name in self.of.setup.streams}
        methods = Methods(streams, calls.kind_of)
        target = ServedTarget(calls, methods, PlayerAccess(None, None), TargetLimits())
        made = AioTarget(target).methods()
        self._methods = {name.rpartition("/")[2]: make(calls) for name, make in made.items()}

    def crash(self, seconds: float, fault: Fault = Fault.CRASH) -> None:
        """Die, and begin again so much later."""
        cast = self.of.cast
        if not self.process.alive:
            return
        self.count(fault)
        cast.trace(self.name, "dies")
        self.process.kill()
        self.of.store.ended[self.opened] = cast.loop.now
        for call in list(self.calls):
            call.break_off()
        cast.loop.after(seconds, self.start)

    def at(self, point: Point) -> bool:
        """Whether it is about something."""
        return any(each is point for each in self.doing.values())

    def count(self, fault: Fault) -> None:
        """Count a fault at what it is about."""
        for point in self.doing.values():
            self.of.cast.coverage.hit(fault, point)
        if not self.doing:
            self.of.cast.coverage.hit(fault, Point.IDLE)

    async def answer(self, call: Call) -> Any:
        """See ``Host``."""
        handler = self._methods[call.method]
        context = _Context(call)
        if call.method == "Deliver":
            await handler.stream_stream(_requests(call), context)
            return
        data = await call.there.read()
        if data is None:
            return
        answer = await handler.unary_unary(data, context)
        call.back.send(answer)


async def _requests(call: Call) -> AsyncIterator[bytes]:
    while True:
        data = await call.there.read()
        if data is None:
            return
        yield data


class _Context:
    """gRPC's context of one call."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        self._call.back.send(data)

    async def abort(self, code: Any, details: str, metadata: Any) -> None:
        raise Aborted(code, details, metadata)

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()


class _Rows:
    """The store's rows, as one process has them."""

    def __init__(self, of: TargetProcess) -> None:
        self._of = of
        self._store = of.of.store

    @property
    def store_id(self) -> str:
        return self._store.held.id

    @property
    def process(self) -> str:
        return self._of.opened

    def beats(self, processes: Any) -> list[int]:
        shared = self._of.of.setup.processes > 1
        return [self._store.beats(each, shared=shared) for each in processes]

    def get(self, keys: Any) -> Mapping[str, bytes | None]:
        return self._store.get(keys)

    def move(self, moves: Any) -> Waits:
        of, key = self._of, object()
        of.doing[key] = Point.INDEX
        of.of.cast.reached(of, Point.INDEX)
        later = self._store.move(of.events, moves, point=Point.INDEX)
        later.then(lambda: of.doing.pop(key, None))
        return later

    def end(self, attempt: object) -> None:
        """Nothing waits for it."""


class _Calls:
    """In the place of ``LocalCalls``: handlers that do what the schedule says."""

    def __init__(self, of: TargetProcess) -> None:
        self._of = of
        self._target = of.of
        self._store = of.of.store
        self.rows = _Rows(of)
        # What shares the transaction that is open.
        self._moves: list[Move] = []
        self._effects: list[Effect] = []
        self._shared: asyncio.Future[Any] | None = None
        # And the one before it, which commits just now.
        self._committing: list[Move] = []

    def kind_of(self, method: str) -> HandlerKind | None:
        return self._target.setup.kind if method in METHODS.values() else None

    def policy(self, method: str) -> Kind:
        return Kind(self._target.setup.kind.value)

    def begin_task(self, work: Any) -> Any:
        return self._of.events.create_task(work)

    async def find_async(self, handlers: Any, method: str, metadata: Any) -> str:
        await asyncio.sleep(0)
        if method not in METHODS.values():
            raise NotFound(_UNIMPLEMENTED, f"the server has no method {method}")
        return method

    async def run_async(
        self, handler: str, request: bytes, context: Any, call: RowCall, policy: Any
    ) -> tuple[LocalRun, object]:
        of, key = self._of, object()
        of.doing[key] = Point.HANDLER
        cast = self._target.cast
        cast.reached(of, Point.HANDLER)
        try:
            return await self._run(request, call, key), key
        finally:
            of.doing.pop(key, None)

    async def revoke_async(self, call: RowCall) -> bool:
        # What it does later is held off by the index alone: the weakest that a store may have.
        await asyncio.sleep(0.001)
        return True

    async def _run(self, request: bytes, call: RowCall, key: object) -> LocalRun:
        of, target, cast = self._of, self._target, self._target.cast
        behaviour = target.behaviour(request)
        effect = _effect(call.subject, request)
        commits = target.setup.kind is HandlerKind.ATOMIC
        if not commits:
            target.judge(effect, begins=True)
        if cast.loop.tracing:
            delivered: Any = call.subject
            cast.trace(of.name, f"runs {request.decode()} at {delivered.position}: {behaviour}")
        await asyncio.sleep(0.3 if behaviour == "slow" else 0.0005)
        while target.hung_until > cast.loop.now:
            await asyncio.sleep(target.hung_until - cast.loop.now + 0.001)
        match behaviour:
            case "kills":
                of.crash(0.1 + 0.3 * cast.random.random())
                await asyncio.sleep(1e9)
            case "hangs":
                await asyncio.sleep(3.0)
            case "fails":
                return LocalRun(_INTERNAL, "it fails")
        if not commits:
            if target.judge(effect, begins=False):
                self._store.effect(effect)
            else:
                self._store.late.append(effect)
            of.doing[key] = Point.EFFECT
            cast.reached(of, Point.EFFECT)
            # It has yet to return.
            await asyncio.sleep(0.002 * cast.random.random())
            return LocalRun(0, "")
        of.doing[key] = Point.COMMITTING
        cast.reached(of, Point.COMMITTING)
        return await self._committed(call, effect)

    async def _committed(self, call: RowCall, effect: Effect) -> LocalRun:
        try:
            if self._store.shares:
                shared = self._join(call.moves, effect)
                if shared is None:
                    return LocalRun(_ABORTED, "the index is elsewhere")
                if call.more:
                    return LocalRun(0, "", committing=shared)
                found = await shared
            else:
                found = await self._store.commit(
                    self._of.events, call.moves, (effect,), point=Point.COMMITTING
                )
        except RecordPending as error:
            return LocalRun(_UNAVAILABLE, str(error), pending=True)
        except StoreUnavailable as error:
            return LocalRun(_UNAVAILABLE, str(error), broken=True)
        if not found:
            return LocalRun(_ABORTED, "the index is elsewhere")
        return LocalRun(0, "", committed=True)

    def _join(self, moves: tuple[Move, ...], effect: Effect) -> Waits | None:
        """Take part in the transaction that is open; None where the rows are not so."""
        there = self._store.held.rows
        before = moved(there, self._committing)
        if moved(there if before is None else before, (*self._moves, *moves)) is None:
            return None
        self._moves += moves
        self._effects.append(effect)
        if self._shared is None:
            self._shared = self._of.events.create_future()
            self._of.process.after(_SHARED_S * self._target.cast.random.random(), self._commit)
        return Waits(self._shared, record=effect)

    def _commit(self) -> None:
        if self._committing:
            # One after the other.
            self._of.process.after(_SHARED_S, self._commit)
            return
        moves, effects, shared = self._moves, self._effects, self._shared
        self._moves, self._effects, self._shared = [], [], None
        if shared is None:
            return
        try:
            later = self._store.commit(self._of.events, moves, effects, point=Point.COMMITTING)
        except StoreUnavailable as error:
            shared.set_exception(error)
            return
        self._committing = moves
        later.then(lambda: self._pass_on(later, shared))

    def _pass_on(self, later: Waits, shared: asyncio.Future[Any]) -> None:
        self._committing = []
        if shared.done():
            return
        error = later.error
        if error is not None:
            shared.set_exception(error)
        else:
            shared.set_result(True if later.result else None)


def _effect(subject: Delivered, body: bytes) -> Effect:
    delivery = subject._delivery
    return Effect(delivery.feed.number, delivery.tag, delivery.place[:2], body)
