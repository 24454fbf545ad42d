"""Routes of attempts, for channels with several targets (DESIGN §3)."""

from __future__ import annotations

import contextvars
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import grpc

from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OwnedLock
from rifl._client.answers import read_answer
from rifl._client.errors import reentrant
from rifl.core._calling.one_store import Trial
from rifl.core._calling.targets import MAX_FOLLOWED, Targets
from rifl.core._shared.codes import UNREACHED_HEARTBEAT_CODES

_log = get_logger("rifl.client")

LEASE_SERVICE = "/lease_server.v1.LeaseServer/"
# On the error of a first attempt without a route, or its call: the target that it was sent to.
ROUTED_TO = "rifl_routed_to"
_MOVES = 8
# The attempt that is being sent in this context, where its call keeps account.
_ATTEMPT: contextvars.ContextVar[RoutedAttempt | None] = contextvars.ContextVar(
    "rifl_attempt", default=None
)


class Awaited:
    """What waits for an answer of one target, the oldest first; and how many it answered."""

    __slots__ = ("answers", "calls")

    def __init__(self) -> None:
        # By a mark of each call. A signal between two lines may leave one too many: then the
        # connection is asked for a sign of life where no call waits.
        self.calls: dict[object, None] = {}
        self.answers = 0


class Router:
    """``Targets`` under a lock, told of what gRPC reports. Any thread; never blocks."""

    def __init__(self, targets: Targets, clock: Callable[[], float] = time.monotonic) -> None:
        self.targets = targets
        self._clock = clock
        self._lock = OwnedLock(reentrant)
        self._one_store = targets.one_store
        # By the target's index.
        self.awaited = [Awaited() for _ in range(len(targets.addresses) + MAX_FOLLOWED)]
        # When calls began to go elsewhere, and where they went until then; the latest last.
        self._moves: deque[tuple[float, int]] = deque(maxlen=_MOVES)
        # Called where an attempt was not answered in its time, or nothing can be had where
        # it was sent: for a path that can find out who leads. Must not block.
        self.lost: Callable[[], None] = lambda: None

    def choose(self) -> int:
        """Return the index of the target that the attempt in this context goes to."""
        attempt = _ATTEMPT.get()
        if attempt is None:
            turn = self._one_store.turn
            return self.targets.current if turn is None else next(turn)
        index = self.chosen(attempt.avoid, attempt.prefer)
        attempt.route.goes(attempt.number, index)
        return index

    def chosen(self, avoid: Collection[int], prefer: int | None = None) -> int:
        """Return the index of the target that an attempt would go to."""
        with self._lock:
            return self.targets.choose(avoid, prefer)

    # Targets over one store.

    def granted(self, store: int, place: float) -> None:
        """Take a lease that the current target granted; ``store`` 0: without turns."""
        with self._lock:
            self._one_store.granted(self.targets.current, store, place)

    def due(self, calls: int, *, silent: bool | None = None, most: int | None = None) -> list[int]:
        """Take the targets that must be tried now: see ``OneStore``."""
        with self._lock:
            return self._one_store.due(self._clock(), calls, silent=silent, most=most)

    def due_at(self) -> float | None:
        """Return when to look at ``due`` again."""
        with self._lock:
            return self._one_store.due_at(self._clock())

    def tried(self, index: int, trial: Trial, reason: str = "") -> None:
        """Take the end of a trial."""
        with self._lock:
            before = self._one_store.used
            self.targets.tried(index, trial, self._clock())
        self._tell_turns(before, reason)

    def refused(self, index: int, reason: str) -> bool:
        """Leave a target out that is over another store; False where that says of the lease."""
        with self._lock:
            before = self._one_store.used
            found = self.targets.refused(index, self._clock())
        self._tell_turns(before, reason)
        return found

    def _tell_turns(self, before: tuple[int, ...], reason: str) -> None:
        used, addresses = self._one_store.used, self.targets.addresses
        if used != before:
            targets = ",".join(addresses[index] for index in sorted(used))
            _log.info("targets_in_turn", targets=targets, reason=reason)

    def current_at(self, at: float) -> int:
        """Return where calls went at a time."""
        with self._lock:
            return next((index for moved, index in self._moves if moved > at), self.targets.current)

    def ended(self, index: int, status: Any, *, heartbeat: bool = False) -> None:
        """Note the end of an attempt at a target: a call, an error, or a rifl status."""
        if status.code().name not in UNREACHED_HEARTBEAT_CODES:
            return
        answer = read_answer(status)
        with self._lock:
            now, before = self._clock(), self.targets.current
            used = self._one_store.used
            moved = self.targets.answered(index, answer, now, heartbeat=heartbeat)
            if moved:
                self._moves.append((now, before))
            current = self.targets.addresses[self.targets.current]
        if moved:
            failed = self.targets.addresses[index]
            _log.info("target_changed", target=current, failed=failed, reason=answer.reason)
        self._tell_turns(used, answer.reason or answer.code)
        if not heartbeat and status.code() is not grpc.StatusCode.CANCELLED:
            self.lost()

    def leads(self, index: int) -> bool:
        """Take a target's own word that it leads; True if calls went elsewhere until now."""
        with self._lock:
            before = self.targets.current
            failed = self.targets.addresses[before]
            moved = self.targets.leads(index)
            if moved:
                self._moves.append((self._clock(), before))
        if moved:
            found = self.targets.addresses[index]
            _log.info("target_changed", target=found, failed=failed, reason="leads")
        return moved


