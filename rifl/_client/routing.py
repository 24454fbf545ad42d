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
from rifl.core._calling.targets import Targets
from rifl.core._shared.codes import UNREACHED_HEARTBEAT_CODES

_log = get_logger("rifl.client")

LEASE_SERVICE = "/lease_server.v1.LeaseServer/"
_MOVES = 8
# The attempt that is being sent in this context, where its call keeps account.
_ATTEMPT: contextvars.ContextVar[RoutedAttempt | None] = contextvars.ContextVar(
    "rifl_attempt", default=None
)


class Router:
    """``Targets`` under a lock, told of what gRPC reports. Any thread; never blocks."""

    def __init__(self, targets: Targets, clock: Callable[[], float] = time.monotonic) -> None:
        self.targets = targets
        self._clock = clock
        self._lock = OwnedLock(reentrant)
        # When calls began to go elsewhere, and where they went until then; the latest last.
        self._moves: deque[tuple[float, int]] = deque(maxlen=_MOVES)
        # Called where an attempt was not answered in its time, or nothing can be had where
        # it was sent: for a path that can find out who leads. Must not block.
        self.lost: Callable[[], None] = lambda: None

    def choose(self) -> int:
        """Return the index of the target that the attempt in this context goes to."""
        attempt = _ATTEMPT.get()
        if attempt is None:
            return self.targets.current
        index = attempt.route.sent[attempt.number] = self.chosen(attempt.avoid)
        return index

    def chosen(self, avoid: Collection[int]) -> int:
        """Return the index of the target that an attempt would go to."""
        with self._lock:
            return self.targets.choose(avoid)

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
            moved = self.targets.answered(index, answer, now, heartbeat=heartbeat)
            if moved:
                self._moves.append((now, before))
            current = self.targets.addresses[self.targets.current]
        if moved:
            failed = self.targets.addresses[index]
            _log.info("target_changed", target=current, failed=failed, reason=answer.reason)
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
    one that answers by then.
    """

    def __init__(self, router: Router, started_at: float) -> None:
        """``started_at``: of the call, whose first attempt may have been sent then."""
        self._router = router
        self._targets = router.targets
        self._start = router.current_at(started_at)
        # The target that each attempt was sent to, by the attempt's number.
        self.sent: dict[int, int] = {}
        self._timed_out: int | None = None

    def attempt(self, number: int, under_way: Collection[int]) -> RoutedAttempt:
        """Begin to send an attempt, while the ones ``under_way`` are; a context manager."""
        return RoutedAttempt(self, number, self._avoided(number, under_way))

    def next(self, under_way: Collection[int]) -> int:
        """Return the target that another attempt would go to, while those ``under_way`` are."""
        return self._router.chosen(self._avoided(None, under_way))

    def _avoided(self, number: int | None, under_way: Collection[int]) -> set[int]:
        avoid = {self.at(other) for other in under_way if other != number}
        if self._timed_out is not None:
            silent = self.at(self._timed_out)
            since = {index for sent, index in self.sent.items() if sent > self._timed_out}
            if len(since - {silent}) < len(self._targets.addresses) - 1:
                avoid.add(silent)
        return avoid

    def timed_out(self, number: int) -> None:
        """Note that an attempt was not answered in the time it had."""
        self._timed_out = number

    def at(self, number: int) -> int:
        """Return the target that an attempt was sent to."""
        # A first attempt may have been sent before there was a route, and its target left since.
        return self.sent.get(number, self._start)


class RoutedAttempt:
    """One attempt on its way: while it is entered, ``Router.choose`` goes by it."""

    def __init__(self, route: Route, number: int, avoid: set[int]) -> None:
        self.route = route
        self.number = number
        self.avoid = avoid
        self._token: contextvars.Token[RoutedAttempt | None] | None = None

    def __enter__(self) -> None:
        self._token = _ATTEMPT.set(self)

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            _ATTEMPT.reset(self._token)
