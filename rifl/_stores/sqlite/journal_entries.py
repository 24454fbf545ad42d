"""Entries of the journal: what one call makes durable, and what rides along (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rifl._stores.pending import Pending
from rifl._stores.sqlite.statements import MOST_AT_ONCE, Statement
from rifl.core._shared.errors import RecordPending, StoreUnavailable

_PATIENCE_S = 0.5
# Acknowledgements ride along with other writes that take a transaction, so many with
# any write.
_RIDING_ACKNOWLEDGEMENTS = 64

OWNER = "SELECT value FROM rifl_meta WHERE name='opening'"
_INSERT, _INSERT_ALONE = (
    "INSERT INTO rifl_call VALUES",
    "INSERT INTO rifl_call SELECT * FROM (VALUES",
)
# The last parameters of these two are the time and the number of the commit; of a client's
# row, the time.
_INTENT_ROW, _RECORD_ROW = "(?, ?, ?, ?, NULL, ?, ?)", "(?, ?, ?, ?, ?, ?, ?)"
_UNLESS_RECORDED = (
    "ON CONFLICT DO UPDATE SET "
    # A request stream's intent came before its fingerprint.
    "record=excluded.record, fingerprint=excluded.fingerprint, "
    "changed_at_unix_s=excluded.changed_at_unix_s, commit_number=excluded.commit_number "
    # What stands stays.
    "WHERE rifl_call.record IS NULL"
)
_INTENT = Statement(_INSERT, _INTENT_ROW)
_RECORD = Statement(_INSERT, _RECORD_ROW, _UNLESS_RECORDED)
# Each a whole transaction: whose file it is, the rows, and the fsync in one step. Every
# step gives the interpreter's lock up and has to get it back.
ALONE = {
    _INTENT: Statement(_INSERT_ALONE, _INTENT_ROW, f") WHERE ({OWNER})=?"),
    _RECORD: Statement(_INSERT_ALONE, _RECORD_ROW, f") WHERE ({OWNER})=? {_UNLESS_RECORDED}"),
}
# Not a list of row values: SQLite scans the table for these.
_DELETE = Statement("DELETE FROM rifl_call WHERE", "(client_id=? AND identity=?)", joint=" OR ")
# Deletes the row of a namespace whose last key was deleted, unless it has another by now.
_NAMESPACE = Statement(
    "DELETE FROM rifl_client WHERE",
    "(client_id=? AND NOT EXISTS "
    "(SELECT 1 FROM rifl_call WHERE rifl_call.client_id=rifl_client.client_id))",
    joint=" OR ",
)
CLIENT = Statement(
    "INSERT INTO rifl_client VALUES",
    "(?, ?, ?, ?)",
    "ON CONFLICT DO UPDATE SET "
    "first_incomplete=excluded.first_incomplete, completed=excluded.completed",
)
# An empty transaction would succeed on a full disk too.
PROBE = "UPDATE rifl_meta SET value=value+1 WHERE name='probes'"
# Nothing but that: what a failed commit may have left in the file's log is written over.
_OVERWRITE = Statement(PROBE, "")
DROP_CALLS = "DELETE FROM rifl_call WHERE client_id=?"
DROP_CLIENT = "DELETE FROM rifl_client WHERE client_id=?"
LIVED = "UPDATE rifl_meta SET value=? WHERE name='lived_s'"

# Rows that are moved conditionally, each entry's all or none: (key, expected, value).
_MOVE = Statement("", "")

# No client has this id: a deletion of it deletes nothing.
_NO_CALL = (0, 0)


class Entry:
    """What one call, or one batch, makes durable: all of it in one transaction.

    ``statement`` is one of the class's; ``rows`` its parameters. ``patient``
    entries are retried until they are durable, since something has happened that
    must not be forgotten; the others fail at once. ``durable`` is called, in the
    committer's thread and outside any lock, when it is durable; ``pending``
    succeeds after that, or fails with ``failure(error)`` at the first failed try. A ``MOVE``'s
    result is whether its rows were as expected.
    Whoever blocks for it may become the committer.
    """

    INTENT, RECORD, DELETE, OVERWRITE = _INTENT, _RECORD, _DELETE, _OVERWRITE
    NAMESPACE, MOVE = _NAMESPACE, _MOVE
    __slots__ = ("alone", "durable", "failure", "patient", "pending", "rows", "statement")

    def __init__(
        self,
        statement: Statement,
        *rows: tuple[Any, ...],
        patient: bool,
        failure: Callable[[Exception], Exception],
        durable: Callable[[], None] | None = None,
    ) -> None:
        self.statement = statement
        self.rows = rows
        self.patient = patient
        self.failure = failure
        self.durable = durable
        self.pending = _Awaited()
        # Whether it can be a transaction of its own in one step.
        self.alone = statement in ALONE and len(rows) <= MOST_AT_ONCE

    @classmethod
    def empty(
        cls, *, failure: Callable[[Exception], Exception], durable: Callable[[], None]
    ) -> Entry:
        """Make an entry that changes nothing: it waits for what its commit carries along."""
        return cls(_DELETE, _NO_CALL, patient=False, failure=failure, durable=durable)


class Committer(Protocol):
    """The journal, as those who wait for their entries see it."""

    def lead(self) -> None:
        """Commit in the thread that calls this, until its entry is in."""

    def give_up(self, pending: Pending) -> None:
        """Nobody waits for this entry any more."""

    def call(self) -> None:
        """Have somebody commit."""


class _Awaited(Pending):
    """An entry's end. Who waits for it sees to it that somebody commits."""

    __slots__ = ("home", "journal")

    def __init__(self) -> None:
        super().__init__()
        # The journal that has its entry.
        self.home: Committer | None = None
        # Set where its journal has yet to be told that somebody waits.
        self.journal: Committer | None = None

    def wait(self) -> Any:
        if self.journal is not None and not self._done:
            self.journal.lead()
        return super().wait()

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> Any:
        if self.journal is not None and not self._done:
            self.journal.lead()
        # Most commits take less than this, and nobody asks for a deadline.
        if not (self._done or self.wait_for(_PATIENCE_S)):
            while (left_s := remaining_s()) is None or left_s > 0.0:
                if self.wait_for(_PATIENCE_S if left_s is None else min(left_s, _PATIENCE_S)):
                    break
            else:
                if self.home is not None:
                    self.home.give_up(self)
        return super().wait()

    def add_callback(self, callback: Callable[[Pending], object]) -> None:
        super().add_callback(callback)
        if self.journal is not None and not self._done:
            self.journal.call()


