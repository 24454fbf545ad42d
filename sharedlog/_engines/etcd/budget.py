"""The room that a log takes of its cluster's quota: half, so that there is room to make room.

At its quota etcd refuses every write, those that raise a fence or declare a trim among them.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque

from sharedlog._core.errors import LogError, LogFull
from sharedlog._engines.etcd.calls import STATUS
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

_LOOK_S = 5.0
# What was written is in a file, and so counted, a moment later.
_COUNTED_S = 1.0
SHARE = 2
# Of the quota: what may be written between two looks.
_STRIDE = 64


class Budget:
    """Says whether entries may be written. For one thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._quota = client.address.quota_bytes
        self._used = 0
        # Bytes that may not be in that, and when they were written.
        self._written: deque[tuple[float, int]] = deque()
        self._looked = 0.0

    def refusal(self, size: int) -> LogFull | None:
        """Return what refuses so many bytes of entries, None if there is room."""
        now = time.monotonic()
        written = size + sum(each for _, each in self._written)
        full = self._used + written > self._quota // SHARE
        if full or written > self._quota // _STRIDE or now >= self._looked + _LOOK_S:
            written = size + self._look(now)
            full = self._used + written > self._quota // SHARE
        if not full:
            self._written.append((now, size))
            return None
        return LogFull(
            f"{self._client.address} has {self._used} bytes in use, and entries get up to half "
            f"of its quota of {self._quota} (quota_bytes= of the log's URL): trim, and compact"
        )

    def _look(self, now: float) -> int:
        """Ask how much is in use; return what may not be in that."""
        self._looked = now
        # If it is not allowed, etcd itself will tell where its quota ends.
        with contextlib.suppress(LogError):
            self._used = self._client.call(STATUS, pb.StatusRequest(), again=True).db_size_in_use
        while self._written and self._written[0][0] < now - _COUNTED_S:
            self._written.popleft()
        return sum(size for _, size in self._written)
