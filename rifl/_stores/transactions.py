"""Handlers' transactions with completion records in them: what a store may have for them (§6)."""

from __future__ import annotations

import abc
import inspect
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from rifl._stores.drivers import check_begins, committer, roll_back, roll_back_async
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.record import CompletionRecord


class Transactions(Protocol):
    """Records inside transactions of handlers' own, which atomic methods need of a store.

    ``transaction`` is what holds one: a connection, a cursor, a session or a pipeline of a
    driver that the store knows. What is no such thing is ``WrongDatabase``.
    """

    def record(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record inside the handler's own transaction, fenced; raises to undo it."""

    async def record_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""

    def begin(self, transaction: Any) -> None:
        """Begin the handler's transaction; raises ``WrongDatabase`` if one is open already."""

    async def begin_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""

    def rollback(self, transaction: Any) -> bool:
        """Roll back what ``begin`` began, and what runs in its place; false: it may be committed.

        Raises ``TransactionEnded``, and nothing else, where not all of it may be undone.
        """

    async def rollback_async(self, transaction: Any) -> bool:
        """The same for an asynchronous connection."""

    def commit(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Do what ``record`` does, then commit the transaction.

        Where the commit's own answer shows that it committed, the attempt says so. Raises
        ``TransactionEnded`` for one that is not what ``begin`` began.
        """

    async def commit_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""

    def note_errors(self, transaction: Any) -> None:
        """Have errors of what ``begin`` began be marked, until it ends (``counting``)."""

    def revoke(self, attempt: Attempt) -> bool:
        """Roll back what a handler that does not end is in, and have it commit nothing more.

        In another thread than the handler's; blocks for some seconds at most. False: its
        transaction is open still, and may hold what others wait for.
        """

    async def revoke_async(self, attempt: Attempt) -> bool:
        """The same on the event loop that serves; the handler may be a coroutine of it."""


class SharedBlocks(Protocol):
    """Blocks of handlers in transactions of the store's that many calls share."""

    def block(self, attempt: Attempt, remaining_s: float | None) -> AbstractContextManager[Any]:
        """Return the call's part in a transaction that calls share; see ``rifl.transaction``.

        ``remaining_s``: of the call's deadline, None if it has none. Raises
        ``WrongDatabase`` for a method that is not atomic.
        """

    def block_async(
        self, attempt: Attempt, remaining_s: float | None
    ) -> AbstractAsyncContextManager[Any]:
        """The same for a coroutine."""

    def has_block(self, attempt: Attempt) -> bool:
        """Whether the call has a block that has not ended, or waits for one."""


class DriverTransactions:
    """Transactions as their drivers begin and end them, with no record in them."""

    def begin(self, transaction: Any) -> None:
        """Begin the transaction that ``commit`` ends: drivers do so by themselves."""
        check_begins(transaction)

    async def begin_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""
        check_begins(transaction)

    def rollback(self, transaction: Any) -> bool:
        """Roll back what ``begin`` began."""
        roll_back(transaction)
        return True

    async def rollback_async(self, transaction: Any) -> bool:
        """The same for an asynchronous connection."""
        await roll_back_async(transaction)
        return True


class RecordingTransactions(DriverTransactions, abc.ABC):
    """The part of a store's ``Transactions`` that is the same for all.

    A store adds how a record is written, and overrides what it can do better.
    """

    @abc.abstractmethod
    def record(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record inside the handler's own transaction, fenced; raises to undo it."""

    @abc.abstractmethod
    async def record_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""

    def commit(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's own transaction, then commit that."""
        commit = committer(transaction)
        self.record(attempt, record, transaction)
        commit()

    async def commit_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        commit = committer(transaction)
        await self.record_async(attempt, record, transaction)
        if inspect.isawaitable(done := commit()):
            await done

    def note_errors(self, transaction: Any) -> None:
        """Nothing: what a store can tell, it marks at the end."""

    def revoke(self, attempt: Attempt) -> bool:
        """Have a run commit nothing more: what it would write is refused."""
        attempt.revoked = True
        return True

    async def revoke_async(self, attempt: Attempt) -> bool:
        """The same on an event loop."""
        return self.revoke(attempt)
