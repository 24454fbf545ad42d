"""One thread a replica: its beats, its view of the others, and what must be retried."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from lease_server.log import get_logger
from rifl.core.errors import RiflError
from rifl.stores.shared.backend import Backend, BackendError, Steps, WentBackwards
from rifl.stores.shared.replicas import Replicas
from rifl.stores.shared.requests import Beat

__all__ = ["Pulse"]

_log = get_logger("rifl.store")
# When a claim that was taken back is looked for again: it may arrive after that, by a
# connection that was slow. No time is late enough for sure, so there are several.
AGAIN_S = (1.0, 10.0, 60.0)
_AGAIN_AT_MOST = 10_000
# Beats must not wait for long.
_AGAIN_A_BEAT = 50


class Pulse:
    """Beats every ``beat_s`` and judges the other replicas by theirs.

    ``insist`` has a rule carried out in the background, again after every failed
    beat, until it succeeds: what has happened must not be forgotten. ``again`` has a
    request repeated later, a few times. ``after`` is called after every beat that
    succeeded. Thread-safe.
    """

    def __init__(
        self,
        owner: str,
        backend: Backend,
        beat_s: float,
        dead_after_s: float,
        after: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._owner = owner
        self._backend = backend
        self._beat_s = beat_s
        self._after = after
        self._lock = threading.Lock()
        self._replicas = Replicas(dead_after_s)
        self._due: deque[Generator[Any, Any, Any]] = deque()
        # In the order of their times, each a deque: those of one delay are.
        self._again: list[deque[tuple[float, Any]]] = [
            deque(maxlen=_AGAIN_AT_MOST) for _ in AGAIN_S
        ]
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rifl-pulse", daemon=True)

    def start(self) -> None:
        """Beat once, so that others know this replica before it claims; then go on.

        Raises ``BackendError``.
        """
        Steps(self._backend, self.beat()).wait()
        self._thread.start()

    def stop(self) -> None:
        """Stop; what is left to be retried is given one last try."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def leave(self) -> None:
        """After ``stop``: say that this replica is gone, so that nobody waits for it."""
        try:
            self._backend.ask(Beat(self._owner, leaving=True))
        except BackendError as error:
            _log.debug("left_unsaid", error=str(error))

    def insist(self, rule: Generator[Any, Any, Any]) -> None:
        """Have a rule carried out soon. It queues itself again if it fails."""
        self._due.append(rule)
        self._wake.set()

    def again(self, request: Any) -> None:
        """Have a request repeated after each of ``AGAIN_S``, as far as there is room."""
        now = self._clock()
        for delay_s, waiting in zip(AGAIN_S, self._again, strict=True):
            waiting.append((now + delay_s, request))

    def knows(self, owner: str) -> bool:
        """Whether the replica was there at the last look."""
        with self._lock:
            return self._replicas.knows(owner)

    def is_dead(self, owner: str) -> bool:
        """Whether the replica is taken for dead; a guess."""
        with self._lock:
            return self._replicas.is_dead(owner)

    def living(self) -> list[str]:
        """Return the replicas that are not taken for dead."""
        with self._lock:
            return self._replicas.living()

    def look(self) -> Generator[Any, Any, None]:
        """Rule: look at all replicas now, for one that may have come since."""
        beats = yield Beat(self._owner)
        with self._lock:
            self._replicas.observe(beats, self._clock())

    def beat(self) -> Generator[Any, Any, None]:
        """Rule: count a beat, take out the dead, and see who lives."""
        with self._lock:
            dead = self._replicas.dead()
        beats = yield Beat(self._owner, dead)
        with self._lock:
            self._replicas.observe(beats, self._clock())
        for incarnation, _ in dead:
            _log.warning("replica_dead", owner=incarnation)

    def _run(self) -> None:
        failing = False
        while not self._stopping:
            self._wake.wait(self._beat_s)
            self._wake.clear()
            try:
                Steps(self._backend, self.beat()).wait()
                if failing:
                    _log.info("store_recovered")
                failing = False
                self._after()
                self._repeat()
            except WentBackwards as error:
                _log.critical("store_stopped", error=str(error))
                return
            except BackendError as error:
                if not failing:
                    _log.error("store_unreachable", error=str(error))
                failing = True
                continue
            self._retry()
        self._retry()

    def take_due(self) -> list[Generator[Any, Any, Any]]:
        """Take the rules that are to be carried out again now."""
        return [self._due.popleft() for _ in range(len(self._due))]

    def _repeat(self) -> None:
        now = self._clock()
        for waiting in self._again:
            for _ in range(_AGAIN_A_BEAT):
                if not waiting or waiting[0][0] > now:
                    break
                self._backend.ask(waiting.popleft()[1])

    def _retry(self) -> None:
        for rule in self.take_due():
            try:
                Steps(self._backend, rule).wait()
            except (BackendError, RiflError) as error:
                _log.debug("still_pending", error=str(error))