class Route:
    """Where one call's attempts went: a hedge, and a retry after a timeout, go elsewhere.

    Until all others were tried: a leader that was silent for a while may be the only
    one that answers by then. Other retries go where the last attempt went, while there are
    turns: the call may run there yet, and a duplicate waits for it there without the store.
    """

    def __init__(self, router: Router, started_at: float) -> None:
        """``started_at``: of the call, whose first attempt may have been sent then."""
        self._router = router
        self._targets = router.targets
        self._start = router.current_at(started_at)
        # The target that each attempt was sent to, by the attempt's number.
        self.sent: dict[int, int] = {}
        self._left: int | None = None
        # Where the last attempt went, and where the next one is to go, what it avoids given.
        self._last: int | None = None
        self._planned: tuple[set[int], int] | None = None

    def attempt(self, number: int, under_way: Collection[int]) -> RoutedAttempt:
        """Begin to send an attempt, while the ones ``under_way`` are; a context manager."""
        avoid = self._avoided(number, under_way)
        planned = self._planned
        prefer = planned[1] if planned is not None and planned[0] == avoid else self._last
        return RoutedAttempt(self, number, avoid, prefer)

    def next(self, under_way: Collection[int]) -> int:
        """Return the target that another attempt would go to, while those ``under_way`` are."""
        avoid = self._avoided(None, under_way)
        planned = self._planned
        prefer = planned[1] if planned is not None and planned[0] == avoid else self._last
        index = self._router.chosen(avoid, prefer)
        self._planned = avoid, index
        return index

    def goes(self, number: int, index: int) -> None:
        """Note where an attempt is sent."""
        self.sent[number] = self._last = index
        self._planned = None

    def _avoided(self, number: int | None, under_way: Collection[int]) -> set[int]:
        avoid = {self.at(other) for other in under_way if other != number}
        if self._left is not None:
            left = self.at(self._left)
            since = {index for sent, index in self.sent.items() if sent > self._left}
            if len(since - {left}) < self._targets.choices - 1:
                avoid.add(left)
        return avoid

    def timed_out(self, number: int) -> None:
        """Note that an attempt was not answered in the time it had."""
        self._left = number

    def overloaded(self, number: int) -> None:
        """Note that a server had no room for an attempt."""
        if self._targets.one_store.used:
            self._left = number

    def at(self, number: int) -> int:
        """Return the target that an attempt was sent to."""
        # A first attempt may have been sent before there was a route, and its target left since.
        return self.sent.get(number, self._start)


class RoutedAttempt:
    """One attempt on its way: while it is entered, ``Router.choose`` goes by it."""

    def __init__(self, route: Route, number: int, avoid: set[int], prefer: int | None) -> None:
        self.route = route
        self.number = number
        self.avoid = avoid
        self.prefer = prefer
        self._token: contextvars.Token[RoutedAttempt | None] | None = None

    def __enter__(self) -> None:
        self._token = _ATTEMPT.set(self)

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            _ATTEMPT.reset(self._token)
