"""Replicas over one store: the product's shared rules, a simulated store between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from random import Random
from typing import Any

from chaos.sim.faults import Fault, PlannedFault, Point
from chaos.sim.loop import Process
from chaos.sim.schedule import Setting
from chaos.sim.server import POLICIES, Server
from chaos.sim.shared_data import Client, SharedData
from chaos.sim.shell import Eventual
from chaos.sim.world import World
from lease_server.errors import SessionClosed, StorageUnavailable
from lease_server.sessions import SessionPolicy, SessionRow, SessionState
from lease_server.shared import SharedAuthority, Standing
from lease_server.storage import MemoryLeaseStorage
from lease_server.tokens import Secret
from rifl.core.client_table import Attempt
from rifl.core.errors import RiflError, StaleRpc
from rifl.core.policy import KeyBounds, Kind
from rifl.core.record import CompletionRecord
from rifl.stores.shared.attempts import SharedAttempt
from rifl.stores.shared.backend import BackendError, WentBackwards
from rifl.stores.shared.requests import Beat, Claim, Finish
from rifl.stores.shared.store import SharedStore
from rifl.stores.shared.watch import Watch

__all__ = ["ReplicasDeployment"]

_BEAT_S = 0.25
_DEAD_AFTER_S = 1.0
_LATE_AFTER_S = 1.0
_TIMEOUT_S = 0.8
_SECRET_BYTES = 32
_POINTS = {Claim: Point.CLAIM_REQUEST, Finish: Point.FINISH_REQUEST, Beat: Point.BEAT_REQUEST}


class _Store:
    """The store's server: one process with its data, which restarts may lose or keep."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.process = Process(world.loop, "store")
        self.lossy_until = 0.0
        self.loss = 0.0
        # Restarts with the next request of this kind on its way.
        self.restarts_at: Point | None = None
        self.lives = 0
        self.listeners: dict[str, _Backend] = {}
        self.wipe()

    def wipe(self) -> None:
        """Be another store, empty."""
        self.data = SharedData(self.process.clock, self._publish)
        self.ids = MemoryLeaseStorage(self.random.randbytes)
        self.next_id = 1
        self.secrets = [Secret(0, self.random.randbytes(_SECRET_BYTES))]
        self.sessions: dict[tuple[bytes, str], SessionRow] = {}
        self.restart()

    def restart(self) -> None:
        """Begin another life with the data of the last; who listened missed something."""
        self.lives += 1
        self.process.alive = False
        self.process = Process(self.world.loop, "store")
        listeners, self.listeners = list(self.listeners.values()), {}
        for backend in listeners:
            backend.process.after(0.05 + self.random.random(), backend.subscribe)

    def clock(self) -> float:
        """The store's own clock."""
        return self.world.loop.now

    def _publish(self, owner: str, token: bytes) -> None:
        backend = self.listeners.get(owner)
        if backend is not None:
            backend.process.after(0.0002 + 0.001 * self.random.random(), backend.woken, token)


class _Backend:
    """One replica's way to the store: ``Backend``, whose requests are events."""

    def __init__(self, process: Process, store: _Store) -> None:
        self.process = process
        self._store = store
        self._data = store.data
        self._owner = ""
        self.woken: Callable[[bytes], None]
        self._resubscribed: Callable[[], None]

    def ask(self, request: Any) -> Any:
        """Carry out a request at once, where the product blocks."""
        self.reach(_POINTS.get(type(request), Point.OTHER_REQUEST))
        return self._data.carry_out(request)

    def ask_async(self, request: Any) -> Eventual:
        """Send a request; the reply, or that there is none, comes later."""
        store, loop, random = self._store, self._store.world.loop, self._store.random.random
        eventual = Eventual()
        point = _POINTS.get(type(request), Point.OTHER_REQUEST)
        self.process.after(_TIMEOUT_S, eventual.finish, None, BackendError("timed out"))
        delay = 0.0001 + 0.0003 * random()
        if self._lost(point):
            return eventual
        if store.lossy_until > loop.now and random() < 0.3:
            # In a socket's buffer for longer than anybody waits for it.
            delay += 1.5 * random()
        if point is store.restarts_at:
            store.restarts_at = None
            loop.after(delay / 2, store.restart)
        loop.at(loop.now + delay, None, self._carry_out, store.lives, request, eventual, point)
        return eventual

    def expire_keys(self, lost: bytes, limit: int) -> int:
        """No key is kept for a time here."""
        return 0

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """Listen from now on."""
        self._owner = owner
        self.woken = wake
        self._resubscribed = resubscribed
        self.subscribe()

    def subscribe(self) -> None:
        """Listen to the store as it is now."""
        self._store.listeners[self._owner] = self
        self._resubscribed()

    def close(self) -> None:
        """Listen no more."""
        self._store.listeners.pop(self._owner, None)

    def reach(self, point: Point = Point.OTHER_REQUEST) -> None:
        """Raise unless the store answers at once."""
        store = self._store
        if store.data is not self._data:
            raise WentBackwards("the store is another one")
        if store.process.stopped_until > store.world.loop.now:
            store.world.coverage.hit(Fault.STORE_STALL, point)
            raise BackendError("timed out")
        if self._lost(point):
            raise BackendError("connection lost")

    def _lost(self, point: Point) -> bool:
        store = self._store
        if store.lossy_until <= store.world.loop.now or store.random.random() >= store.loss:
            return False
        store.world.coverage.hit(Fault.STORE_LOSS, point)
        return True

    def _carry_out(self, life: int, request: Any, eventual: Eventual, point: Point) -> None:
        store = self._store
        if life != store.lives:
            # The connection broke; a request on it is lost with it.
            store.world.coverage.hit(Fault.STORE_RESTART, point)
            self._reply(eventual, None, BackendError("connection lost"))
            return
        if store.process.stopped_until > store.world.loop.now:
            store.world.coverage.hit(Fault.STORE_STALL, point)
            store.process.after(0.0, self._carry_out, life, request, eventual, point)
            return
        if store.data is not self._data:
            self._reply(eventual, None, WentBackwards("the store is another one"))
            return
        reply = self._data.carry_out(request)
        if not self._lost(point):
            self._reply(eventual, reply, None)

    def _reply(self, eventual: Eventual, reply: Any, error: Exception | None) -> None:
        delay = 0.0001 + 0.0003 * self._store.random.random()
        self.process.after(delay, eventual.finish, reply, error)


