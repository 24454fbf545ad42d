"""The rows of clients: there before their calls' rows, gone after all of them (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rifl._stores.embedded import EmbeddedStore
from rifl._stores.pending import Pending
from rifl._stores.sqlite.database import Database, pack_ranges
from rifl._stores.sqlite.databases import Databases
from rifl._stores.sqlite.journal_entries import RIDING_ACKNOWLEDGEMENTS, Entry, not_started
from rifl._stores.sqlite.removals import Removals
from rifl.core._serving.client_entry import Attempt, ClientEntry
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import InProgress, LeaseExpired, RiflError


class ClientRows(EmbeddedStore):
    """The part of ``SqliteStore`` that keeps clients durable.

    A client is registered in the store's own file before anything of it is in another one, and
    removed there first. A crash leaves no row of a call whose client has none.
    """

    _databases: Databases
    _main: Database
    _removals: Removals

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        """Decide, as ``EmbeddedStore`` does; of a client that is over once that is durable."""
        replies: Sequence[Any] = super().claim_all(calls, policy)  # type: ignore[assignment]  # at once
        refusal = next((reply for reply in replies if isinstance(reply, LeaseExpired)), None)
        if refusal is None:
            return replies
        later: Any
        try:
            with self._lock:
                later = self._expired(calls[0].client_id, refusal)
        except RiflError as error:
            later = error
        return AllLater([later if isinstance(one, LeaseExpired) else one for one in replies])

    # -- under the lock ----------------------------------------------------------

    def _queue(self, attempt: Attempt, entry: Entry, database: Database) -> Pending:
        self._note_many_acknowledgements()
        client = attempt.entry
        if database.name not in client.registered:
            # In this batch or an earlier one, never in a later.
            database.journal.register(*self._client_row(client))
        return database.journal.submit(entry, awaited=True)

    def _delete(self, attempt: Attempt, database: Database) -> None:
        """Have a row deleted that came after its own acknowledgement."""
        self._note_acknowledgements()
        seq: int = attempt.call.seq  # type: ignore[assignment]
        database.journal.acknowledge(*self._client_row(attempt.entry), [seq])

    def _note_many_acknowledgements(self) -> None:
        """Note those of calls whose rows are to be deleted, once the next commit may take them."""
        if len(self._table.released) >= RIDING_ACKNOWLEDGEMENTS:
            self._note_acknowledgements()

    def _note_acknowledgements(self) -> None:
        databases = self._databases.by_name
        for client, released in self._table.take_released():
            row = self._client_row(client)
            for name in client.registered:
                databases[name].journal.acknowledge(*row, released)

    @staticmethod
    def _client_row(entry: ClientEntry) -> tuple[int, int, bytes]:
        tracker = entry.tracker
        return entry.client_id, tracker.first_incomplete, pack_ranges(tracker.completed_ranges())

    # ------------------------------------------------------------------------------

    def _register(self, client_id: int) -> Pending:
        """Have the row of a client written whose id is to be told when that is durable.

        A retry after a crash then finds a client that is known, and so what is promised for a
        crash holds from its first call on.
        """
        with self._lock:
            # Known here as long as its row may be in the file: see ``_expired``.
            client = self._table.admit(client_id)
            self._main.journal.register(*self._client_row(client))
            registration = Entry.empty(
                failure=not_started, durable=lambda _: self._registered_in_main(client)
            )
            return self._main.journal.submit(registration, awaited=True)

    def _remove(self, client_ids: list[int]) -> None:
        self._removals.remove(client_ids)

    def _expired(self, client_id: int, refusal: LeaseExpired) -> Later:
        """Raise the refusal of a client that is over, or have it raised once that is durable.

        Until then a crash would bring the client back, with a lease: a first attempt that was
        told LEASE_EXPIRED is sent anew under another id, and a late copy of it would run.
        """
        client = self._table.find(client_id)
        if client is not None:
            if client.running:
                raise InProgress(f"client id {client_id} is expired, and calls of it still run")
            # Over by the clock, and not swept yet: an expired lease never comes back.
            self._remove(self._table.drop([client_id]))
        elif not self._removals.under_way(client_id):
            raise refusal
        return self._removals.then_refuse(refusal)

    def _registered_in_main(self, entry: ClientEntry) -> None:
        with self._lock:
            entry.registered.add(self._main.name)
