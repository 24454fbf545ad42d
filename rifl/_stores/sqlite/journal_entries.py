"""Entries of the journal: what one call makes durable, and what rides along (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Protocol

from rifl._stores.pending import Pending
from rifl._stores.sqlite.statements import RepeatedStatement
from rifl.core._shared.errors import RecordPending, StoreUnavailable

_PATIENCE_S = 0.5
# Acknowledgements ride along with other writes that take a transaction, so many with
# any write, and these get a commit of their own.
RIDING_ACKNOWLEDGEMENTS = 64
_FLUSH_ACKNOWLEDGEMENTS = 256

OWNER = "SELECT value FROM rifl_meta WHERE name='opening'"
_INSERT = "INSERT INTO rifl_call VALUES"
# Each row of the first two has the time and the number of the commit; of a client's row, the time.
_INTENT_ROW, _RECORD_ROW = "(?, ?, ?, ?, ?, NULL, ?, ?)", "(?, ?, ?, ?, ?, ?, ?, ?)"
_UNLESS_RECORDED = (
    "ON CONFLICT DO UPDATE SET "
    # A request stream's intent came before its fingerprint.
    "record=excluded.record, fingerprint=excluded.fingerprint, until_s=excluded.until_s, "
    "changed_at_unix_s=excluded.changed_at_unix_s, commit_number=excluded.commit_number "
    # What stands stays.
    "WHERE rifl_call.record IS NULL"
)
_INTENT = RepeatedStatement(_INSERT, _INTENT_ROW)
_RECORD = RepeatedStatement(_INSERT, _RECORD_ROW, _UNLESS_RECORDED)
# Each a whole transaction: whose file it is, the rows, and the fsync in one step. Every
# step gives the interpreter's lock up and has to get it back. Before the rows come the time and
# the number of the commit.
ALONE = {
    _INTENT: RepeatedStatement(
        "INSERT INTO rifl_call SELECT *, NULL, ?, ? FROM (VALUES",
        "(?, ?, ?, ?, ?)",
        f") WHERE ({OWNER})=?",
    ),
    _RECORD: RepeatedStatement(
        "INSERT INTO rifl_call SELECT *, ?, ? FROM (VALUES",
        "(?, ?, ?, ?, ?, ?)",
        f") WHERE ({OWNER})=? {_UNLESS_RECORDED}",
    ),
}
# Not a list of row values: SQLite scans the table for these.
_DELETE = RepeatedStatement(
    "DELETE FROM rifl_call WHERE", "(client_id=? AND identity=?)", joint=" OR "
)
# Deletes the row of a namespace whose last key was deleted, unless it has another by now.
_NAMESPACE = RepeatedStatement(
    "DELETE FROM rifl_client WHERE",
    "(client_id=? AND NOT EXISTS "
    "(SELECT 1 FROM rifl_call WHERE rifl_call.client_id=rifl_client.client_id))",
    joint=" OR ",
)
CLIENT = RepeatedStatement(
    "INSERT INTO rifl_client VALUES",
    "(?, ?, ?, ?)",
    "ON CONFLICT DO UPDATE SET "
    "first_incomplete=excluded.first_incomplete, completed=excluded.completed",
)
# An empty transaction would succeed on a full disk too.
PROBE = "UPDATE rifl_meta SET value=value+1 WHERE name='probes'"
# Nothing but that: what a failed commit may have left in the file's log is written over.
_OVERWRITE = RepeatedStatement(PROBE, "")
# First, so that the deletion of each of its calls finds nothing to count.
DROP_KEYS = "DELETE FROM rifl_keys WHERE client_id=?"
DROP_CALLS = "DELETE FROM rifl_call WHERE client_id=?"
DROP_CLIENT = "DELETE FROM rifl_client WHERE client_id=?"
LEASE = "INSERT INTO rifl_lease VALUES (?, ?) ON CONFLICT DO NOTHING"
DROP_LEASE = "DELETE FROM rifl_lease WHERE client_id=?"
LIVED = "UPDATE rifl_meta SET value=? WHERE name='lived_s'"

# Rows that are moved conditionally, each entry's all or none: (key, expected, value).
_MOVE = RepeatedStatement("", "")

# Of keyed calls whose retention has passed when so much is lived through, at most so many.
DUE = "SELECT client_id, identity FROM rifl_call WHERE until_s > 0 AND until_s <= ? LIMIT ?"
_EXPIRE = RepeatedStatement("", "")

# No client has this id: a deletion of it deletes nothing.
_NO_CALL = (0, 0)


class Committer(Protocol):
    """The journal, as those who wait for their entries see it."""

    def lead(self) -> None:
        """Commit in the thread that calls this, until its entry is in."""

    def give_up(self, entry: JournalEntry) -> None:
        """Give up an entry: no caller waits for it any more."""

    def call(self) -> None:
        """Have a thread commit."""


class JournalEntry(Pending):
    """What one call, or one batch, makes durable: all of it in one transaction.

    ``statement`` is one of the class's; ``rows`` its parameters. ``patient``
    entries are retried until they are durable, since something has happened that
    must not be forgotten; the others fail at once. ``durable`` is called with it, in the
    committer's thread and outside any lock, when it is durable; it
    succeeds after that, or fails with ``failure(error)`` at the first failed try. A ``MOVE``'s
    result is whether its rows were as expected; an ``EXPIRE``'s, what it deleted.
    A caller that waits for it makes a thread commit; one that blocks may commit itself.
    """

    INTENT, RECORD, DELETE, OVERWRITE = _INTENT, _RECORD, _DELETE, _OVERWRITE
    NAMESPACE, MOVE, EXPIRE = _NAMESPACE, _MOVE, _EXPIRE
    # The journal that has it; and the same if that has yet to be told that a caller waits.
    home: Committer | None = None
    journal: Committer | None = None
    # Whether the callers have stopped waiting for it.
    given_up = False

    def __init__(
        self,
        statement: RepeatedStatement,
        *rows: tuple[Any, ...],
        patient: bool,
        failure: Callable[[Exception], Exception],
        durable: Callable[[JournalEntry], None] | None = None,
    ) -> None:
        Pending.__init__(self)
        self.statement = statement
        self.rows = rows
        self.patient = patient
        self.failure = failure
        self.durable = durable

    @classmethod
    def empty(
        cls, *, failure: Callable[[Exception], Exception], durable: Callable[[JournalEntry], None]
    ) -> JournalEntry:
        """Make an entry that changes nothing: it waits for what its commit carries along."""
        return cls(_DELETE, _NO_CALL, patient=False, failure=failure, durable=durable)

    def wait(self) -> Any:
        """Block until it is durable, as ``Pending``; may commit."""
        if self.journal is not None and not self.done:
            self.journal.lead()
        return Pending.wait(self)

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> Any:
        """Do the same, and give it up at the call's deadline."""
        if self.journal is not None and not self.done:
            self.journal.lead()
        # Most commits take less than this, and then no deadline is asked for.
        if not (self.done or self.wait_for(_PATIENCE_S)):
            while (left_s := remaining_s()) is None or left_s > 0.0:
                if self.wait_for(_PATIENCE_S if left_s is None else min(left_s, _PATIENCE_S)):
                    break
            else:
                if self.home is not None:
                    self.home.give_up(self)
        return Pending.wait(self)

    def add_callback(self, callback: Callable[[Pending], object]) -> None:
        """Call back as ``Pending``, and have a thread commit."""
        super().add_callback(callback)
        if self.journal is not None and not self.done:
            self.journal.call()


