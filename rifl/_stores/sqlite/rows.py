"""Conditional rows of the SQLite store: moved by the journal, or in handlers' transactions (§6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rifl._stores.embedded import EmbeddedStore
from rifl._stores.pending import Pending
from rifl._stores.rows import Move, RowCall, SoleProcess
from rifl._stores.sqlite.database import Database
from rifl._stores.sqlite.journal_entries import Entry, not_started
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.errors import RecordPending, StoreUnavailable


class SqliteRows(SoleProcess):
    """``ConditionalRows`` in the store's own file; moves that meet share a commit."""

    def __init__(self, store: EmbeddedStore, database: Database) -> None:
        super().__init__()
        self._store = store
        self._database = database

    @property
    def store_id(self) -> str:
        """Of the file."""
        return self._database.store_id

    def get(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Return what is durable."""
        wanted = list(keys)
        try:
            found = self._database.read_rows(wanted)
        except RecordPending as error:
            raise StoreUnavailable(str(error)) from error
        return {key: found[key][0] if key in found else None for key in wanted}

    def move(self, moves: Sequence[Move]) -> Pending:
        """Have the journal move rows with its next commit."""
        entry = Entry(Entry.MOVE, *moves, patient=False, failure=not_started)
        return self._database.journal.submit(entry, awaited=True)

    def begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        """Begin a run."""
        return self._store.begin_beside(call, policy)

    def end(self, attempt: Attempt) -> None:
        """End a run."""
        self._store.end_beside(attempt)
