"""Rooms of a server: places for handlers, which threads and event loops wait for (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from rifl._stores.pending import Pending
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.room import HandlerRoom, PlaceWaiter, RunTimes, overloaded
from rifl.core._shared.call import Call
from rifl.core._shared.errors import Overloaded

_LATE = "no place became free in time"
_LEFT = "its caller left while it waited for a place"
_MOST_METHODS = 4096
_Each = TypeVar("_Each")
Clock = Callable[[], float]
WhenLeft = Callable[[Callable[[], None]], Any]


class OfMethods(Generic[_Each]):
    """One thing for each method, made when it is asked for first. Any thread.

    Beyond 4096 methods, whose names callers may make up, they are those of policies.
    """

    def __init__(self, make: Callable[[MethodPolicy], _Each]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[str | int, _Each] = {}

    def of(self, method: str, policy: MethodPolicy) -> _Each:
        """Return the method's."""
        with self._lock:
            full = len(self._made) >= _MOST_METHODS
            key = id(policy) if full and method not in self._made else method
            if key not in self._made:
                self._made[key] = self._make(policy)
            return self._made[key]

    def all(self) -> list[_Each]:
        """Return all that were made."""
        return list(self._made.values())


class Rooms:
    """The rooms of one deduplicator: one for each policy object with ``max_running``. Any thread.

    ``clock``: monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By the policy's id: equal policies are not one. Each is kept by its room.
        self._rooms: dict[int, ServerRoom] = {}

    def of(self, policy: MethodPolicy) -> ServerRoom | None:
        """Return the policy's room, None if it needs none."""
        if policy.max_running is None:
            return None
        with self._lock:
            room = self._rooms.get(id(policy))
            if room is None:
                room = self._rooms[id(policy)] = ServerRoom(policy, self._clock)
            return room

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return sum(len(room.room) for room in list(self._rooms.values()))


class ServerRoom:
    """One ``HandlerRoom``, for threads and loops together."""

    def __init__(self, policy: MethodPolicy, clock: Clock) -> None:
        self.policy = policy
        self.clock = clock
        self.lock = threading.Lock()
        self.room = HandlerRoom(policy.max_running or 1, policy.most_waiting)

    def place(self, call: Call, context: Any, when_left: WhenLeft | None = None) -> CallPlace:
        """Return what an arrival takes a place by; ``when_left`` is gRPC's ``add_callback``."""
        return CallPlace(self, call, context.time_remaining, when_left)


@contextlib.contextmanager
def in_room(
    room: ServerRoom | PoolPlaces | None,
    call: Call,
    context: Any,
    when_left: WhenLeft | None = None,
) -> Iterator[Any]:
    """Give what an arrival takes a place by, None without a room; at the end the place is left."""
    if room is None:
        yield None
        return
    place = room.place(call, context, when_left)
    try:
        yield place
    finally:
        place.leave()


class PoolPlaces:
    """One method's calls in a thread pool of a server, while that is full. Any thread.

    There is a place for each, but for one whose own time left is below that of quick runs.
    """

    def __init__(self, policy: MethodPolicy, clock: Clock = time.monotonic) -> None:
        self.policy = policy
        self.clock = clock
        self.times = RunTimes()
        self.lock = threading.Lock()

    def place(self, call: Call, context: Any, when_left: WhenLeft | None = None) -> TimedPlace:
        """Return what an arrival takes a place by."""
        return TimedPlace(self, call, context.time_remaining())


class TimedPlace:
    """A ``HandlerPlace`` for a call in time."""

    def __init__(self, pool: PoolPlaces, call: Call, remaining_s: float | None) -> None:
        self.held = False
        self._pool = pool
        self._call = call
        self._since = pool.clock()
        self._until = math.inf
        if remaining_s is not None:
            self._until = self._since + max(remaining_s, call.try_ms / 1000)

    def enter(self) -> None:
        """Take it; raises ``Overloaded``."""
        pool, self._since = self._pool, self._pool.clock()
        with pool.lock:
            refused = pool.times.refuses(self._until - self._since)
        if refused:
            raise overloaded("its time left is below that of quick runs", self._call, pool.policy)
        self.held = True

    def leave(self, *, ran: bool = False) -> None:
        """Note how long its handler ran, if it did."""
        if self.held and ran:
            with self._pool.lock:
                now = self._pool.clock()
                self._pool.times.note(now - self._since, self._until - now)
        self.held = False

    def quit(self) -> None:
        """Do nothing: no one waits for it."""


