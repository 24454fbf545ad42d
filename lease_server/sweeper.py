"""Expiry for a lease server that stands alone: nobody else drops what ended."""

from __future__ import annotations

from collections.abc import Callable

from lease_server.errors import StorageUnavailable
from lease_server.log import get_logger
from lease_server.shared import Authority
from lease_server.storage import LeaseStorage

__all__ = ["Sweeper"]

_log = get_logger("lease_server")


class Sweeper:
    """Drops from the storage what the authority expired, until it succeeds.

    One thread at a time. A crash leaves what was not dropped known, so it gets a
    full term at the next start and is dropped after it.
    """

    def __init__(
        self,
        authority: Authority,
        storage: LeaseStorage,
        dropped: Callable[[int], None] | None = None,
    ) -> None:
        """Sweep ``storage``, the one ``authority`` uses; ``dropped`` is told of each id."""
        self._dropped = dropped
        self._authority = authority
        self._storage = storage
        self._waiting: list[int] = []

    def sweep(self) -> int:
        """One round (blocking); how many ids were dropped. Never StorageUnavailable."""
        self._waiting += self._authority.expire()
        dropped = 0
        try:
            while self._waiting:
                self._storage.drop_client(self._waiting[-1])
                client_id = self._waiting.pop()
                if self._dropped is not None:
                    self._dropped(client_id)
                dropped += 1
        except StorageUnavailable as error:
            _log.warning("drop_postponed", waiting=len(self._waiting), error=str(error))
        if dropped:
            _log.info("dropped", clients=dropped)
        return dropped
