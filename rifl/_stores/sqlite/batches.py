"""The commits of a batch: all its intents in one, all its records in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rifl._stores.codec import RecordCodec
from rifl._stores.pending import Pending
from rifl._stores.sqlite.attempt import is_stale, of_sqlite
from rifl._stores.sqlite.client_rows import ClientRows
from rifl._stores.sqlite.journal_entries import Entry, not_started, record_pending
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord


class BatchCommits(ClientRows):
    """The part of ``SqliteStore`` that is asked for many calls at once: see ``BatchRecords``.

    A crash leaves all of a group's intents or none, all of its records or none.
    """

    _codec: RecordCodec

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Make the intents of plain calls durable, in one commit."""
        first = attempts[0]
        if first.policy.kind is not Kind.PLAIN:
            # Registers their client where need be, which is the same one.
            registered = self.start(first)
            return [None] * len(attempts) if registered is None else _for_all(registered, attempts)
        rows = [
            (call.client_id, call.identity, call.fingerprint, call.method)
            for call in (attempt.call for attempt in attempts)
        ]

        def intended(_: Entry) -> None:
            for attempt in attempts:
                of_sqlite(attempt).intended = True
            with self._lock:
                first.entry.registered.add(self._main.name)

        entry = Entry(Entry.INTENT, *rows, patient=False, failure=not_started, durable=intended)
        with self._lock:
            return _for_all(self._queue(first, entry, self._main), attempts)

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        """Make the records durable in one commit, then settle."""
        first = attempts[0]
        if first.policy.kind is Kind.ATOMIC:
            # A transaction of a handler's may have left another record for each.
            return AllLater([self.finish(*pair) for pair in zip(attempts, records, strict=True)])
        of_a_run, completed_at = self._codec.of_a_run, self._completed_at(first.call)
        kept: list[CompletionRecord] = []
        rows: list[tuple[Any, ...]] = []
        for attempt, record in zip(attempts, records, strict=True):
            call = attempt.call
            attempt.owed = True
            unix_s = completed_at if call.key is not None else None
            stands, data = of_a_run(record, call, unix_s)
            kept.append(stands)
            rows.append((call.client_id, call.identity, call.fingerprint, call.method, data))
        database = self._databases.of(first)

        def recorded(_: Entry) -> None:
            with self._lock:
                first.entry.registered.add(database.name)
            self._settle_all(attempts, kept)

        entry = Entry(Entry.RECORD, *rows, patient=True, failure=record_pending, durable=recorded)
        entry.result = [
            None if stands is record else stands
            for stands, record in zip(kept, records, strict=True)
        ]
        with self._lock:
            if not any(is_stale(attempt) for attempt in attempts):
                return self._queue(first, entry, database)
        # Acknowledged while they ran: rare, and no record is wanted of these.
        return AllLater([self.finish(*pair) for pair in zip(attempts, records, strict=True)])

    def _completed_at(self, call: Call) -> float | None:
        raise NotImplementedError


def _for_all(pending: Pending, attempts: Sequence[Attempt]) -> Pending:
    pending.result = [None] * len(attempts)
    return pending