class CallPlace:
    """One arrival's place; see ``HandlerPlace``. ``quit`` is for any thread.

    The rest is called in turn. Without ``when_left`` its shell calls ``quit``.
    """

    def __init__(
        self,
        room: ServerRoom,
        call: Call,
        remaining_s: Callable[[], float | None],
        when_left: WhenLeft | None,
    ) -> None:
        self.held = False
        self._room = room
        self._call = call
        self._remaining_s = remaining_s
        self._when_left = when_left
        self._since = 0.0
        self._until = math.inf
        self._waiter: PlaceWaiter | None = None
        self._left = False

    def enter(self) -> Later | None:
        """Take a place, or wait for one; raises ``Overloaded``, also if the caller leaves."""
        own, now = self._room, self._room.clock()
        remaining_s = self._remaining_s()
        until = math.inf if remaining_s is None else now + remaining_s
        # Since it arrived, if its header says so: a moment ago.
        self._until = max(until, now + self._call.try_ms / 1000)
        with own.lock:
            if own.room.take():
                self.held, self._since = True, now
                return None
            waiting = _Waiting(self, remaining_s)
            waiter = waiting.waiter = PlaceWaiter(now, until, self._until, waiting.succeed)
            refused = own.room.line_up(waiter)
        if refused is waiter:
            raise self._refusal(waiter)
        self._waiter = waiter
        if refused is not None:
            refused.wake()
        # False: it has left already; on a grpc.aio.server the answer is always None.
        if self._left or (self._when_left is not None and self._when_left(self.quit) is False):
            self.quit()
        return waiting

    def entered(self, waiter: PlaceWaiter) -> None:
        """Take what a wait came to; raises ``Overloaded``."""
        own = self._room
        with own.lock:
            if own.room.forget(waiter):
                waiter.refused = _LATE
        if not waiter.placed:
            raise self._refusal(waiter)
        self.held, self._since = True, own.clock()
        if self._left:
            self.leave()
            waiter.refused = _LEFT
            raise self._refusal(waiter)

    def leave(self, *, ran: bool = False) -> None:
        """Give the place back, if it is held. ``ran``: a handler did, and has ended."""
        if not self.held:
            return
        self.held = False
        own, now = self._room, self._room.clock()
        with own.lock:
            ran_s = now - self._since if ran else None
            told = own.room.leave(now, ran_s, self._until - now)
        for waiter in told:
            waiter.wake()

    def quit(self) -> None:
        """Note that the caller has left: a wait ends."""
        self._left = True
        if (waiter := self._waiter) is None:
            return
        with self._room.lock:
            forgotten = self._room.room.forget(waiter)
            if forgotten:
                waiter.refused = _LEFT
        if forgotten:
            waiter.wake()

    def _refusal(self, waiter: PlaceWaiter) -> Overloaded:
        return overloaded(waiter.refused, self._call, self._room.policy)


class _Waiting(Pending):
    """The wait for a place, by a thread or on a loop."""

    waiter: PlaceWaiter

    def __init__(self, place: CallPlace, remaining_s: float | None) -> None:
        super().__init__()
        self._place = place
        self._limit_s = remaining_s

    def wait(self) -> Any:
        """Block until there is a place, or the call's deadline."""
        self.wait_for(-1 if self._limit_s is None else min(self._limit_s, threading.TIMEOUT_MAX))
        self._place.entered(self.waiter)

    def __await__(self) -> Generator[Any, None, Any]:
        """Await the same; gRPC cancels it at the deadline."""
        try:
            yield from super().__await__()
        except asyncio.CancelledError:
            self._place.quit()
            if self.waiter.placed:
                self._place.held = True
                self._place.leave()
            raise
        self._place.entered(self.waiter)
