"""Pending records: what one stream to a witness sent, and which share a message (DESIGN §7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")

# The most records of one message: a witness answers all of them before it does anything else.
MOST_IN_MESSAGE = 128
# The share of a quick answer's duration by which a verdict must come, so that no call waits for it.
_SHARE = 0.8
_MOST_S = 0.02
_WEIGHT = 1 / 8
_FALLING, _RISING = 1 / 4, 65 / 64


class UnaskedAnswer(ValueError):
    """A witness answered what it was not asked: nothing it said on that stream counts."""


class SmoothedDuration:
    """A duration, seconds, that follows what is measured. Races of threads are harmless."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """Take a measurement."""
        before = self.seconds
        self.seconds = before + (seconds - before) * _WEIGHT if before else seconds


class QuickDuration(SmoothedDuration):
    """The same, of the shorter ones: few are shorter.

    However much longer the others are: a slow method's calls do not hide a quick one's.
    """

    __slots__ = ()

    def note(self, seconds: float) -> None:
        """Take a measurement."""
        before = self.seconds
        if seconds < before:
            self.seconds = before + (seconds - before) * _FALLING
        else:
            self.seconds = min(seconds, before * _RISING) if before else seconds


class PendingRecords(Generic[_T]):
    """What was sent on one stream and has no verdict yet, in order.

    Invariants:

    1. A record has one number, and a verdict counts for the record of its number only.
       Messages are answered in the order in which they were sent, each as a whole:
       anything else is ``UnaskedAnswer``, and the stream is at an end.
    2. What had no verdict when the stream ended has none: ``broken`` gives it back, once.
    3. A record that comes alone is sent at once. One that comes soon after the last message
       waits for others, as long as the leader takes longer to answer than the witness: their
       verdicts come in time all the same.

    ``sent`` is one thread's, and so are ``answered`` and ``broken``. No clock: ``now`` is seconds
    of the caller's.
    """

    def __init__(self, leader: QuickDuration) -> None:
        """``leader``: how long the leader's quick answers take, kept by the caller."""
        self._leader = leader
        self._witness = SmoothedDuration()
        self._next = 1
        self._sent_at = float("-inf")
        self._under_way: deque[tuple[int, Sequence[_T], float]] = deque()

    def __len__(self) -> int:
        """How many messages have no answer yet."""
        return len(self._under_way)

    def oldest_s(self, now: float) -> float:
        """How long the oldest message has been waiting for its answer; 0 for none."""
        under_way = self._under_way
        try:
            return now - under_way[0][2]
        except IndexError:
            return 0.0

    def wait_s(self, now: float) -> float:
        """How long the next message waits for more records."""
        gather_s = min(_SHARE * self._leader.seconds - self._witness.seconds, _MOST_S)
        return max(self._sent_at + gather_s - now, 0.0)

    def sent(self, records: Sequence[_T], now: float) -> int:
        """Number the records of the next message; return the first one's."""
        first = self._next
        self._next += len(records)
        self._sent_at = now
        self._under_way.append((first, records, now))
        return first

    def answered(self, first: int, verdicts: int, now: float) -> Sequence[_T]:
        """Return the records that so many verdicts, from that number on, are about."""
        if not self._under_way:
            raise UnaskedAnswer("nothing was asked")
        expected, records, sent_at = self._under_way[0]
        if first != expected or verdicts != len(records):
            raise UnaskedAnswer(f"{verdicts} verdicts from {first} on, where {expected} is next")
        self._under_way.popleft()
        self._witness.note(now - sent_at)
        return records

    def broken(self) -> list[_T]:
        """Return what will have no verdict any more."""
        lost: list[_T] = []
        while self._under_way:
            lost.extend(self._under_way.popleft()[1])
        return lost