class _Leases:
    """``SharedLeaseStorage`` over the store."""

    def __init__(self, process: Process, store: _Store, backend: _Backend) -> None:
        self._store = store
        self._backend = backend
        self._watch = Watch(process.clock)
        self.held = 0

    def count(self) -> None:
        """Count the clients that have a row."""
        self.held = len(self._reach().clients)

    def _reach(self) -> SharedData:
        try:
            self._backend.reach()
        except BackendError as error:
            raise StorageUnavailable(str(error)) from error
        return self._store.data

    def grant(self, client_id: int, term_s: float, max_clients: int) -> None:
        """Make the id known on every server."""
        data = self._reach()
        data.clients[client_id] = Client(term_s, self._store.clock() + term_s)

    def renew(self, client_id: int) -> Standing:
        """Give the lease its full length again."""
        data = self._reach()
        standing = self.standing(client_id)
        if standing in (Standing.ALIVE, Standing.SESSION):
            data.renew(data.clients[client_id])
        return standing

    def standing(self, client_id: int) -> Standing:
        """How the id stands."""
        client = self._reach().clients.get(client_id)
        if client is None or client.state == "over":
            return Standing.UNKNOWN
        if client.state == "closed":
            return Standing.CLOSED
        return Standing.SESSION if client.state == "session" else Standing.ALIVE

    def identity(self) -> str:
        """Whose ids these are: the one store's."""
        return "simulated"

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep."""
        client = self._reach().clients.get(client_id)
        if client is not None:
            client.due = 0.0

    def open_session(self, row: SessionRow, policy: SessionPolicy) -> SessionRow:
        """Insert the session, or the row that stands."""
        data = self._reach()
        standing = self._store.sessions.get((row.peer, row.name))
        if standing is None:
            due = self._store.clock() + row.retention_s
            data.clients[row.client_id] = Client(row.retention_s, due, "session")
            self._store.sessions[row.peer, row.name] = row
            return row
        client = data.clients.get(standing.client_id)
        if client is not None and client.state == "session":
            data.renew(client)
        return standing

    def close_session(self, name: str, peer: bytes, unix_s: float) -> tuple[SessionRow, bool]:
        """Close for ever."""
        data = self._reach()
        row = self._store.sessions.get((peer, name))
        if row is None:
            raise SessionClosed(f"no session {name!r} is known here")
        if row.state is not SessionState.OPEN:
            return row, False
        row = SessionRow(row.client_id, name, peer, SessionState.CLOSED, row.retention_s, unix_s)
        self._store.sessions[peer, name] = row
        client = data.clients.get(row.client_id)
        if client is not None:
            client.state, client.due = "closed", 0.0
        return row, True

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due, if the store was watched for a full term."""
        try:
            data = self._reach()
        except StorageUnavailable:
            self._watch.lost()
            raise
        watched = self._watch.saw(b"%d" % self._store.lives, term_s)
        limit = self._store.clock() if watched else 0.0
        dropped = 0
        for client_id, client in list(data.clients.items()):
            if client.due > limit:
                continue
            session = client.state in ("session", "closed")
            client.state = "closed" if session else "over"
            if any(attempt.owner in data.beats for attempt in client.running.values()):
                continue
            for identity in list(client.running):
                data.ended(client, identity)
            client.done.clear()
            if not session:
                del data.clients[client_id]
            dropped += 1
        return dropped

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ids above all earlier ones."""
        self._reach()
        first = self._store.next_id
        self._store.next_id += count
        return first, first + count - 1

    def secrets(self) -> list[Secret]:
        """The secrets, newest first."""
        self._reach()
        return list(self._store.secrets)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        self._reach()
        fresh = Secret(
            self._store.secrets[0].key_id + 1, self._store.random.randbytes(_SECRET_BYTES)
        )
        self._store.secrets = [fresh, self._store.secrets[0]]
        return list(self._store.secrets)

    def load_sessions(self) -> list[SessionRow]:
        """Every session row."""
        return list(self._store.sessions.values())

    def put_session(self, row: SessionRow) -> SessionRow:
        """Not asked for by an authority over a shared storage."""
        raise NotImplementedError

    def forget_session(self, client_id: int) -> None:
        """Not asked for by an authority over a shared storage."""
        raise NotImplementedError

    def known_clients(self) -> list[int]:
        """Ids with a row."""
        return list(self._store.data.clients)

    def drop_client(self, client_id: int) -> None:
        """Not asked for by a server that hosts the lease service."""
        raise NotImplementedError

    def is_foreign(self, client_id: int) -> bool:
        """Never: ids outlive every process."""
        return False


class _SimulatedStore(SharedStore):
    """The product's rules, its pulse driven by events."""

    def __init__(self, process: Process, store: _Store, backend: _Backend, leases: _Leases) -> None:
        self._process = process
        self._sim = store
        super().__init__(
            backend,  # type: ignore[arg-type]  # what it awaits is an event, not a coroutine
            leases,
            beat_s=_BEAT_S,
            dead_after_s=_DEAD_AFTER_S,
            late_after_s=_LATE_AFTER_S,
            clock=process.clock,
            token_hex=lambda count: store.random.randbytes(count).hex(),
        )

    def _begin(self) -> None:
        self._backend.listen(self.owner, self._attempts.wake, self._attempts.wake_all)
        rule = self._pulse.beat()
        with contextlib.suppress(StopIteration):
            rule.send(self._backend.ask(next(rule)))
        self._process.after(_BEAT_S, self._beat)

    def _beat(self) -> None:
        _Rule(self._process, self._steps(self._pulse.beat()), self._after_beat).go()

    def _after_beat(self, error: BaseException | None) -> None:
        if isinstance(error, WentBackwards):
            return
        self._process.after(_BEAT_S, self._beat)
        if error is None:
            self._look_after()
            for rule in (self._pulse.repeat(), *self._pulse.take_due()):
                _Rule(self._process, self._steps(rule), lambda error: None).go()

    def record_in(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Fence and record in one transaction of the store's own database."""
        if not isinstance(attempt, SharedAttempt):
            raise StaleRpc("an attempt of another store")
        attempt.recorded = record
        self._backend.reach()  # type: ignore[attr-defined]
        data = self._sim.data
        if not data.is_current(attempt.call, attempt.token, Kind.ATOMIC):
            raise StaleRpc(f"{attempt.call.rpc_id} is recorded, acknowledged or taken over")
        data.carry_out(Finish(attempt.call, attempt.token, self._codec.to_bytes(record)))


class _Rule:
    """Drives a rule that nobody waits for."""

    def __init__(
        self, process: Process, steps: Any, done: Callable[[BaseException | None], None]
    ) -> None:
        self._process = process
        self._steps: Generator[Any, Any, Any] = steps.__await__()
        self._done = done

    def go(self) -> None:
        """Carry on until something has to be waited for."""
        try:
            eventual: Eventual = self._steps.send(None)
        except StopIteration:
            self._done(None)
        except (BackendError, RiflError) as error:
            self._done(error)
        else:
            eventual.callback = self.go


class ReplicasDeployment:
    """Several servers over one store."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None:
        self._world = world
        self._setting = setting
        self._store = _Store(world, random)

    def open(self, process: Process, index: int) -> _OpenedReplica:
        """Join the store."""
        return _OpenedReplica(process, self._setting, self._store)

    def strike(self, planned: PlannedFault, server: Server) -> None:
        """Take a fault of the store."""
        store, loop, fault = self._store, self._world.loop, planned.fault
        if fault is Fault.STORE_STALL:
            store.process.stop(planned.seconds)
        elif fault is Fault.STORE_RESTART:
            points = (None, *_POINTS.values())
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
        """Nothing to let go of."""


class _OpenedReplica:
    def __init__(self, process: Process, setting: Setting, store: _Store) -> None:
        self._backend = _Backend(process, store)
        leases = _Leases(process, store, self._backend)
        self.store = _SimulatedStore(process, store, self._backend, leases)
        self.authority = SharedAuthority(
            leases,
            term_s=setting.term_s,
            clock=process.clock,
            wall_clock=process.wall_clock,
            id_block=4,
        )
        self.store.bind(
            self.authority,
            POLICIES,
            clock=process.clock,
            window=setting.window,
            key_bounds=KeyBounds(retention_s=None),
        )

    def commit(self, attempt: Attempt, record: CompletionRecord) -> None:
        """Commit a handler's transaction, fenced."""
        self.store.record_in(attempt, record, None)

    def crash(self, *, flushed: bool) -> None:
        """Leave what was claimed; the others find out."""
        self._backend.close()

    def close(self) -> None:
        """Say that this replica is gone."""
        with contextlib.suppress(BackendError):
            self._backend.ask(Beat(self.store.owner, leaving=True))
        self._backend.close()
