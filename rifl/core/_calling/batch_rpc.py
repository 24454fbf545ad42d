"""The RPCs of a batch: what each carries, at most, and what its shell does next (DESIGN §4)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from _rifl_ground.refusals import Outcome
from rifl.core._calling.issued_call import IssuedCall


class BatchAction(enum.Enum):
    """What a shell does next for a batch."""

    # Send ``rpc``; then ``answered``, ``refused`` or ``unreadable``.
    SEND = "send"
    # Wait until ``wake_at``, for a usable lease, or for room in the window.
    PAUSE = "pause"
    LEASE = "lease"
    WINDOW = "window"
    DONE = "done"


class BatchRpc(NamedTuple):
    """One RPC: the positions of its items, their calls, and its attempt number.

    ``first_incomplete`` and ``completed`` acknowledge, where a call is sequenced.
    ``timeout_s`` bounds it, None for no bound.
    """

    items: list[int]
    calls: list[IssuedCall]
    attempt: int
    first_incomplete: int
    completed: Sequence[tuple[int, int]]
    timeout_s: float | None
    sent_at: float
    cut_at: float | None = None


class EndedItem(NamedTuple):
    """How an item ended: ``answer`` is the shell's, of the attempt that ended it.

    ``code`` is a gRPC status name where it was not an answer that ended it.
    """

    outcome: Outcome
    reason: str = ""
    code: str = ""
    answer: Any = None


class BatchLimits:
    """How much one RPC may carry; shared by a client's batches, and only shrinks.

    Races are harmless: it is a guess at what the server takes.
    """

    def __init__(self, max_items: int = 1000, max_bytes: int = 3 << 20) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes

    def refused(self, items: int, size: int) -> None:
        """Note that a server refused so many items, of so many bytes, as too large.

        One item by itself tells nothing of the others.
        """
        if items > 1:
            self.max_items = min(self.max_items, max(1, items // 2))
            self.max_bytes = min(self.max_bytes, max(1, size // 2))
