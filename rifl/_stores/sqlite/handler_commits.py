"""The commits of handlers' own transactions: what they left is what the call is answered with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _rifl_ground.sqlite.failures import Stopped
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import WrongDatabase
from rifl._stores.pending import Pending
from rifl._stores.rows import RowCall
from rifl._stores.sqlite.attempt import SqliteAttempt, is_stale, of_sqlite
from rifl._stores.sqlite.client_rows import ClientRows
from rifl._stores.sqlite.database import Database
from rifl._stores.sqlite.journal_entries import Entry, not_started, record_pending
from rifl._stores.sqlite.record_row import MovedRows, RecordRow
from rifl._stores.sqlite.shared_transactions import BlockTurn
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RecordPending, StaleRpc
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


class HandlerCommits(BatchCommits):
    """The part of ``SqliteStore`` that ``atomic`` methods meet.

    A crash leaves of a transaction its effects and the call's record, or neither.
    """

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """Return what the handler's own transaction left, None if it left nothing.

        One that was shared tells by itself.
        """
        mine = of_sqlite(attempt)
        mine.sealed = True
        if mine.committed is not None:
            return mine.committed
        if mine.shared is not None:
            if isinstance(mine.shared, BlockTurn):
                mine.shared.cut_off()
            return mine.shared
        if mine.recorded is None:
            return None
        database = self._databases.of(mine)
        standing = None if mine.unsynced else database.read_committed(mine)
        if standing is not None:
            return standing
        # To be on the disk before the answer leaves: a commit of ours waits for what came
        # before it. Or it was rolled back; or its fsync failed, and then it is in the file's
        # log where nobody reads it but the next start: ours is written over it. Or another
        # thread commits it just now, as where a coroutine was cancelled: ours comes after.
        call = attempt.call

        def look_again(entry: Entry) -> None:
            entry.result = database.read(call)

        entry = Entry(
            Entry.OVERWRITE,
            (call.client_id, call.identity),
            patient=False,
            failure=_doubtful,
            durable=look_again,
        )
        return database.journal.submit(entry, awaited=True)

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> None:
        """Settle with the record of the handler's own transaction."""
        database = self._databases.of(attempt)
        entry = attempt.entry
        now = 0.0 if attempt.call.key is None else self._clock()
        with self._lock:
            entry.registered.add(database.name)
            self._note_many_acknowledgements()
            if is_stale(attempt):
                self._delete(attempt, database)
            waiters = self._settle_one(attempt, record, now)
        for wake in waiters:
            wake()

    def _row(self, attempt: SqliteAttempt, record: CompletionRecord) -> RecordRow | MovedRows:
        """Return the row of an attempt that may still be recorded, else raise."""
        call = attempt.call
        if attempt.policy.kind is not Kind.ATOMIC:
            raise WrongDatabase(f"{call.method} is not declared atomic")
        database = self._databases.of(attempt)
        if isinstance(call, RowCall):
            return self._moved_rows(attempt, call, database)
        entry, guard = attempt.entry, database.guard
        with self._lock:
            if attempt.ended or is_stale(attempt):
                raise StaleRpc(f"{call.rpc_id} is acknowledged, or was settled")
            client = None if database.name in entry.registered else self._client_row(entry)
        self._check_file(attempt, database)
        data = self._codec.to_bytes(record, self._completed_at(call), call.seed)
        attempt.stored = data
        row = (call.client_id, call.identity, call.fingerprint, call.method, data)
        return RecordRow(database.path, guard.opening, guard.number(), client, row)

    def _moved_rows(self, attempt: SqliteAttempt, call: RowCall, database: Database) -> MovedRows:
        with self._lock:
            if attempt.ended or attempt.revoked:
                raise StaleRpc(f"{call.rpc_id} was settled")
        self._check_file(attempt, database)
        guard = database.guard
        return MovedRows(database.path, guard.opening, guard.number(), call.moves)

    @staticmethod
    def _check_file(attempt: SqliteAttempt, database: Database) -> None:
        """Raise ``WrongDatabase`` where the file is another one.

        Of a shared transaction once; it is looked again when that has committed, before anybody
        is told.
        """
        group = None
        if attempt.sharing and isinstance(attempt.shared, BlockTurn):
            group = attempt.shared.group
            if group is not None and group.checked:
                return
        try:
            database.guard.check()
        except Stopped as error:
            database.journal.stop_for(error)
            raise WrongDatabase(str(error)) from error
        if group is not None:
            group.checked = True

    def _completed_at(self, call: Call) -> float | None:
        # Not earlier than it was, and not by a clock that may jump.
        return None if call.key is None else int(self._table.lived(self._clock())) + 1


def _doubtful(error: Exception) -> RecordPending:
    return RecordPending(f"what became of the handler's own commit is not known: {error}")
