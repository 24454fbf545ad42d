"""Handlers' transactions in a shared store's own database, the completion record fenced in them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from rifl._stores.shared.requests import Finish, MoveInside
from rifl._stores.transactions import RecordingTransactions
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.record import CompletionRecord


class FencedTransactions(RecordingTransactions, abc.ABC):
    """Records that a transaction of the handler's writes only for an attempt that is current.

    A store adds how a ``Finish`` is carried out inside such a transaction: it raises to undo
    it where the attempt was taken over. ``finish_of``: what is written for an attempt, see
    ``AttemptSettlement.finish_of``.
    """

    def __init__(
        self, finish_of: Callable[[Attempt, CompletionRecord], Finish | MoveInside]
    ) -> None:
        self._finish_of = finish_of

    def record(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's own transaction, fenced; raises to undo it."""
        self._write(transaction, self._noted(attempt, record))

    async def record_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        await self._write_async(transaction, self._noted(attempt, record))

    @abc.abstractmethod
    def _write(self, transaction: Any, finish: Finish | MoveInside) -> None:
        """Carry the request out inside the transaction; raises to undo it."""

    @abc.abstractmethod
    async def _write_async(self, transaction: Any, finish: Finish | MoveInside) -> None:
        """The same for an asynchronous connection."""

    def _noted(self, attempt: Attempt, record: CompletionRecord) -> Finish | MoveInside:
        """Return what is written for an attempt, whose record may stand from now on."""
        finish = self._finish_of(attempt, record)
        # Before it is written: if another record stands already, that is what will be answered.
        attempt.recorded = record
        return finish
