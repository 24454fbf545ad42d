"""The removal of clients and keys that the store forgets: their rows, in every file."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rifl._stores.pending import Pending
from rifl._stores.sqlite.databases import Databases
from rifl._stores.sqlite.journal_entries import JournalEntry, not_started
from rifl.core._shared.errors import RiflError


class Removals:
    """Deletes rows of clients and keys, from the store's own file first.

    What is only in another file is of a client that nobody knows: it goes at the next start.
    ``lock`` is the store's: it is held where that is said.
    """

    def __init__(self, databases: Databases, lock: threading.Lock) -> None:
        self._databases = databases
        self._lock = lock
        # Clients that are forgotten, and whose rows the file may have yet.
        self._clients: set[int] = set()

    def remove(self, client_ids: list[int]) -> None:
        """Remove clients with all their rows, soon; called with the lock held."""
        others = self._databases.others()
        self._clients.update(client_ids)

        def removed() -> None:
            with self._lock:
                self._clients.difference_update(client_ids)
            # Elsewhere only now: a crash in between must not leave a client that is
            # known without its records. What it leaves goes at the next start.
            for database in others:
                database.journal.drop(client_ids)

        self._databases.main.journal.drop(client_ids, removed)

    def under_way(self, client_id: int) -> bool:
        """Whether a crash may yet bring the client back; called with the lock held."""
        return client_id in self._clients

    def then_refuse(self, refusal: RiflError) -> Pending:
        """Return what raises the refusal once all that is being removed is so durably."""
        carried = JournalEntry.empty(
            failure=not_started, durable=lambda carried: carried.fail(refusal)
        )
        return self._databases.main.journal.submit(carried, awaited=True)

    def delete_key(
        self, identity: tuple[int, bytes], deleted: Callable[[tuple[int, bytes]], None]
    ) -> None:
        """Delete a keyed call's row; ``deleted`` is told when it is in no file any more."""
        databases = list(self._databases)
        left = len(databases)

        def gone(_: JournalEntry) -> None:
            nonlocal left
            with self._lock:
                left -= 1
                last = not left
            if last:
                deleted(identity)

        for database in databases:
            entry = JournalEntry(
                JournalEntry.DELETE, identity, patient=True, failure=not_started, durable=gone
            )
            database.journal.submit(entry)

    def delete_namespace(self, client_id: int) -> None:
        """Delete the row of a peer's namespace, unless it has a key again by then."""
        for database in self._databases:
            entry = JournalEntry(
                JournalEntry.NAMESPACE, (client_id,), patient=True, failure=not_started
            )
            database.journal.submit(entry)
