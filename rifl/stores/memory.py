"""``memory:``, once while the process lives (DESIGN §1)."""

from __future__ import annotations

from lease_server.storage import LeaseStorage, MemoryLeaseStorage
from rifl.stores.embedded import EmbeddedStore

__all__ = ["MemoryStore"]


class MemoryStore(EmbeddedStore):
    """Keeps nothing: after a restart every client id of before is expired.

    Ids carry the incarnation, so that a retry of a call from before the restart
    is refused, never run again silently.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leases: LeaseStorage = MemoryLeaseStorage()