@dataclass(slots=True)
class Acknowledged:
    """Client rows to write, and the rows of acknowledged calls to delete with them."""

    clients: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    # Whom the leases of new ones count for.
    holders: list[tuple[int, bytes]] = field(default_factory=list)
    calls: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int]] = field(default_factory=list)
    # What to do when all of this is durable.
    after: list[Callable[[], None]] = field(default_factory=list)
    # Whether it has to go with the next commit, whatever that is.
    due: bool = False
    # Whether there must be a commit for it.
    urgent: bool = False
    # How long the store has lived, in seconds; None: not to be written now.
    lived_s: int | None = None
    # Calls whose outcome is not known.
    unknown: list[tuple[Any, ...]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.clients or self.calls or self.dropped or self.unknown) or (
            self.lived_s is not None
        )

    def register(
        self, client_id: int, first_incomplete: int, completed: bytes, holder: bytes = b""
    ) -> None:
        """Have a client's row: its first record must not be durable before the client is."""
        self.clients[client_id] = (first_incomplete, completed)
        if holder:
            self.holders.append((client_id, holder))
        self.due = True

    def acknowledge(
        self, client_id: int, first_incomplete: int, completed: bytes, released: list[int]
    ) -> None:
        """Have a client's row, and the rows of its acknowledged calls deleted."""
        self.clients[client_id] = (first_incomplete, completed)
        self.calls.extend(zip(repeat(client_id), released, strict=False))
        self._count()

    def remember(self, unknown: tuple[Any, ...]) -> None:
        """Have the row of a call whose outcome is not known."""
        self.unknown.append(unknown)
        self.due = True

    def live(self, lived_s: int) -> None:
        """Have how long the store has lived."""
        self.lived_s = lived_s
        self.due = self.urgent = True

    def drop(self, client_ids: list[int], after: Callable[[], None] | None) -> None:
        """Have clients removed, and be told."""
        self.dropped.extend((client_id,) for client_id in client_ids)
        if after is not None:
            self.after.append(after)
        self.due = self.urgent = True

    def put_before(self, earlier: Acknowledged) -> None:
        """Have what could not be written go with what was noted since."""
        self.clients = {**earlier.clients, **self.clients}
        self.holders = earlier.holders + self.holders
        self.calls = earlier.calls + self.calls
        self.dropped = earlier.dropped + self.dropped
        self.after = earlier.after + self.after
        self.unknown = earlier.unknown + self.unknown
        self.lived_s = earlier.lived_s if self.lived_s is None else self.lived_s
        self.due = earlier.due or self.due
        self.urgent = earlier.urgent or self.urgent
        self._count()

    def _count(self) -> None:
        self.due = self.due or len(self.calls) >= RIDING_ACKNOWLEDGEMENTS
        self.urgent = self.urgent or len(self.calls) >= _FLUSH_ACKNOWLEDGEMENTS


# Rides along with most commits. It is never written to.
NOTHING = Acknowledged()


def not_started(error: Exception) -> StoreUnavailable:
    """Return what a call is refused with whose intent could not be written."""
    return StoreUnavailable(f"the store cannot be written: {error}")


def record_pending(error: Exception) -> RecordPending:
    """Return what a call is told whose record is being retried."""
    return RecordPending(f"the call ran, but its record is not durable yet: {error}")
