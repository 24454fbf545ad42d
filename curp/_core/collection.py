"""What witnesses may let go of (CURP §3.5; DESIGN §7, invariant 12)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Collectable(NamedTuple):
    """A request that is in the log: its identity and its conflict keys."""

    client_id: int
    seq: int | None
    key: bytes | None
    keys: frozenset[int]


class Collection:
    """The requests that each witness is still to be told of.

    Invariant 12 (DESIGN §7): nothing is in it that is not in the log, and nothing
    enters it by a timer. A witness that is not told in time keeps its requests: it
    reports them as stuck, and they come in anew. So the queues are bounded, and drop
    the oldest. Not thread-safe.
    """

    def __init__(self, witnesses: Iterable[str], *, max_queued: int = 20_000) -> None:
        self._queues: dict[str, deque[Collectable]] = {
            address: deque(maxlen=max_queued) for address in witnesses
        }

    @property
    def witnesses(self) -> list[str]:
        """Whom there is to tell."""
        return list(self._queues)

    def synced(self, collectable: Collectable) -> None:
        """Take a request that is in the log."""
        for queue in self._queues.values():
            queue.append(collectable)

    def waiting(self, witness: str) -> int:
        """How many requests a witness is to be told of."""
        return len(self._queues.get(witness, ()))

    def take(self, witness: str, limit: int) -> list[Collectable]:
        """Take what a witness is told next."""
        queue = self._queues.get(witness)
        if queue is None:
            return []
        return [queue.popleft() for _ in range(min(limit, len(queue)))]

    def not_told(self, witness: str, taken: Sequence[Collectable]) -> None:
        """Put back what could not be told."""
        queue = self._queues.get(witness)
        if queue is not None:
            room = (queue.maxlen or 0) - len(queue)
            queue.extendleft(reversed(taken[max(0, len(taken) - room) :]))
