"""The store ``memory:``: once while the process lives (DESIGN §1)."""

from __future__ import annotations

from collections.abc import Sequence

from lease_server._storage import MemoryLeaseStorage, SoleLeaseStorage
from rifl._stores.embedded import EmbeddedStore
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.record import CompletionRecord


class MemoryStore(EmbeddedStore):
    """Keeps nothing: after a restart every client id of before is expired.

    Ids carry the incarnation, so that a retry of a call from before the restart
    is refused, never run again silently.
    """

    def __init__(self, leases: SoleLeaseStorage | None = None) -> None:
        super().__init__()
        self.leases: SoleLeaseStorage = leases or MemoryLeaseStorage()

    def start_all(self, attempts: Sequence[Attempt]) -> list[None]:
        """Nothing to make durable."""
        return [None] * len(attempts)

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> list[None]:
        """Keep the records."""
        self._settle_all(attempts, records)
        return [None] * len(attempts)
