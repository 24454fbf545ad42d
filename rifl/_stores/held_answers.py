"""Bounds on the answers that are kept: of each client, of each caller, of all (DESIGN §9)."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from rifl.core._serving.answer import LARGE_BYTES
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.call import Call
from rifl.core._shared.errors import WindowExceeded

# So often is it looked, at most, which clients are idle.
_LOOK_S = 1.0
# A peer, or an address. Those of which neither is known have no share of their own.
_Caller = bytes | str


class _OfClient:
    __slots__ = ("bytes", "caller", "sizes", "touched")

    def __init__(self, caller: _Caller) -> None:
        # Who took the first of them: the client's later calls may come from elsewhere.
        self.caller = caller
        self.sizes: dict[int, int] = {}
        self.bytes = 0
        self.touched = 0.0


class _OfSource:
    __slots__ = ("bytes", "kept")

    def __init__(self) -> None:
        # When its retention has passed, and its bytes; in the order of completion.
        self.kept: deque[tuple[float, int]] = deque()
        self.bytes = 0


class HeldAnswers:
    """Counts, in this process and since it started, large answers that are kept.

    A caller has those of all its clients, of which each counts for the caller of its first. A
    client's go when its header acknowledges them, or when it is dropped; a store that does not
    tell who was dropped gives ``idle_s``, after which a client that made no call is not counted
    any more. A source's go with their retention. Thread-safe; nothing is counted, and no lock
    is taken, while all answers of sequenced calls are small.
    """

    def __init__(
        self,
        bounds: Bounds | None = None,
        key_bounds: KeyBounds | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = math.inf,
    ) -> None:
        self.active = False
        self._bounds = bounds or Bounds()
        self._key_bounds = key_bounds or KeyBounds()
        self._clock = clock
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._clients: dict[int, _OfClient] = {}
        self._sources: dict[str, _OfSource] = {}
        self._callers: dict[_Caller, int] = {}
        self._total = 0
        self._looked_at = -math.inf
        # Who made a call; the engine knows.
        self.caller_of: Callable[[Call], _Caller] = lambda call: call.peer or call.source

    @property
    def total(self) -> int:
        """Bytes of the answers of sequenced calls that are counted."""
        return self._total

    def bound(self, bounds: Bounds, key_bounds: KeyBounds) -> None:
        """Judge by these from now on; before calls are served."""
        self._bounds, self._key_bounds = bounds, key_bounds

    def admit(self, attempt: Attempt) -> None:
        """Raise ``WindowExceeded`` for a new call whose answer would have no room."""
        call, now = attempt.call, self._clock()
        caller = self.caller_of(call)
        with self._lock:
            if call.key is not None:
                if call.source:
                    self._admit_source(call.source, now)
                return
            held = self._clients.get(call.client_id)
            if held is not None:
                held.touched, caller = now, held.caller
                self._acknowledge(held, call)
                if held.bytes >= self._bounds.max_answer_bytes:
                    raise WindowExceeded(
                        f"{held.bytes} bytes of answers to the client are unacknowledged"
                    )
            if self._is_over(caller):
                self._forget_idle(now)
            if self._takes_its_share(caller):
                raise WindowExceeded(
                    f"{self._callers[caller]} bytes of answers to clients of {_named(caller)} are "
                    "unacknowledged, and one caller may take "
                    f"{self._bounds.caller_answer_bytes} (max_answer_bytes_per_caller)"
                )
            if self._total >= self._bounds.max_total_answer_bytes:
                raise WindowExceeded(
                    f"{self._total} bytes of answers to all clients are unacknowledged"
                )

    def note(self, attempt: Attempt, size: int) -> None:
        """Note that an answer of so many bytes is kept."""
        call = attempt.call
        if size < LARGE_BYTES if call.key is None else not call.source:
            return
        now = self._clock()
        caller = self.caller_of(call)
        with self._lock:
            if call.key is not None:
                self._note_source(attempt, size + len(call.key), now)
                return
            self.active = True
            held = self._clients.get(call.client_id)
            if held is None:
                held = self._clients[call.client_id] = _OfClient(caller)
            held.touched = now
            added = size - held.sizes.get(call.seq, 0)  # type: ignore[arg-type]  # it has no key
            held.sizes[call.seq] = size  # type: ignore[index]
            self._add(held, added)

    def acknowledged(self, call: Call) -> tuple[int, Sequence[tuple[int, int]]]:
        """Return what the call's header acknowledges: below a seq, and ranges above it."""
        return call.first_incomplete, call.completed

    def forget(self) -> None:
        """Begin anew: others have answered since."""
        with self._lock:
            self._clients.clear()
            self._sources.clear()
            self._callers.clear()
            self._total, self.active = 0, False

    def drop(self, client_ids: Iterable[int]) -> None:
        """Forget clients whose records are gone."""
        if not self.active:
            return
        with self._lock:
            for client_id in client_ids:
                self._drop(client_id)

    def _acknowledge(self, held: _OfClient, call: Call) -> None:
        first, ranges = self.acknowledged(call)
        for seq in [
            seq
            for seq in held.sizes
            if seq < first or any(low <= seq <= high for low, high in ranges)
        ]:
            self._add(held, -held.sizes.pop(seq))
        if not held.sizes:
            self._drop(call.client_id)

    def _drop(self, client_id: int) -> None:
        held = self._clients.pop(client_id, None)
        if held is not None:
            self._add(held, -held.bytes)
        self.active = bool(self._clients or self._sources)

    def _add(self, held: _OfClient, size: int) -> None:
        held.bytes += size
        self._total += size
        left = self._callers.get(held.caller, 0) + size
        if left:
            self._callers[held.caller] = left
        else:
            self._callers.pop(held.caller, None)

    def _takes_its_share(self, caller: _Caller) -> bool:
        share = self._bounds.caller_answer_bytes
        return bool(caller) and 0 < share <= self._callers.get(caller, 0)

    def _is_over(self, caller: _Caller) -> bool:
        full = self._total >= self._bounds.max_total_answer_bytes
        return full or self._takes_its_share(caller)

    def _forget_idle(self, now: float) -> None:
        if self._idle_s == math.inf or now < self._looked_at + _LOOK_S:
            return
        self._looked_at = now
        for client_id, held in list(self._clients.items()):
            if now - held.touched >= self._idle_s:
                self._drop(client_id)

    def _note_source(self, attempt: Attempt, size: int, now: float) -> None:
        retention_s = self._key_bounds.retained_s(attempt.policy.retention_s)
        until = math.inf if retention_s is None else now + retention_s
        self.active = True
        kept = self._sources.setdefault(attempt.call.source, _OfSource())
        kept.kept.append((until, size))
        kept.bytes += size

    def _admit_source(self, source: str, now: float) -> None:
        kept = self._sources.get(source)
        if kept is None:
            return
        while kept.kept and kept.kept[0][0] <= now:
            kept.bytes -= kept.kept.popleft()[1]
        if not kept.kept:
            del self._sources[source]
            self.active = bool(self._clients or self._sources)
        elif len(kept.kept) >= self._bounds.source_keys or kept.bytes >= self._bounds.source_bytes:
            raise WindowExceeded(
                f"{len(kept.kept)} keys with {kept.bytes} bytes are recorded for this address"
            )


def _named(caller: _Caller) -> str:
    return "this certificate" if isinstance(caller, bytes) else caller or "an unknown address"
