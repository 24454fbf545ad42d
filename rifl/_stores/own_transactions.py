"""A transaction of the handler's own, on a connection that the store knows nothing of (§6)."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from rifl._stores.errors import WrongDatabase
from rifl._stores.transactions import check_begins, committer, holder
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.record import CompletionRecord

_NOT_SHARED = "the store has no transactions that calls share: give a connection"


class OwnTransactions:
    """The part of a ``Store`` that begins and commits what drivers have their own ways for.

    A store adds how a record is written, and overrides what it can do better.
    """

    def record_in(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record inside the handler's own transaction: the store's."""
        raise NotImplementedError

    async def record_in_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        raise NotImplementedError

    def begin_in(self, transaction: Any) -> None:
        """Begin the transaction that ``commit_in`` ends: drivers do so by themselves."""
        check_begins(transaction)

    async def begin_in_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""
        check_begins(transaction)

    def rollback_in(self, transaction: Any) -> None:
        """Roll back what ``begin_in`` began."""
        holder(transaction).rollback()

    async def rollback_in_async(self, transaction: Any) -> None:
        """The same for an asynchronous connection."""
        # A blocking connection is fine on an event loop, too, if its owner thinks so.
        if inspect.isawaitable(done := holder(transaction).rollback()):
            await done

    def commit_in(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's own transaction, then commit that."""
        commit = committer(transaction)
        self.record_in(attempt, record, transaction)
        commit()

    async def commit_in_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        commit = committer(transaction)
        await self.record_in_async(attempt, record, transaction)
        if inspect.isawaitable(done := commit()):
            await done

    def share(self, attempt: Attempt, remaining_s: float | None) -> AbstractContextManager[Any]:
        """Refused: only SQLite has one that calls share."""
        raise WrongDatabase(_NOT_SHARED)

    def share_async(
        self, attempt: Attempt, remaining_s: float | None
    ) -> AbstractAsyncContextManager[Any]:
        """Refused, like ``share``."""
        raise WrongDatabase(_NOT_SHARED)
