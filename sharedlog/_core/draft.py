"""The draft of a transaction: what it has published, and what of that travels already."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from typing import NamedTuple

from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.fences import Fence
from sharedlog._core.named import Turn, append_named, decide_named
from sharedlog._core.producers import Appended, ProducerId, append
from sharedlog._core.publishing import Placed, committing, pending
from sharedlog._core.spans import Pended, decide, pend
from sharedlog._core.steps import Rule
from sharedlog._core.streams import stream_of

# Conditions and puts of an append or a marker, beside those of its tags.
_OTHER_OPERATIONS = 16


class AppendBounds(NamedTuple):
    """What one append may have: entries, bytes, and tags with their streams' together."""

    entries: int
    append_bytes: int
    tags: int


def tags_for(operations: int, most: int) -> int:
    """Return how many tags a transaction may write, where a step takes so many operations."""
    return min(most, (operations - _OTHER_OPERATIONS) // 2)


def operations_for(tags: int) -> int:
    """Return how many operations a step has to take for so many tags: ``tags_for``, back."""
    return 2 * tags + _OTHER_OPERATIONS


def check_spread(tags: Collection[str], most: int) -> None:
    """Raise ``InvalidRequest`` unless one marker can decide what is pending under these tags."""
    if len(tags) + len({stream_of(each) for each in tags}) > most:
        raise InvalidRequest(
            f"a transaction over {len(tags)} substreams; substreams and streams are {most} at most"
        )


class PendingAppend(NamedTuple):
    """An append of pending messages as the seq of a producer, and what takes its answer."""

    rule: Callable[[ProducerId, int], Rule[Pended]]
    done: Callable[[ProducerId, Pended], None]


class Draft:
    """A transaction that is not committed yet: one append if it fits, else pending ones."""

    def __init__(self, bounds: AppendBounds) -> None:
        """An empty one."""
        self._bounds = bounds
        self._buffer: list[Placed] = []
        self._size = 0
        # Of every message, in the order in which they were published.
        self.tags: list[str] = []
        self._spread: set[str] = set()
        self._begins: dict[str, int] = {}
        # Whose pending messages these are.
        self.producer: ProducerId | None = None
        self._content = hashlib.blake2b(digest_size=16)

    @property
    def travels(self) -> bool:
        """Whether something of it is in the log, pending."""
        return bool(self._begins)

    @property
    def waits(self) -> bool:
        """Whether something of it is not in the log yet."""
        return bool(self._buffer)

    @property
    def content(self) -> bytes:
        """Tells what was published from anything else, whenever it is published."""
        return self._content.digest()

    def takes(self, message: Placed) -> bool:
        """Whether the next append still has room for it; raises ``InvalidRequest`` if none has."""
        _, tag, size, _ = message
        entries, append_bytes, tags = self._bounds
        if size > append_bytes:
            raise InvalidRequest(f"a message of {size} bytes; this log takes {append_bytes}")
        if tag not in self._spread:
            check_spread({tag, *self._spread}, tags)
        return len(self._buffer) < entries and self._size + size <= append_bytes

    def add(self, message: Placed) -> None:
        """Take a message for which there is room."""
        _, tag, size, content = message
        self._buffer.append(message)
        self._size += size
        self._spread.add(tag)
        self.tags.append(tag)
        if content:
            self._content.update(len(content).to_bytes(4, "big") + content)

    def pend(self, fence: Fence | None) -> PendingAppend:
        """Return how to append what waits now, decided later."""
        sent, opened = tuple(self._buffer), sorted(self._begins)

        def rule(producer: ProducerId, seq: int) -> Rule[Pended]:
            return pend(producer, seq, pending(sent), opened, fence=fence)

        def done(producer: ProducerId, found: Pended) -> None:
            self.producer = producer
            self._begins.update(found.begins)
            del self._buffer[: len(sent)]
            self._size = sum(each.size for each in self._buffer)

        return PendingAppend(rule, done)

    def undone(self) -> None:
        """Nothing of it is pending any more."""
        self._begins = {}

    def commit(self, producer: ProducerId, seq: int, fence: Fence | None) -> Rule[Appended]:
        """Commit all of it: by one append, or by the marker of what is pending."""
        if not self._begins:
            return append(producer, seq, committing(self._buffer), fence=fence)
        return decide(producer, seq, [self._decision(producer, seq - 1)], commits=True, fence=fence)

    def commit_named(
        self, turn: Turn, producer: ProducerId | None, through: int, fence: Fence | None
    ) -> Rule[Appended]:
        """Commit all of it as a name's next; ``through``: the producer's highest seq."""
        if producer is None or not self._begins:
            return append_named(turn, self.content, committing(self._buffer), fence=fence)
        return decide_named(turn, self.content, [self._decision(producer, through)], fence=fence)

    def roll_back(self, producer: ProducerId, seq: int) -> Rule[Appended]:
        """Roll back what is pending. Not under a fence: a successor may want it rolled back."""
        return decide(producer, seq, [self._decision(producer, seq - 1)], commits=False)

    def _decision(self, producer: ProducerId, through: int) -> ProducerDecision:
        return ProducerDecision(producer.id, through, dict(self._begins))
