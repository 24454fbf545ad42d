"""The room that a log takes of its cluster's quota: half, so that there is room to make room.

At its quota etcd refuses every write, those that raise a fence or declare a trim among them.
"""

from __future__ import annotations

import time

from sharedlog._core.errors import LogError, LogFull
from sharedlog._engines.etcd.calls import STATUS
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb

_LOOK_S = 5.0
_SHARE = 2
# Of the quota: what may be written between two looks.
_STRIDE = 64


class Budget:
    """Says whether entries may be written. For one thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._quota = client.address.quota_bytes
        self._used = 0
        self._written = 0
        self._look_at = 0.0

    def refusal(self, size: int) -> LogFull | None:
        """Return what refuses so many bytes of entries, None if there is room."""
        full = self._used + self._written + size > self._quota // _SHARE
        stride = self._written + size > self._quota // _STRIDE
        if full or stride or time.monotonic() >= self._look_at:
            self._look()
            full = self._used + size > self._quota // _SHARE
        if not full:
            self._written += size
            return None
        return LogFull(
            f"{self._client.address} has {self._used} bytes in use, and entries get up to half "
            f"of its quota of {self._quota} (quota_bytes= of the log's URL): trim, and compact"
        )

    def _look(self) -> None:
        try:
            found = self._client.call(STATUS, pb.StatusRequest(), again=True)
        except LogError:
            # Such as: not allowed. What is written will tell.
            return
        self._used, self._written = found.db_size_in_use, 0
        self._look_at = time.monotonic() + _LOOK_S
