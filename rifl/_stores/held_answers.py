"""Bounds on the answers that are kept: of each client, of each caller, of all (DESIGN §9)."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lease_server._holders import name_of
from rifl.core._serving.answer import LARGE_BYTES
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.call import Call
from rifl.core._shared.errors import WindowExceeded

# From this part of all on a caller adds within its share only, and from the next one on only who
# has none: the rest is for newcomers.
_CROWDED, _RESERVED = 3 / 4, 7 / 8
# A source's keys count for so much of their retention longer, and together.
_PARTS = 64


class _Answer(NamedTuple):
    bytes: int
    method: str


class _OfClient:
    __slots__ = ("answers", "bytes", "heard_at", "holder")

    def __init__(self, holder: bytes) -> None:
        # Whom its lease counts for, wherever its calls come from.
        self.holder = holder
        self.answers: dict[int, _Answer] = {}
        self.bytes = 0
        # When it made a call, or was asked about.
        self.heard_at = -math.inf


class _Kept:
    """Keys that were completed within a part of their retention, which are counted together."""

    __slots__ = ("bytes", "first_until", "keys", "until")

    def __init__(self, until: float) -> None:
        self.first_until = self.until = until
        self.keys = self.bytes = 0


class _OfSource:
    __slots__ = ("bytes", "kept", "keys")

    def __init__(self) -> None:
        self.kept: deque[_Kept] = deque()
        self.keys = self.bytes = 0


class HeldAnswers:
    """Counts, in this process and since it started, large answers that are kept.

    A client's count for the holder of its lease, and go when its header, or a renewal, acknowledges
    them, or when it is dropped. A source's go with their retention. Thread-safe; nothing is
    counted, and no lock is taken, while all answers of sequenced calls are small.

    A call whose method has no large answer that is counted adds none, as far as is known: it is
    bounded by what its own client and caller have, and not by what others have.
    """

    def __init__(
        self,
        bounds: Bounds | None = None,
        key_bounds: KeyBounds | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        holder: Callable[[int], bytes] = lambda client_id: b"",
    ) -> None:
        """``holder``: whom a lease counts for; empty if for no caller."""
        self.active = False
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[int, _OfClient] = {}
        self._sources: dict[str, _OfSource] = {}
        # Of holders, those that are not known as one of them; and how many of each method.
        self._held_by: dict[bytes, int] = {}
        self._of_method: Counter[str] = Counter()
        self._total = 0
        self.bound(bounds or Bounds(), key_bounds or KeyBounds(), holder)

    @property
    def total(self) -> int:
        """Bytes of the answers of sequenced calls that are counted."""
        return self._total

    def bound(
        self, bounds: Bounds, key_bounds: KeyBounds, holder: Callable[[int], bytes] | None = None
    ) -> None:
        """Judge by these from now on; before calls are served."""
        self._bounds, self._key_bounds = bounds, key_bounds
        if holder is not None:
            self._holder = holder

    def ask(self, attempt: Attempt) -> Later | None:
        """Find out whom the client's lease counts for, where that takes a wait."""
        return None

    def admit(self, attempt: Attempt) -> None:
        """Raise ``WindowExceeded`` for a new call whose answer would have no room."""
        call = attempt.call
        if call.key is not None:
            if call.source:
                with self._lock:
                    self._admit_source(call.source, self._clock())
            return
        holder = self._holder(call.client_id)
        bounds = self._bounds
        with self._lock:
            held = self._clients.get(call.client_id)
            if held is not None:
                holder = held.holder
                self._acknowledge(call.client_id, held, *self.acknowledged(call))
                if held.bytes >= bounds.max_answer_bytes:
                    raise WindowExceeded(
                        f"yours: the client has {held.bytes} bytes of answers that it has not "
                        f"acknowledged, and may have {bounds.max_answer_bytes} (max_answer_bytes)"
                    )
            self._admit_caller(holder, small=not self._of_method[call.method])

    def _admit_caller(self, holder: bytes, *, small: bool) -> None:
        bounds, of_one = self._bounds, self._held_by.get(holder, 0)
        most, share = bounds.max_total_answer_bytes, bounds.caller_answer_bytes
        if holder and 0 < share <= of_one:
            raise WindowExceeded(
                f"yours: clients of {name_of(holder)} have {of_one} bytes of answers that they "
                f"have not acknowledged, and one caller may have {share} "
                "(max_answer_bytes_per_caller)"
            )
        if small:
            return
        if share and of_one and self._total >= _CROWDED * most:
            fair = most // len(self._held_by)
            if of_one >= fair:
                raise WindowExceeded(
                    f"yours: clients of {name_of(holder)} have {of_one} bytes of answers that they "
                    f"have not acknowledged, and each caller's share is {fair}: most of "
                    f"max_total_answer_bytes ({most}) is taken"
                )
        if self._total >= (_RESERVED * most if share and of_one else most):
            raise WindowExceeded(
                f"others': all clients have {self._total} bytes of answers that they have not "
                f"acknowledged, and may have {most} (max_total_answer_bytes)"
            )

    def note(self, attempt: Attempt, size: int) -> None:
        """Note that an answer of so many bytes is kept."""
        call = attempt.call
        if size < LARGE_BYTES if call.key is None else not call.source:
            return
        if call.key is not None:
            with self._lock:
                self._note_source(attempt, size + len(call.key), self._clock())
            return
        holder = self._holder(call.client_id)
        with self._lock:
            self.active = True
            held = self._clients.get(call.client_id)
            if held is None:
                held = self._clients[call.client_id] = _OfClient(holder)
            self._forget(held, call.seq)  # type: ignore[arg-type]  # it has no key
            held.answers[call.seq] = _Answer(size, call.method)  # type: ignore[index]
            self._of_method[call.method] += 1
            self._add(held, size)

    def acknowledge(self, client_id: int, first: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Note what a client acknowledged with a renewal: below a seq, and ranges above it."""
        if not self.active:
            return
        with self._lock:
            held = self._clients.get(client_id)
            if held is not None:
                self._acknowledge(client_id, held, first, ranges)

    def acknowledged(self, call: Call) -> tuple[int, Sequence[tuple[int, int]]]:
        """Return what the call's header acknowledges: below a seq, and ranges above it."""
        return call.first_incomplete, call.completed

    def forget(self) -> None:
        """Begin anew: others have answered since."""
        with self._lock:
            self._clients.clear()
            self._sources.clear()
            self._held_by.clear()
            self._of_method.clear()
            self._total, self.active = 0, False

    def drop(self, client_ids: Iterable[int]) -> None:
        """Forget clients whose records are gone."""
        if not self.active:
            return
        with self._lock:
            for client_id in client_ids:
                self._drop(client_id)

    def _acknowledge(
        self, client_id: int, held: _OfClient, first: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        for seq in [
            seq
            for seq in held.answers
            if seq < first or any(low <= seq <= high for low, high in ranges)
        ]:
            self._forget(held, seq)
        if not held.answers:
            self._drop(client_id)

    def _forget(self, held: _OfClient, seq: int) -> None:
        answer = held.answers.pop(seq, None)
        if answer is None:
            return
        self._add(held, -answer.bytes)
        self._of_method[answer.method] -= 1
        if not self._of_method[answer.method]:
            del self._of_method[answer.method]

    def _drop(self, client_id: int) -> None:
        held = self._clients.pop(client_id, None)
        if held is not None:
            for seq in list(held.answers):
                self._forget(held, seq)
        self.active = bool(self._clients or self._sources)

    def _add(self, held: _OfClient, size: int) -> None:
        held.bytes += size
        self._total += size
        left = self._held_by.get(held.holder, 0) + size
        if left:
            self._held_by[held.holder] = left
        else:
            self._held_by.pop(held.holder, None)

    def _note_source(self, attempt: Attempt, size: int, now: float) -> None:
        retention_s = self._key_bounds.retained_s(attempt.policy.retention_s)
        until = math.inf if retention_s is None else now + retention_s
        self.active = True
        kept = self._sources.setdefault(attempt.call.source, _OfSource())
        last = kept.kept[-1] if kept.kept else None
        if last is None or until > last.first_until + (retention_s or 0.0) / _PARTS:
            last = _Kept(until)
            kept.kept.append(last)
        last.until = max(last.until, until)
        last.keys += 1
        last.bytes += size
        kept.keys += 1
        kept.bytes += size

    def _admit_source(self, source: str, now: float) -> None:
        kept = self._sources.get(source)
        if kept is None:
            return
        while kept.kept and kept.kept[0].until <= now:
            over = kept.kept.popleft()
            kept.keys -= over.keys
            kept.bytes -= over.bytes
        if not kept.kept:
            del self._sources[source]
            self.active = bool(self._clients or self._sources)
        elif kept.keys >= self._bounds.source_keys or kept.bytes >= self._bounds.source_bytes:
            raise WindowExceeded(
                f"{kept.keys} keys with {kept.bytes} bytes are recorded for this address"
            )
