"""The bookkeeping for calls identified by a key (DESIGN §3, §4)."""

from __future__ import annotations

from typing import Any

from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import WindowExceeded
from rifl.core._shared.identity import check_key

_IN_PROGRESS = object()
# For one client, session or peer: some millions of keys, bounded by their bytes.
DEFAULT_MAX_KEYS = 10_000_000
DEFAULT_MAX_KEY_BYTES = 512 << 20


class KeyedTracker:
    """Knows which keys of one client or session run or are recorded.

    Keys come in no order and are never acknowledged: they go with their session
    or by retention (``forget``). Both bounds count what is known: ``max_keys``
    identities and ``max_bytes`` of keys and records, as the caller sizes them.
    A call already begun may finish beyond ``max_bytes``; the next new one is
    refused. Not thread-safe.
    """

    __slots__ = ("_bytes", "_calls", "_max_bytes", "_max_keys")

    def __init__(
        self, max_keys: int = DEFAULT_MAX_KEYS, max_bytes: int = DEFAULT_MAX_KEY_BYTES
    ) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._calls: dict[bytes, tuple[Any, int]] = {}
        self._bytes = 0

    def begin(self, key: bytes, others: tuple[int, int] = (0, 0)) -> Verdict:
        """Decide about an arriving call; ``NEW`` means it is in progress from now on.

        ``others``: keys, and their bytes, that count although only their store knows them.
        Raises ``BadHeader`` for a key out of bounds and ``WindowExceeded`` for a new one without
        room; neither leaves a trace.
        """
        check_key(key)
        calls = self._calls
        if key in calls:
            return self.peek(key)
        keys, size = len(calls) + others[0], self._bytes + others[1]
        if keys >= self._max_keys or size + len(key) > self._max_bytes:
            raise WindowExceeded(f"{keys} keys with {size} bytes are recorded")
        calls[key] = (_IN_PROGRESS, 0)
        self._bytes += len(key)
        return Verdict.NEW

    def has_room(self, others: tuple[int, int]) -> bool:
        """Whether less than half of both bounds is used: then ``others`` may be estimated."""
        keys, size = len(self._calls) + others[0], self._bytes + others[1]
        return 2 * keys < self._max_keys and 2 * size < self._max_bytes

    def peek(self, key: bytes) -> Verdict:
        """Tell what ``begin`` would decide, changing nothing."""
        state = self._calls.get(key)
        if state is None:
            return Verdict.NEW
        return Verdict.IN_PROGRESS if state[0] is _IN_PROGRESS else Verdict.COMPLETED

    def finish(self, key: bytes, record: object, size: int = 0) -> None:
        """Keep the record, of ``size`` bytes, of a call in progress; else ignored."""
        if self.peek(key) is Verdict.IN_PROGRESS:
            self._put(key, record, size)

    def abandon(self, key: bytes) -> None:
        """Make an unfinished call new again; ignored for any other."""
        state = self._calls.get(key)
        if state is not None and state[0] is _IN_PROGRESS:
            self.forget(key)

    def restore(self, key: bytes, record: object, size: int = 0) -> None:
        """Put back a record read from a log or a store."""
        self._put(key, record, size)

    def record(self, key: bytes) -> Any | None:
        """Return the record of ``key``, None if there is none."""
        state = self._calls.get(key)
        return None if state is None or state[0] is _IN_PROGRESS else state[0]

    def forget(self, key: bytes) -> None:
        """Forget a key whose retention has passed, or that was released by hand."""
        state = self._calls.pop(key, None)
        if state is not None:
            self._bytes -= len(key) + state[1]

    def keys(self) -> list[bytes]:
        """Return the keys in progress or recorded."""
        return list(self._calls)

    def __len__(self) -> int:
        """How many keys are in progress or recorded."""
        return len(self._calls)

    def _put(self, key: bytes, state: object, size: int) -> None:
        self.forget(key)
        self._calls[key] = (state, size)
        self._bytes += len(key) + size
