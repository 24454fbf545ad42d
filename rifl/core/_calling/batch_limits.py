"""How much one RPC of a batch may carry (DESIGN §4)."""

from __future__ import annotations


class BatchLimits:
    """How much one RPC may carry; shared by a client's batches, and only shrinks.

    Races are harmless: it is a guess at what the server takes.
    """

    def __init__(self, max_items: int = 1000, max_bytes: int = 3 << 20) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes

    def refused(self, items: int, size: int) -> None:
        """Take that a server refused so many items, of so many bytes, as too large.

        One item by itself tells nothing of the others.
        """
        if items > 1:
            self.max_items = min(self.max_items, max(1, items // 2))
            self.max_bytes = min(self.max_bytes, max(1, size // 2))
