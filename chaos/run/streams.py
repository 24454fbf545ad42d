"""Streams of the log of a scenario, as all of its processes know them."""

from __future__ import annotations

__all__ = ["STREAMS", "SUBSTREAMS"]

STREAMS = ("orders", "invoices")
# Of each.
SUBSTREAMS = 4
