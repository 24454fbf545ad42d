"""The lease table: which client ids are alive (RIFL §3.3; DESIGN §5). Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

# Ids are filed by expiry in buckets of a 64th of a term: a client that renews is
# looked at once a term, whatever the pace of its renewals and of `expire`.
_BUCKETS_PER_TERM = 64
_MIN_BUCKET_S = 1e-3
_NONE: Mapping[int, bytes] = {}


class BlockExhausted(Exception):
    """The reserved id block is used up; reserve another and call ``use_block``."""


class _Holder:
    """Whom ids count for, and how many: one object for all of them."""

    __slots__ = ("ids", "name")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ids = 0


class LeaseTable:
    """Client ids and when their leases end. No I/O, no clock, not thread-safe.

    All times are seconds, as floats on one clock of the caller's choice; they
    should not run backwards, and if they do, leases only get longer.

    Invariants:

    1. An id is granted at most once, and every grant exceeds all ids granted or
       recovered before.
    2. No id outside the current block is granted.
    3. An expiry only moves forward.
    4. Every id held is filed exactly once, in a bucket or in the heap, no later
       than its expiry.
    5. ``held_by`` of a holder is the number of ids held that were granted to it.

    Nothing survives a crash, by intent: expiries are not persisted, and after a
    restart ``recover`` gives every known client a full term (late is safe, early
    is not). Memory is about 110 bytes an id, 160 if it counts for a holder; ``renew`` is
    one dictionary write, and ``expire`` costs what expired or was due for another look.
    """

    __slots__ = (
        "_bucket_order",
        "_bucket_s",
        "_buckets",
        "_draw",
        "_due",
        "_expiry",
        "_held_by",
        "_holders",
        "_last_id",
        "_left_behind",
        "_next_id",
        "_stride",
        "_term_s",
    )

    def __init__(
        self,
        term_s: float,
        *,
        first_id: int = 1,
        last_id: int | None = None,
        random_bits: int = 0,
        randbits: Callable[[int], int] = lambda bits: 0,
    ) -> None:
        """A table granting ``first_id`` to ``last_id`` inclusive (None: no end).

        Each id is one of 2^``random_bits``, drawn by ``randbits``. ``first_id`` above
        ``last_id`` is an empty block. Raises ValueError unless
        the term is positive and finite and the first id at least 1.
        """
        if not (math.isfinite(term_s) and term_s > 0):
            raise ValueError("term_s must be positive and finite")
        if first_id < 1:
            raise ValueError("client ids start at 1")
        self._term_s = float(term_s)
        self._bucket_s = max(self._term_s / _BUCKETS_PER_TERM, _MIN_BUCKET_S)
        self._next_id = first_id
        self._last_id = last_id
        self._stride = 1 << random_bits
        self._draw = partial(randbits, random_bits) if random_bits else None
        self._expiry: dict[int, float] = {}
        # Whom an id counts for, if for any.
        self._holders: dict[int, _Holder] = {}
        self._held_by: dict[bytes, _Holder] = {}
        self._buckets: dict[int, list[int]] = {}
        self._bucket_order: list[int] = []
        # Ids of opened buckets, by the expiry they had when filed.
        self._due: list[tuple[float, int]] = []
        # Ids removed while still filed: recovered again, they must not be filed twice.
        self._left_behind: set[int] = set()

    @property
    def term_s(self) -> float:
        """Length of every lease, seconds."""
        return self._term_s

    @property
    def next_id(self) -> int:
        """The lowest id the next grant may give, if the block holds it."""
        return self._next_id

    @property
    def ids_left(self) -> int | None:
        """Grants the block still holds; None if it has no end."""
        if self._last_id is None:
            return None
        return max(0, self._last_id - self._next_id + 1) // self._stride

    def __len__(self) -> int:
        """Ids held: alive, or expired and not yet returned by ``expire``."""
        return len(self._expiry)

    def use_block(self, first_id: int, last_id: int) -> None:
        """Grant from ``first_id`` to ``last_id`` from now on; the old block's rest is void.

        Raises ValueError if the block is empty or starts below ``next_id``: ids of
        it may have been granted (invariant 1).
        """
        if first_id < self._next_id or last_id < first_id:
            raise ValueError(f"block {first_id}..{last_id} is not above id {self._next_id - 1}")
        self._next_id = first_id
        self._last_id = last_id

    def take_id(self) -> int:
        """The next id, without a lease (for a session). Raises BlockExhausted."""
        first, after = self._next_id, self._next_id + self._stride
        if self._last_id is not None and after > self._last_id + 1:
            raise BlockExhausted(f"no id left up to {self._last_id}")
        self._next_id = after
        return first if self._draw is None else first + self._draw()

    def grant(self, now: float, holder: bytes = b"") -> int:
        """A new id, alive until ``now`` plus one term. Raises BlockExhausted.

        It counts for ``holder``, unless that is empty.
        """
        client_id = self.take_id()
        self._hold(client_id, now + self._term_s)
        self._count(client_id, holder)
        return client_id

    def held_by(self, holder: bytes) -> int:
        """How many ids a holder has: as ``len`` counts them."""
        found = self._held_by.get(holder)
        return 0 if found is None else found.ids

    def holder(self, client_id: int) -> bytes:
        """Whom an id counts for; empty: for no holder."""
        found = self._holders.get(client_id)
        return b"" if found is None else found.name

    def renew(self, client_id: int, now: float) -> bool:
        """Extend a lease to at least ``now`` plus one term; True if it is alive.

        False for an id that is unknown or whose expiry has passed, also before
        ``expire`` returned it: an expired lease never comes back.
        """
        expiry = self._expiry.get(client_id)
        if expiry is None or now >= expiry:
            return False
        extended = now + self._term_s
        if extended > expiry:
            self._expiry[client_id] = extended
        return True

    def alive(self, client_id: int, now: float) -> bool:
        """Whether ``now`` is before the id's expiry; False for unknown ids."""
        expiry = self._expiry.get(client_id)
        return expiry is not None and now < expiry

    def expires_at(self, client_id: int) -> float | None:
        """When the lease ends unless renewed; None for unknown ids."""
        return self._expiry.get(client_id)

    def remove(self, client_id: int) -> bool:
        """Forget an id at once (released); False if it was unknown.

        ``expire`` will not return it.
        """
        if self._expiry.pop(client_id, None) is None:
            return False
        self._uncount(client_id)
        self._left_behind.add(client_id)
        return True

    def expire(self, now: float) -> list[int]:
        """Remove and return the ids whose expiry has passed, ascending, each once."""
        expired: list[int] = []
        opened = math.floor(now / self._bucket_s)
        while self._bucket_order and self._bucket_order[0] <= opened:
            index = heapq.heappop(self._bucket_order)
            for client_id in self._buckets.pop(index):
                self._look_at(client_id, now, opened, expired)
        while self._due and self._due[0][0] <= now:
            _, client_id = heapq.heappop(self._due)
            self._look_at(client_id, now, opened, expired)
        expired.sort()
        return expired

    def recover(
        self, client_ids: Iterable[int], now: float, holders: Mapping[int, bytes] = _NONE
    ) -> None:
        """Give every id a full term from ``now``, known or not; none gets shorter.

        Those among ``holders`` count for these. Later grants exceed all of them, which may
        leave the block exhausted. Raises ValueError for an id below 1, before any takes effect.
        """
        ids = list(client_ids)
        if ids and min(ids) < 1:
            raise ValueError("client ids start at 1")
        expiry = now + self._term_s
        for client_id in ids:
            self._hold(client_id, expiry)
            self._count(client_id, holders.get(client_id, b""))
        if ids:
            self._next_id = max(self._next_id, max(ids) + 1)

    def extend(self, now: float) -> None:
        """Give every id that is held a full term from ``now``, also where its own is over."""
        expiry = now + self._term_s
        for client_id, standing in self._expiry.items():
            self._expiry[client_id] = max(standing, expiry)

    def _hold(self, client_id: int, expiry: float) -> None:
        standing = self._expiry.get(client_id)
        if standing is not None:
            self._expiry[client_id] = max(standing, expiry)
            return
        self._expiry[client_id] = expiry
        if client_id in self._left_behind:
            self._left_behind.discard(client_id)
        else:
            self._file(client_id, expiry)

    def _count(self, client_id: int, holder: bytes) -> None:
        if not holder or client_id in self._holders:
            return
        found = self._held_by.get(holder)
        if found is None:
            found = self._held_by[holder] = _Holder(holder)
        self._holders[client_id] = found
        found.ids += 1

    def _uncount(self, client_id: int) -> None:
        holder = self._holders.pop(client_id, None)
        if holder is None:
            return
        holder.ids -= 1
        if not holder.ids:
            del self._held_by[holder.name]

    def _file(self, client_id: int, expiry: float) -> None:
        index = math.floor(expiry / self._bucket_s)
        bucket = self._buckets.get(index)
        if bucket is None:
            self._buckets[index] = [client_id]
            heapq.heappush(self._bucket_order, index)
        else:
            bucket.append(client_id)

    def _look_at(self, client_id: int, now: float, opened: int, expired: list[int]) -> None:
        """Drop, report or file again one id that was just taken from where it was filed."""
        expiry = self._expiry.get(client_id)
        if expiry is None:
            self._left_behind.discard(client_id)
        elif expiry <= now:
            del self._expiry[client_id]
            self._uncount(client_id)
            expired.append(client_id)
        elif math.floor(expiry / self._bucket_s) <= opened:
            heapq.heappush(self._due, (expiry, client_id))
        else:
            self._file(client_id, expiry)
