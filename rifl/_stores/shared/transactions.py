"""Handlers' transactions in a shared store's own database, the completion record fenced in them."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rifl._stores.shared.attempts import SharedAttempt
from rifl._stores.shared.requests import Written
from rifl._stores.transactions import RecordingTransactions
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.errors import LeaseExpired, StaleRpc
from rifl.core._shared.record import CompletionRecord

FinishOf = Callable[[Attempt, CompletionRecord], Written]


class NeedsClaim(StaleRpc):
    """The transaction cannot decide about the call: it sees what was when it began."""


class FencedTransactions(RecordingTransactions, abc.ABC):
    """Records that a transaction of the handler's writes only for an attempt that is current.

    A store adds how a ``Finish`` is carried out inside such a transaction: it raises to undo
    it where the attempt was taken over. ``finish_of``: what is written for an attempt, see
    ``AttemptSettlement.finish_of``. ``always``: see ``UnclaimedRuns.always``.
    """

    def __init__(self, finish_of: FinishOf, always: Callable[[str, str], None]) -> None:
        self._finish_of = finish_of
        self._always = always

    def record(self, attempt: Attempt, record: CompletionRecord, transaction: Any) -> None:
        """Write the record in the handler's own transaction, fenced; raises to undo it."""
        finish = self._noted(attempt, record)
        with self._noting(attempt):
            self._write(transaction, finish)

    async def record_async(
        self, attempt: Attempt, record: CompletionRecord, transaction: Any
    ) -> None:
        """The same for an asynchronous connection."""
        finish = self._noted(attempt, record)
        with self._noting(attempt):
            await self._write_async(transaction, finish)

    @abc.abstractmethod
    def _write(self, transaction: Any, finish: Written) -> None:
        """Carry the request out inside the transaction; raises to undo it."""

    @abc.abstractmethod
    async def _write_async(self, transaction: Any, finish: Written) -> None:
        """The same for an asynchronous connection."""

    @contextlib.contextmanager
    def _noting(self, attempt: Attempt) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._note_refusal(attempt, error)
            raise

    def _note_refusal(self, attempt: Attempt, error: BaseException) -> None:
        """Note on the attempt that the store would not have what is written, if it says so."""
        if isinstance(error, (StaleRpc, LeaseExpired)) and isinstance(attempt, SharedAttempt):
            attempt.refused = True
        if isinstance(error, NeedsClaim):
            self._always(attempt.call.method, str(error))

    def _noted(self, attempt: Attempt, record: CompletionRecord) -> Written:
        """Return what is written for an attempt, whose record may stand from now on."""
        finish = self._finish_of(attempt, record)
        # Before it is written: if another record stands already, that is what will be answered.
        attempt.recorded = record
        return finish
