"""The keys that the files have: of most others it is known that they are new (DESIGN §6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from rifl._stores.sqlite.databases import Databases
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.key_filter import KeyFilter

# How many keys are read when a store opens, with each sweep, and under the lock.
AT_OPENING, _EACH_SWEEP, _AT_ONCE = 100_000, 50_000, 250
# Before every key of every client: no id is this low.
_FIRST = (-(1 << 63), b"")


class KnownKeys:
    """A filter of the files' keys and of those that run; read again once it is full.

    Invariants:

    1. Each key is added when it is claimed, before it can get a row. A filter that is being
       filled has those that run at its beginning, and all that are claimed from then on: so it
       lacks no row that comes after the reading was there.
    2. A filter is asked once all files were read to their end.

    ``lock`` is the store's: it is held where that is said.
    """

    def __init__(
        self,
        databases: Databases,
        lock: threading.Lock,
        running: Callable[[], Iterable[Attempt]],
    ) -> None:
        self._databases = databases
        self._lock = lock
        self._running = running
        self._filter: KeyFilter | None = None
        self._next: KeyFilter | None = None
        # Which files are left to be read for it, and after which key.
        self._left: list[str] = []
        self._after = _FIRST

    def add(self, client_id: int, key: bytes) -> bool:
        """Note that a key is claimed; whether a file may have it. Called with the lock held."""
        if self._next is not None:
            self._next.add(client_id, key)
        return self._filter is None or self._filter.add(client_id, key)

    def read(self, keys: int, limit: int = _EACH_SWEEP) -> None:
        """Read on in the files, which have so many ``keys``, if they are not all known.

        By one thread at a time. Raises ``StoreUnavailable``.
        """
        if self._next is None:
            if self._filter is not None and not self._filter.full:
                return
            self._begin(keys)
        while self._left and limit > 0:
            found = self._databases.keys_after(self._left[-1], self._after, _AT_ONCE)
            with self._lock:
                for client_id, key in found:
                    self._next.add(client_id, key)  # type: ignore[union-attr]  # begun above
            limit -= _AT_ONCE
            if found:
                self._after = max(found)
            else:
                self._left.pop()
                self._after = _FIRST
        if not self._left:
            with self._lock:
                self._filter, self._next = self._next, None

    def _begin(self, keys: int) -> None:
        started = KeyFilter(keys)
        self._left, self._after = list(self._databases.by_name), _FIRST
        with self._lock:
            for attempt in self._running():
                if attempt.call.key is not None:
                    started.add(attempt.call.client_id, attempt.call.key)
            self._next = started
