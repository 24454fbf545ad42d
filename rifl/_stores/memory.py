"""The store ``memory:``: once while the process lives (DESIGN §1)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence

from _rifl_ground.refusals import Outcome
from lease_server._storage import Acknowledgements, MemoryLeaseStorage, SoleLeaseStorage
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.pending import Pending
from rifl._stores.rows import Move, RowCall, SoleProcess
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.record import CompletionRecord


class MemoryStore(EmbeddedStore):
    """Keeps nothing: a restart expires every client id.

    Ids carry the incarnation, so that a retry of a call from before the restart
    is refused, never run again silently.
    """

    def __init__(self, token_bytes: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """``token_bytes``: random ones."""
        super().__init__()
        self.leases: SoleLeaseStorage = MemoryLeases(self, token_bytes)
        self.rows = MemoryRows(self)

    def start_all(self, attempts: Sequence[Attempt]) -> list[None]:
        """Nothing to make durable."""
        return [None] * len(attempts)

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> list[None]:
        """Keep the records."""
        self._settle_all(attempts, records)
        for attempt, record in zip(attempts, records, strict=True):
            if record.outcome is Outcome.UNKNOWN:
                self._note_unknown(attempt)
        return [None] * len(attempts)


class MemoryLeases(MemoryLeaseStorage):
    """The storage of leases of a store in memory."""

    def __init__(self, store: EmbeddedStore, token_bytes: Callable[[int], bytes]) -> None:
        super().__init__(token_bytes)
        self._store = store

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Have the store forget answers."""
        self._store.acknowledge(client_id, acknowledged)


class MemoryRows(SoleProcess):
    """``ConditionalRows`` as long as the process lives."""

    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__()
        self.store_id = secrets.token_hex(16)
        self._store = store
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def get(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return what is there."""
        with self._lock:
            return {key: self._values.get(key) for key in keys}

    def judge(self, error: BaseException) -> bool:
        """No handler is atomic here."""
        return True

    def move(self, moves: Sequence[Move]) -> Pending:
        """Move rows, all or none."""
        found = Pending()
        with self._lock:
            found.result = all(self._values.get(each.key) == each.expected for each in moves)
            if found.result:
                self._values.update((each.key, each.value) for each in moves)
        found.succeed()
        return found

    def begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        """Begin a run."""
        return self._store.begin_beside(call, policy)

    def end(self, attempt: Attempt) -> None:
        """End a run."""
        self._store.end_beside(attempt)
