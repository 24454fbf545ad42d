"""What every store gives (DESIGN §6): decisions, records, and what leases need kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from lease_server._storage import LeaseStorage
from rifl._stores.held import HeldAnswers
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import KeyBounds, MethodPolicies
from rifl.core._serving.serving import Records
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.observer import Observer
from rifl.core._shared.record import CompletionRecord


class Store(Records, Protocol):
    """One place where completion records live.

    Life: made by ``open_store``; ``leases`` is used; ``bind`` once; then calls,
    from any thread; ``close`` once. All methods are thread-safe. What is said to
    be durable survives SIGKILL and loss of power, as far as the store's settings
    promise that; ``memory:`` keeps nothing.
    """

    # Whether an atomic method's records can be in a user's transaction.
    supports_atomic: bool
    # Told of commits; None for nobody. Set before ``bind``.
    observer: Observer | None
    # Told, outside any lock, when new calls begin to be refused and why, and with
    # None when they are taken again. Set before ``bind``.
    on_refusal: Callable[[RiflError | None], None] | None
    # How many coroutines of handlers were cancelled: threads that they left behind may go on.
    cancelled: int

    @property
    def held(self) -> HeldAnswers:
        """What answers take that are kept; bounded before calls are served."""

    @property
    def leases(self) -> LeaseStorage:
        """What the lease server needs kept, in the same store."""

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        window: int,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Read what the last incarnation left and be ready for calls."""

    def expire_keys(self) -> None:
        """Let go of keyed calls whose retention is over; called every few seconds.

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

    def drop(self, client_ids: Iterable[int]) -> None:
        """Forget clients whose lease or session is over, with their records."""

    def record_in(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record inside the handler's own transaction, fenced."""

    async def record_in_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""

    def begin_in(self, transaction: Any) -> None:
        """Begin the handler's transaction; raises ``WrongDatabase`` if one is open already."""

    async def begin_in_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""

    def rollback_in(self, transaction: Any) -> None:
        """Roll back what ``begin_in`` began."""

    async def rollback_in_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""

    def commit_in(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Do what ``record_in`` does, then commit the transaction.

        Where the commit's own answer shows that it committed, the attempt says so.
        """

    async def commit_in_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""

    def share(self, attempt: Attempt, remaining_s: float | None) -> AbstractContextManager[Any]:
        """Return the call's part in a transaction that calls share; see ``rifl.transaction``.

        ``remaining_s``: of the call's deadline, None if it has none. Raises
        ``WrongDatabase`` where there is none to share.
        """

    def share_async(
        self, attempt: Attempt, remaining_s: float | None
    ) -> AbstractAsyncContextManager[Any]:
        """The same for a coroutine."""

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
        """Make durable what is queued, then let go of everything."""
