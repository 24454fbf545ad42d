"""Stores as servers use them: decisions, records, and what leases need kept (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from lease_server._storage import SharedLeaseStorage, SoleLeaseStorage
from rifl._stores.held_answers import HeldAnswers
from rifl._stores.rows import ConditionalRows
from rifl._stores.transactions import SharedBlocks, Transactions
from rifl.core._serving.batching import BatchRecords
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import MethodPolicies
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.observer import Observer
from rifl.core._shared.record import CompletionRecord

# For another process that owns the store.
LOCK_TIMEOUT_S = 5.0


# How often a store that has to ask for them counts them.
UNRESOLVED_EVERY_S = 15.0


class Unresolved(NamedTuple):
    """Calls of the whole store with an unknown outcome that no operator has settled.

    Where none can, as the process has the records: of those that are kept. ``oldest_s``: how old
    the oldest is, by the store's clock; there, for how long it is known.
    """

    calls: int
    oldest_s: float


class Store(BatchRecords, Protocol):
    """One place where completion records live.

    Life: made by ``open_store``; ``leases`` is used; ``bind`` once; then calls,
    from any thread; ``close`` once. All methods are thread-safe. What is said to
    be durable survives SIGKILL and loss of power, as far as the store's settings
    promise that; ``memory:`` keeps nothing.
    """

    # Told of commits, if there is one. Set before ``bind``.
    observer: Observer | None
    # Told, outside any lock, when new calls begin to be refused and why, and with
    # None when they are taken again. Set before ``bind``.
    on_refusal: Callable[[RiflError | None], None] | None
    # Whether a handler may be cancelled half-way: what it did without a record is not the store's.
    cancels_handlers: bool
    # Room for keys on the disk that has them, when the store was opened; None: that is elsewhere.
    free_bytes: int | None
    # As last counted by ``expire_keys`` for an observer; None: it did not, or another replica does.
    unresolved: Unresolved | None
    # How many coroutines of handlers were cancelled: threads that they left behind may go on.
    cancelled: int

    @property
    def transactions(self) -> Transactions | None:
        """Records inside handlers' own transactions, for atomic methods; None: it has none."""

    @property
    def shared_blocks(self) -> SharedBlocks | None:
        """Blocks in transactions that calls share; None: it has none."""

    @property
    def rows(self) -> ConditionalRows | None:
        """Rows that are moved conditionally, beside the records; None: it has none."""

    @property
    def held(self) -> HeldAnswers:
        """The space that kept answers take."""

    @property
    def leases(self) -> SoleLeaseStorage | SharedLeaseStorage:
        """What the lease server needs kept, in the same store."""

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        bounds: Bounds,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Read what the last incarnation left and be ready for calls."""

    def expire_keys(self) -> None:
        """Delete keyed calls whose retention has passed; called every few seconds.

        A key is new again only when nothing of its record is left. May block.
        """

    def fetch(self, call: Call) -> CompletionRecord | None:
        """Read the record of a completed call; None if it is gone. May block."""

    def token(self, client_id: int) -> bytes:
        """Return the token last verified for a client, empty if none was."""

    def wait(self, attempt: Attempt, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called when the attempt ends; False if it has."""

    def leave(self, attempt: Attempt, wake: Callable[[], None]) -> None:
        """No longer wait."""

    def overdue(self) -> bool:
        """Whether another server may have taken this one for dead by now. Never waits."""

    def lapses(self) -> int:
        """Return how often that was so, and passed. Never waits."""

    def clients_ended(self, client_ids: Iterable[int]) -> None:
        """Delete the records of clients whose leases or sessions have ended."""

    def was_cancelled(self, attempt: Attempt) -> None:
        """Count a handler's coroutine that was cancelled, before its attempt is ended."""

    def refuse_new(self, draining: bool) -> None:
        """Begin or stop refusing new calls as draining."""

    def running(self) -> int:
        """How many attempts are not settled."""

    def handling(self) -> int:
        """How many of them have a handler that has not ended: its effect may come yet."""

    def statistics(self) -> tuple[int, int, int]:
        """Clients with state, calls not acknowledged, and of these the ones running.

        Called when metrics are scraped: in milliseconds, holding nothing up.
        """

    def settled(self, timeout_s: float) -> bool:
        """Wait until no attempt runs; False if that took longer."""

    def close(self) -> None:
        """Make durable what is queued, then release everything."""
