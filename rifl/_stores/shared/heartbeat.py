"""A replica's heartbeat: its beats, its view of the others, and what it must retry."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from _rifl_ground.log import get_logger
from rifl._stores.shared.backend import Backend, BackendError, Undurable, WentBackwards
from rifl._stores.shared.replicas import Replicas
from rifl._stores.shared.requests import Beats, Claim, CountBeat, TakeBack
from rifl._stores.shared.steps import Steps
from rifl.core._shared.errors import RiflError

_log = get_logger("rifl.store")
# A claim that was taken back may arrive after that, by a connection that was slow: most
# that do come soon.
_FIRST_LOOK_S = 1.0
# How long a claim is good for, from when it is sent.
LATE_AFTER_S = 15.0
# So long after a claim is too late, by the store's clock, it is looked at again.
_PAST_S = 0.05
_TAKEN_BACK_AT_MOST = 10_000
# Beats must not wait for long.
_TAKEN_BACK_A_BEAT = 100


class _Lost(NamedTuple):
    """A claim whose reply was lost, in the order in which they are looked at."""

    look_at: float
    number: int
    request: TakeBack | Claim
    until_s: float
    # The store's clock was past ``until_s``: this is the last time.
    last: bool = False


class Heartbeat:
    """Beats every ``beat_s`` and judges the other replicas by theirs.

    ``insist`` has a rule carried out in the background, again after every failed
    beat, until it succeeds: what has happened must not be forgotten. ``take_back`` has
    a claim whose reply was lost undone, whenever it arrives. Both may wait for a
    transaction that a handler left open: not in the thread that beats. ``after`` is
    called after every beat that succeeded. ``told`` hears the error of the first beat that
    failed, None of the next one that did not, and ``WentBackwards``, which ends it.
    Thread-safe.

    ``late_after_s``: how long a claim that is sent now is good for. The store compares
    its own clock with what its own clock will be then, as far as the last beat tells:
    if that is wrong, claims are ``LATE`` too soon or too late, and no more.
    """

    def __init__(
        self,
        owner: str,
        backend: Backend,
        beat_s: float,
        dead_after_s: float,
        after: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        late_after_s: float = LATE_AFTER_S,
        told: Callable[[BackendError | None], None] = lambda _: None,
    ) -> None:
        self._told = told
        self._clock = clock
        self._owner = owner
        self._backend = backend
        self._beat_s = beat_s
        self._after = after
        self._lock = threading.Lock()
        self._replicas = Replicas(dead_after_s)
        self._dead_after_s = dead_after_s
        # When the last beat that was counted was sent.
        self._counted_at = self._clock()
        self._lapses = 0
        self._due: deque[Generator[Any, Any, Any]] = deque()
        self._late_after_s = late_after_s
        # The store's clock when this one's was nought.
        self._ahead_s = 0.0
        # A heap.
        self._lost: list[_Lost] = []
        self._numbers = 0
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rifl-pulse", daemon=True)
        self._beaten = threading.Event()
        self._retrying = threading.Thread(target=self._retry, name="rifl-retry", daemon=True)

    def start(self) -> None:
        """Beat once, so that others know this replica before it claims; then go on.

        Raises ``BackendError``.
        """
        Steps(self._backend, self.beat()).wait()
        self._thread.start()
        self._retrying.start()

    def stop(self) -> None:
        """Stop; what is left to be retried is given one last try, until one of it fails."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._beaten.set()
        if self._retrying.is_alive():
            self._retrying.join()

    def leave(self) -> None:
        """Say, after ``stop``, that this replica is gone, so that no caller waits for it."""
        try:
            self._backend.ask(CountBeat(self._owner, leaving=True))
        except BackendError as error:
            _log.debug("left_unsaid", error=str(error))

    def insist(self, rule: Generator[Any, Any, Any]) -> None:
        """Have a rule carried out soon. It queues itself again if it fails."""
        self._due.append(rule)
        self._wake.set()

    def until_s(self) -> float:
        """Until when a claim that is sent now is good, by the store's clock."""
        return self._clock() + self._ahead_s + self._late_after_s

    def take_back(self, request: TakeBack | Claim, until_s: float) -> None:
        """Have a claim undone that may yet arrive; ``crowded`` says whether there is room.

        ``request``: undoes it if it has arrived: makes the call new again, or takes it over.
        """
        with self._lock:
            self._numbers += 1
            look_at = self._clock() + _FIRST_LOOK_S
            heapq.heappush(self._lost, _Lost(look_at, self._numbers, request, until_s))

    def crowded(self) -> bool:
        """Whether so many claims are being taken back that no more should be sent."""
        return len(self._lost) >= _TAKEN_BACK_AT_MOST

    def overdue(self) -> bool:
        """Whether others may have taken this replica for dead by now: it was suspended, say."""
        return self._clock() - self._counted_at >= self._dead_after_s

    def lapses(self) -> int:
        """Return how often that was so until a beat was counted again."""
        return self._lapses

    def is_dead(self, owner: str) -> bool:
        """Whether the replica is taken for dead; a guess."""
        with self._lock:
            return self._replicas.is_dead(owner)

    def beats(self, owner: str) -> int:
        """Return how often a replica had beaten at the last look; 0: its presence has ended."""
        with self._lock:
            return self._replicas.beats(owner)

    def living(self) -> list[str]:
        """Return the replicas that are not taken for dead."""
        with self._lock:
            return self._replicas.living()

    def look(self) -> Generator[Any, Any, None]:
        """Rule: look at all replicas now, for one that may have come since."""
        self._observe((yield CountBeat(self._owner, reading_s=self._clock())))

    def beat(self) -> Generator[Any, Any, None]:
        """Rule: count a beat, take out the dead, and see who lives."""
        with self._lock:
            dead = self._replicas.dead()
        sent_at = self._clock()
        self._observe((yield CountBeat(self._owner, dead, reading_s=sent_at)))
        # In this order: other threads ask ``overdue`` first.
        self._lapses += self.overdue()
        self._counted_at = sent_at
        for incarnation, _ in dead:
            _log.warning("replica_dead", owner=incarnation)

    def _observe(self, seen: Beats) -> None:
        with self._lock:
            now = self._clock()
            self._ahead_s = seen.now_s - now
            self._replicas.observe(seen.beats, now)

    def repeat(self) -> Generator[Any, float, None]:
        """Rule: look for claims that were taken back and may have arrived since."""
        for _ in range(_TAKEN_BACK_A_BEAT):
            with self._lock:
                if not self._lost or self._lost[0].look_at > self._clock():
                    return
                lost = heapq.heappop(self._lost)
            kept: _Lost | None = lost
            try:
                reply = yield lost.request
                taken = isinstance(lost.request, TakeBack)
                now_s = reply if taken else self._clock() + self._ahead_s
                left_s = lost.until_s - now_s
                if lost.last:
                    kept = None
                else:
                    look_at = self._clock() + max(0.0, left_s + _PAST_S)
                    kept = lost._replace(look_at=look_at, last=left_s < 0)
            finally:
                if kept is not None:
                    with self._lock:
                        heapq.heappush(self._lost, kept)

    def _run(self) -> None:
        failing = ""
        while not self._stopping:
            self._wake.wait(self._beat_s)
            self._wake.clear()
            try:
                Steps(self._backend, self.beat()).wait()
                if failing:
                    _log.info("store_recovered")
                    self._told(None)
                failing = ""
                self._after()
            except WentBackwards as error:
                _log.critical("store_stopped", error=str(error))
                self._told(error)
                return
            except BackendError as error:
                weak = isinstance(error, Undurable)
                event = "store_became_weak" if weak else "store_unreachable"
                if event != failing:
                    _log.error(event, error=str(error))
                    self._told(error)
                failing = event
                continue
            self._beaten.set()

    def take_due(self) -> list[Generator[Any, Any, Any]]:
        """Take the rules that must be carried out again now."""
        return [self._due.popleft() for _ in range(len(self._due))]

    def _retry(self) -> None:
        last = False
        while not last:
            self._beaten.wait()
            self._beaten.clear()
            last = self._stopping
            for rule in (self.repeat(), *self.take_due()):
                try:
                    Steps(self._backend, rule).wait()
                except (BackendError, RiflError) as error:
                    _log.debug("still_pending", error=str(error))
                    if self._stopping:
                        # A silent store would let each wait for as long.
                        return
