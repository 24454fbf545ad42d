"""An attempt over SQLite: its intent, and its part in transactions."""

from __future__ import annotations

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord


class SqliteAttempt(Attempt):
    """An attempt, its intent, and its part in transactions.

    ``intended``: its intent is durable. ``shared``: what tells how a transaction ended
    that it shared with other calls, None if there was none. ``sharing``: a block of a
    shared transaction was asked for and has not ended. ``sealed``: the handler has
    ended, and what a thread of its still records must not be committed. ``unsynced``: a
    commit of what is ``recorded`` does not wait for the disk. ``stored``: what is ``recorded``,
    as its row has it. ``found``: what the look-up of its key found, the fingerprint and the record,
    by which the attempt ended.
    """

    intended = False
    shared: Later | None = None
    sharing = False
    sealed = False
    unsynced = False
    stored: bytes | None = None
    found: tuple[bytes | None, CompletionRecord] | None = None

    @property
    def undone(self) -> bool:  # type: ignore[override]  # only read
        """A block of a shared transaction that left no record was rolled back."""
        return self.shared is not None


def of_sqlite(attempt: Attempt) -> SqliteAttempt:
    """Return an attempt as what it is; one of another store is a defect."""
    if not isinstance(attempt, SqliteAttempt):
        raise InvariantViolated("an attempt of another store")
    return attempt


def is_stale(attempt: Attempt) -> bool:
    """Whether the client acknowledged the call while it ran."""
    seq = attempt.call.seq
    return seq is not None and attempt.entry.tracker.is_stale(seq)
