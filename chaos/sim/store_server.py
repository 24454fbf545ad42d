"""Model of the world: a shared store's server, and a replica's way to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

from chaos.sim.faults import Fault, Point
from chaos.sim.loop import Process, Timer
from chaos.sim.shared_data import SharedData
from chaos.sim.world import World
from lease_server._sessions import SessionRow
from lease_server._storage import MemoryLeaseStorage
from lease_server._tokens import Secret
from rifl._stores.pending import Pending
from rifl._stores.shared.backend import TRIES_TAKE, BackendError, WentBackwards
from rifl._stores.shared.requests import Claim, CountBeat, Ending, Finish, FinishUnclaimed, Found
from rifl.core._serving.later import Later

__all__ = ["POINTS", "SECRET_BYTES", "ReplyLost", "StoreBackend", "StoreServer"]

_TIMEOUT_S = 0.8
SECRET_BYTES = 32
# Where each request is when a fault strikes it.
POINTS = {
    Claim: Point.CLAIM_REQUEST,
    Finish: Point.FINISH_REQUEST,
    FinishUnclaimed: Point.FINISH_REQUEST,
    CountBeat: Point.BEAT_REQUEST,
}


class ReplyLost(BackendError):
    """The commit of a handler's transaction was carried out, and its reply was lost."""


class StoreServer:
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
        self.listeners: dict[str, StoreBackend] = {}
        # By the tokens of attempts: who is to know that the store was told how they ended.
        self.untold: dict[bytes, Callable[[], Any]] = {}
        self.wipe()

    def wipe(self) -> None:
        """Be another store, empty."""
        self.data = SharedData(self.process.clock, self._publish)
        self.ids = MemoryLeaseStorage(self.random.randbytes)
        self.next_id = 1
        self.secrets = [Secret(0, self.random.randbytes(SECRET_BYTES))]
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

    def carry_out(self, data: SharedData, request: Any) -> Any:
        """Carry a request out, and look whether it says what became of an attempt."""
        reply = data.carry_out(request)
        if self.untold:
            token = b""
            if isinstance(request, Finish) and reply.ending is Ending.DONE:
                token = request.token
            elif isinstance(request, Claim) and reply.found is Found.NEW:
                # Left without an owner, as a call that may have run.
                token = b"" if request.owner.strip("0") else request.take_over
            if (told := self.untold.pop(token, None)) is not None:
                told()
        return reply

    def _publish(self, owner: str, token: bytes) -> None:
        backend = self.listeners.get(owner)
        if backend is not None:
            backend.process.after(0.0002 + 0.001 * self.random.random(), backend.woken, token)


class StoreBackend:
    """One replica's way to the store: ``Backend``, whose requests are events."""

    longest_s = TRIES_TAKE * _TIMEOUT_S

    def __init__(self, process: Process, store: StoreServer) -> None:
        self.process = process
        self._store = store
        self._data = store.data
        self._owner = ""
        self.woken: Callable[[bytes], None]
        self._resubscribed: Callable[[], None]

    def ask(self, request: Any, within_s: float | None = None) -> Any:
        """Carry out a request at once, where the product blocks."""
        self.reach(POINTS.get(type(request), Point.OTHER_REQUEST))
        return self._store.carry_out(self._data, request)

    def ask_all(self, requests: Sequence[Any], within_s: float | None = None) -> list[Any]:
        """Carry out requests in their order; see ``Backend``."""
        replies: list[Any] = []
        for request in requests:
            try:
                replies.append(self.ask(request))
            except BackendError as error:
                replies.append(error)
        return replies

    def ask_all_async(self, requests: Sequence[Any]) -> _Replies:
        """Send requests in one pipeline; see ``Backend``."""
        return _Replies(self.ask_async(tuple(requests)), len(requests))

    def ask_async(self, request: Any) -> _Reply:
        """Send a request, or a tuple of them; the reply, or that there is none, comes later."""
        store, loop, random = self._store, self._store.world.loop, self._store.random.random
        eventual = _Reply()
        first = request[0] if type(request) is tuple else request
        point = POINTS.get(type(first), Point.OTHER_REQUEST)
        late = BackendError("timed out")
        eventual.timer = self.process.after(_TIMEOUT_S, eventual.finish, None, late)
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
        """Drop keyed calls whose retention is over; see ``Backend``."""
        self.reach()
        return self._data.expire_keys(lost, limit)

    def until_told(self, token: bytes, told: Callable[[], Any]) -> None:
        """Have ``told`` called when an attempt's own server ends it, and is not too late."""
        self._store.untold[token] = told

    def look_again(self) -> str:
        """Nothing: it keeps what it says."""
        return ""

    def seal(self) -> None:
        """Nothing to do: it never goes backwards."""

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """Listen from now on."""
        self._owner = owner
        self.woken = wake
        self._resubscribed = resubscribed
        self.subscribe()

    def subscribe(self) -> None:
        """Listen to the present store."""
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

    def hear(self, point: Point) -> None:
        """Raise where the reply to what was carried out at once is lost."""
        if self._lost(point):
            raise ReplyLost("connection lost")

    def _lost(self, point: Point) -> bool:
        store = self._store
        if store.lossy_until <= store.world.loop.now or store.random.random() >= store.loss:
            return False
        store.world.coverage.hit(Fault.STORE_LOSS, point)
        return True

    def _carry_out(self, life: int, request: Any, eventual: _Reply, point: Point) -> None:
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
        if type(request) is tuple:
            # Each is a step of its own: a connection may break between two of them.
            broken = self._lost(point)
            count = int(store.random.random() * len(request)) if broken else len(request)
            reply = [store.carry_out(self._data, each) for each in request[:count]]
            if broken:
                return
        else:
            reply = store.carry_out(self._data, request)
        if not self._lost(point):
            self._reply(eventual, reply, None)

    def _reply(self, eventual: _Reply, reply: Any, error: Exception | None) -> None:
        delay = 0.0001 + 0.0003 * self._store.random.random()
        self.process.after(delay, eventual.finish, reply, error)


class _Reply(Pending):
    """What is awaited of one request: its reply, or that there was none in time."""

    # What it ends by if nothing else ends it.
    timer: Timer

    def finish(self, result: Any, error: Exception | None) -> None:
        """Set the result, or the error, once."""
        if self.done:
            return
        self.timer.cancel()
        self.result = result
        if error is None:
            self.succeed()
        else:
            self.fail(error)


class _Replies(Later):
    """The replies to a pipeline; where it fails, an error for each request."""

    __slots__ = ("_count", "_eventual")

    def __init__(self, eventual: _Reply, count: int) -> None:
        self._eventual = eventual
        self._count = count

    def wait(self) -> Any:
        """Never called: no thread blocks here."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Wait for them."""
        try:
            return (yield from self._eventual.__await__())  # type: ignore[no-any-return]
        except BackendError as error:
            return [error] * self._count
