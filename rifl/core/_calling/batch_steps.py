"""What the rules of a batch and their shell tell each other (DESIGN §4)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from rifl.core._calling.attempt import IssuedCall
from rifl.core._shared.outcome import Outcome


class BatchAction(enum.Enum):
    """What a shell does next for a batch."""

    # Send ``leg``; then ``answered``, ``refused`` or ``unreadable``.
    SEND = "send"
    # Wait until ``wake_at``, for a usable lease, or for room in the window.
    PAUSE = "pause"
    LEASE = "lease"
    WINDOW = "window"
    DONE = "done"


class Leg(NamedTuple):
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


class Ended(NamedTuple):
    """How an item ended: ``answer`` is the shell's, of the attempt that ended it.

    ``code`` is a gRPC status name where it was not an answer that ended it.
    """

    outcome: Outcome
    reason: str = ""
    code: str = ""
    answer: Any = None
