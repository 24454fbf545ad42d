"""Model of the world: the names of what a consumer follows, and publishes to."""

from __future__ import annotations

__all__ = ["CONSUMER", "LETTERS", "OUTPUTS", "STREAMS", "TAGS"]

CONSUMER = "billing"
# By their substreams.
STREAMS = {"orders": 3, "audit": 2}
OUTPUTS = "invoices"
LETTERS = "deadletters"
TAGS = tuple(f"{name}/{number}" for name, count in STREAMS.items() for number in range(count))