@dataclass(slots=True)
class Acknowledged:
    """Client rows to write, and the rows of acknowledged calls to delete with them."""

    clients: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    calls: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int]] = field(default_factory=list)
    # What to do when all of this is durable.
    after: list[Callable[[], None]] = field(default_factory=list)
    # A client's first record must not be durable before the client is.
    registering: bool = False
    # How long the store has lived, in seconds; None: not to be written now.
    lived_s: int | None = None
    # Calls whose outcome is not known.
    unknown: list[tuple[Any, ...]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.clients or self.calls or self.dropped or self.unknown) or (
            self.lived_s is not None
        )

    def is_due(self) -> bool:
        """Whether it has to go with the next commit, whatever that is."""
        return (
            self.registering
            or bool(self.dropped or self.unknown)
            or self.lived_s is not None
            or len(self.calls) >= _RIDING_ACKNOWLEDGEMENTS
        )

    def put_before(self, earlier: Acknowledged) -> None:
        """Have what could not be written go with what was noted since."""
        self.clients = {**earlier.clients, **self.clients}
        self.calls = earlier.calls + self.calls
        self.dropped = earlier.dropped + self.dropped
        self.after = earlier.after + self.after
        self.registering = earlier.registering or self.registering
        self.unknown = earlier.unknown + self.unknown
        self.lived_s = earlier.lived_s if self.lived_s is None else self.lived_s


# Rides along with most commits. Nobody writes to it.
NOTHING = Acknowledged()


def not_started(error: Exception) -> StoreUnavailable:
    """Return what a call is refused with whose intent could not be written."""
    return StoreUnavailable(f"the store cannot be written: {error}")


def record_pending(error: Exception) -> RecordPending:
    """Return what a call is told whose record is being retried."""
    return RecordPending(f"the call ran, but its record is not durable yet: {error}")
