"""The lanes of a process: threads in which several shards take their turns at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sharedlog._consumer.lending import end_child
from sharedlog._consumer.owned import OwnedShard
from sharedlog._consumer.turning import Turning


class Lanes:
    """Each shard takes one turn at a time, in any lane.

    One that has done something takes the next turn by itself; one that has nothing to do rests
    until it is offered again. All methods are for the thread that shares the shards.
    """

    def __init__(self, turnings: Sequence[Turning], owned: Mapping[str, OwnedShard]) -> None:
        """``turnings``: of each lane. ``owned``: which shards there are, by tag.

        Their threads begin with the first offer.
        """
        self._turnings = turnings
        self._owned = owned
        # ``with`` takes the lock itself: a condition's ``with`` has lines that can be interrupted.
        self._lock = lock = threading.RLock()
        # A turn may begin; a shard rests.
        self._begins, self._rests = threading.Condition(lock), threading.Condition(lock)
        self._due: deque[OwnedShard] = deque()
        self._running = 0
        self._rested = self._still = self._closing = False
        # Through which LSN some shard has read.
        self._through = 0
        self._error: BaseException | None = None
        # Messages that are done.
        self.done = 0
        self._threads: list[threading.Thread] = []

    def check(self) -> None:
        """Raise what a turn has raised, which no further try mends: no other one begins."""
        if self._error is not None:
            raise self._error

    @contextmanager
    def still(self) -> Iterator[None]:
        """Have no turn begin meanwhile: shards that do not run are this thread's."""
        with self._lock:
            self._still = True
        try:
            yield
        finally:
            with self._lock:
                self._still = False
                self._begins.notify_all()

    def offer(self, owned: Iterable[OwnedShard], timeout_s: float) -> None:
        """Have shards that rest take a turn; wait until one rests again, or what else happens."""
        # An interrupt may come at any line: ``close`` knows of all that were begun.
        for turning in self._turnings[len(self._threads) :]:
            name = f"sharedlog-lane-{len(self._threads)}"
            thread = threading.Thread(target=self._work, args=(turning,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        with self._lock:
            self._rested = False
            for own in owned:
                if own.ready:
                    self._put(own)
            if self._due or self._running:
                self._rests.wait_for(lambda: self._rested or self._closing, timeout_s)

    def close(self) -> None:
        """Begin no other turn, and wait until those that run are over; idempotent."""
        with self._lock:
            self._closing = True
            self._begins.notify_all()
        for each in self._threads:
            if each.is_alive():
                each.join()

    def _put(self, own: OwnedShard) -> None:
        own.rests = False
        self._due.append(own)
        self._begins.notify()

    def _work(self, turning: Turning) -> None:
        while (own := self._next()) is not None:
            done, through, error = 0, own.shard.through, None
            try:
                done = turning.turn(own)
            except BaseException as raised:  # noqa: BLE001 - it is raised by ``check``
                if turning.inherited:
                    end_child(raised)
                error = raised
            self._over(own, done, through, error)

    def _next(self) -> OwnedShard | None:
        with self._lock:
            while True:
                self._begins.wait_for(lambda: self._closing or (self._due and not self._still))
                if self._closing:
                    return None
                own = self._due.popleft()
                if not own.leaves and self._owned.get(own.shard.tag) is own:
                    own.runs = True
                    self._running += 1
                    return own
                self._rest(own)

    def _over(self, own: OwnedShard, done: int, before: int, error: BaseException | None) -> None:
        """A turn is over; ``before``: through which LSN its shard had read."""
        with self._lock:
            own.runs = False
            self._running -= 1
            self.done += done
            if error is not None:
                self._error, self._closing = self._error or error, True
                self._begins.notify_all()
            through = own.shard.through
            # Another lane has read further in the log; the thread that waits for more knows that.
            behind = before < through < self._through
            self._through = max(self._through, through)
            settling = own.settling
            if settling is None:
                if (done or own.fired or own.busy or behind) and not own.failures:
                    self._put(own)
                else:
                    self._rest(own)
        if settling is not None:
            settling.add_done_callback(lambda _: self._settled(own))

    def _settled(self, own: OwnedShard) -> None:
        with self._lock:
            self._put(own)

    def _rest(self, own: OwnedShard) -> None:
        own.rests = self._rested = True
        self._rests.notify_all()
