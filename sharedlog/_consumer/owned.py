"""An owned shard: one that this process has, and when it takes its next turn."""

from __future__ import annotations

import time
from concurrent.futures import Future

from sharedlog._core.consumer.holding import Done
from sharedlog._core.consumer.members import ShardLease
from sharedlog._core.consumer.operating import Told
from sharedlog._core.consumer.shard import Shard

# Between two attempts at what failed: doubled, up to that.
_SHORTEST_S, _LONGEST_S = 0.05, 10.0
_DOUBLINGS = 16
# What is tried again for longer is told.
_LONG_S = 60.0


class OwnedShard:
    """A shard that this process has."""

    def __init__(self, shard: Shard, lease: ShardLease) -> None:
        """``lease``: with which it is taken over, before anything else."""
        self.shard = shard
        # Taken, and not taken over yet.
        self.lease: ShardLease | None = lease
        self.failures = 0
        # When the first of these was, and the last, by the clock of this process; since 1970.
        self._since_s = self._last_s = 0.0
        self.since_us = 0
        # There is something to be done aside.
        self.busy = False
        # Before then it is left alone.
        self.not_before_s = 0.0
        # What the log tells of it; None: that was not read yet.
        self.told: Told | None = None
        # Through where it is done, and owes the log nothing; None: it is not known since a lease.
        self.done: Done | None = None
        self._passed_s = 0.0
        # Its last turn was a timer's.
        self.fired = False
        # When each timer was due last.
        self._fired_s: dict[int, float] = {}
        # What it owes the log is being appended.
        self.settling: Future[None] | None = None
        # With lanes: it takes a turn; it neither does nor is about to; it is left as soon as it
        # does not; the lane must move its hold.
        self.runs, self.rests, self.leaves, self.moves = False, True, False, False

    @property
    def ready(self) -> bool:
        """Whether it may take a turn: no lane has it, and it is not about to be left."""
        return self.rests and not self.leaves

    def settled(self) -> bool:
        """Wait for what is being appended, and raise what became of it; False: nothing was."""
        if self.settling is None:
            return False
        try:
            self.settling.result()
        finally:
            if self.settling.done():
                self.settling = None
        return True

    @property
    def settles(self) -> bool:
        """Whether something is being appended still."""
        settling = self.settling
        return settling is not None and not settling.done()

    def failed(self, now_s: float) -> None:
        """It is tried again, later and later; others go on."""
        if not self.failures:
            self._since_s, self.since_us = now_s, time.time_ns() // 1000
        self._last_s = now_s
        self.failures += 1
        self.busy = False
        pause_s = min(_SHORTEST_S * 2 ** min(self.failures - 1, _DOUBLINGS), _LONGEST_S)
        self.not_before_s = now_s + pause_s

    @property
    def retries_for_s(self) -> float:
        """For how long it has been tried again; 0.0 where that is no more than a minute."""
        seconds = self._last_s - self._since_s if self.failures else 0.0
        return seconds if seconds > _LONG_S else 0.0

    def passes(self, every_s: float, now_s: float) -> bool:
        """Whether an idle shard must move its checkpoint with the log now."""
        due = now_s - self._passed_s >= every_s
        if due:
            self._passed_s = now_s
        return due

    def due(self, timer: int, every_s: float, now_s: float) -> bool:
        """Whether a timer is due now: so long after the last time, or the take-over."""
        due = now_s - self._fired_s.setdefault(timer, now_s) >= every_s
        if due:
            self._fired_s[timer] = now_s
        return due
