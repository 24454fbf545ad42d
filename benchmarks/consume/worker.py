"""The worker: consumes a message of 1 KiB, updates a row, and publishes a message of 1 KiB."""

from __future__ import annotations

import struct
import time
from typing import Protocol

__all__ = ["ACCOUNTS", "BATCH", "INPUT", "OUTPUT", "SUBSTREAMS", "Worker", "body_of", "read"]

INPUT, OUTPUT = "orders", "bills"
SUBSTREAMS = 8
ACCOUNTS = 100
# Messages of one transaction, at most.
BATCH = 100
_SIZE = 1024
# Number, when it was sent (the machine's monotonic clock).
_HEAD = struct.Struct(">QQ")
_PADDING = bytes(_SIZE - _HEAD.size)


class Worker(Protocol):
    """One process's consumption, by one system. One thread."""

    def fill(self, count: int) -> None:
        """Publish so many messages, durably, by whatever is fastest."""

    def take(self) -> list[bytes]:
        """Consume some of what is there, or wait a little; of what, effects and outputs stand."""

    def close(self) -> None:
        """Let go."""


def body_of(number: int) -> bytes:
    """Return a message, as of now."""
    return _HEAD.pack(number, time.monotonic_ns()) + _PADDING


def read(body: bytes) -> tuple[int, int]:
    """Return a message's account, and when it was sent."""
    number, sent = _HEAD.unpack_from(body)
    return number % ACCOUNTS, sent
