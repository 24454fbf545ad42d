"""What answers take that nobody acknowledged yet, as the rules ask for it (DESIGN §9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rifl.core._serving.client_entry import Attempt

# Smaller answers are bounded by the window well enough: 8 MiB of 512 calls.
LARGE_BYTES = 16 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerBounds:
    """Bounds on the answers that are kept; a new call beyond them is WINDOW_EXCEEDED.

    Of sequenced calls that are not acknowledged: ``client_bytes`` of one client and
    ``total_bytes`` of all. Of keys by callers without a name, who share a namespace:
    ``source_keys`` with ``source_bytes`` of one address.
    """

    client_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    source_keys: int = 25_000
    source_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if min(self.client_bytes, self.total_bytes, self.source_keys, self.source_bytes) < 1:
            raise ValueError("bounds on answers are at least 1")


class Held(Protocol):
    """Counts what is kept. Any thread."""

    # Whether anything is counted at all: of most servers nothing ever is.
    active: bool

    def admit(self, attempt: Attempt) -> None:
        """Raise ``WindowExceeded`` for a new call whose answer would have no room."""

    def note(self, attempt: Attempt, size: int) -> None:
        """Note that an answer of so many bytes is kept."""
