"""The SQLite store: decisions in memory, records on disk before the answer leaves."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from _rifl_ground.counting import Counts, by_sqlite, is_noted
from _rifl_ground.refusals import Outcome
from _rifl_ground.sqlite.failures import Stopped
from rifl._stores.base import LOCK_TIMEOUT_S, UNRESOLVED_EVERY_S
from rifl._stores.codec import RecordCodec
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.errors import WrongDatabase
from rifl._stores.pending import Pending
from rifl._stores.rows import Move, RowCall, SoleProcess
from rifl._stores.sqlite.attempt import SqliteAttempt, is_stale, of_sqlite
from rifl._stores.sqlite.database import Database, LookedUp, pack_ranges
from rifl._stores.sqlite.databases import Databases
from rifl._stores.sqlite.journal_entries import (
    RIDING_ACKNOWLEDGEMENTS,
    JournalEntry,
    not_started,
    record_pending,
)
from rifl._stores.sqlite.key_lookup import BesideLookup, KeyLookup, LookupsBeside, MergedLookups
from rifl._stores.sqlite.known_keys import AT_OPENING, KnownKeys
from rifl._stores.sqlite.lease_storage import SqliteLeaseStorage
from rifl._stores.sqlite.medium import FILES, Medium
from rifl._stores.sqlite.record_row import MovedRows, RecordRow
from rifl._stores.sqlite.recovery import Recovery
from rifl._stores.sqlite.schema import opening_error
from rifl._stores.sqlite.shared_transactions import BlockTurn
from rifl._stores.sqlite.transactions import SqliteTransactions
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt, ClientEntry
from rifl.core._serving.client_table import match_payload
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.leases import Leases
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    InProgress,
    LeaseExpired,
    RecordPending,
    RiflError,
    StaleRpc,
    StoreUnavailable,
)
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord

_PLAIN, _ATOMIC, _UNKNOWN = Kind.PLAIN, Kind.ATOMIC, Outcome.UNKNOWN
_COMPLETED = Verdict.COMPLETED


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
        entry = JournalEntry(JournalEntry.MOVE, *moves, patient=False, failure=not_started)
        return self._database.journal.submit(entry, awaited=True)

    def begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        """Begin a run."""
        return self._store.begin_beside(call, policy)

    def judge(self, error: BaseException) -> Counts:
        """Say whether an error is the handler's; in doubt of another connection's."""
        if not isinstance(error, sqlite3.Error):
            return True
        return by_sqlite(error) if is_noted(error) else None

    def end(self, attempt: Attempt) -> None:
        """End a run."""
        self._store.end_beside(attempt)


# Of those whose retention has passed: in one commit, and in commits of one sweep.
_KEYS_AT_ONCE = 1_000
_MOST_PER_SWEEP = 10_000
# How much of the time that was lived through a crash may forget: records stay for that longer.
_UNNOTED_S = 60


class Removals:
    """Deletes rows of clients and keys, from the store's own file first.

    Rows that are only in another file have an unknown client: the next start deletes them.
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

    def expire(self, lived_s: float) -> set[int]:
        """Delete keyed calls whose retention has passed, and block for that; whose some were.

        A key is looked up in its file, so no other part has to learn of it. Raises
        ``StoreUnavailable`` and ``sqlite3.Error``.
        """
        clients: set[int] = set()
        for database in self._databases:
            for _ in range(_MOST_PER_SWEEP // _KEYS_AT_ONCE):
                until_s = database.next_until_s()
                if until_s is None or until_s > lived_s:
                    break
                entry = JournalEntry(
                    JournalEntry.EXPIRE,
                    (lived_s, _KEYS_AT_ONCE),
                    patient=False,
                    failure=not_started,
                )
                deleted = database.journal.submit(entry, awaited=True).wait()
                clients.update(client_id for client_id, _ in deleted)
        return clients

    def delete_namespace(self, client_id: int) -> None:
        """Delete the row of a peer's namespace, unless it has a key again by then."""
        for database in self._databases:
            entry = JournalEntry(
                JournalEntry.NAMESPACE, (client_id,), patient=True, failure=not_started
            )
            database.journal.submit(entry)


class SqliteStore(EmbeddedStore):
    """One process, one file, WAL, a sync with each commit, group commit.

    A crash leaves: every answered call's record; an intent for every ``plain``
    call that was running, which the next start turns into a lasting
    OUTCOME_UNKNOWN; for ``atomic`` calls what their own transactions committed;
    for ``idempotent`` ones nothing. Acknowledgements not yet written are
    repeated by the client's next header.

    Atomic methods may name other SQLite databases; each has rifl's tables and a
    journal. A client is registered in the store's own file before anything of it
    is in another, and removed there first: what is only elsewhere is forgotten at
    the next start, and no row of a call is there whose client has none. Of a batch all
    intents are there or none, all records or none.
    """

    transactions: SqliteTransactions
    _attempt_class = SqliteAttempt
    _keeps_records = False
    _has_rows = True

    def __init__(
        self,
        url: str,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        codec: RecordCodec | None = None,
        wall_clock: Callable[[], float] = time.time,
        medium: Medium = FILES,
    ) -> None:
        super().__init__()
        self._codec = codec or RecordCodec()
        self._wall_clock = wall_clock
        self._databases = Databases(url, lock_timeout_s, self._codec, medium)
        self._main = self._databases.main
        self._failing: dict[str, Exception] = {}
        self._bound = False
        self._any_idempotent = False
        # Keys that have a record, as the last sweep counted them.
        self._kept_keys = 0
        self._unresolved_at = -math.inf
        self._known_keys = KnownKeys(self._databases, self._lock, lambda: self._table.running())
        self._may_have = self._known_keys.add
        self.in_background = medium.in_background
        self._lookups = LookupsBeside(self.look_up, medium.in_background)
        self.free_bytes = medium.free_bytes(self._main.path)
        self._removals = Removals(self._databases, self._lock)
        self.leases = SqliteLeaseStorage(
            self._main.path,
            medium.connect,
            self._main.guard,
            self._register,
            self._main.turn,
            self.acknowledge,
        )
        self.transactions = self.shared_blocks = SqliteTransactions(self._databases.of, self._row)
        self.rows = SqliteRows(self, self._main)

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        bounds: Bounds,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Read back the trackers and give every open intent its verdict."""
        super().bind(leases, policies, clock=clock, bounds=bounds, key_bounds=key_bounds)
        self._any_idempotent = any(policy.kind is Kind.IDEMPOTENT for policy in policies)
        self._databases.open(policies)
        try:
            self._lived_s = self._main.lived(self._wall_clock())
            self._live_on(self._lived_s)
            # From now on.
            self._table.live(self._clock())
            self._main.name_others([other.name for other in self._databases.others()])
            recovery = Recovery(
                self._table,
                policies,
                now=self._clock(),
            )
            recovery.recover(self._databases)
            recovery.recover_sessions(self.leases.load_sessions())
            self._kept_keys = self._databases.keys().total()
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            raise opening_error(self._main.path, error) from error
        self._bound = True
        self._databases.start(
            self._health, None if self.observer is None else self.observer.committed
        )
        with contextlib.suppress(StoreUnavailable):
            self._known_keys.read(self._kept_keys, AT_OPENING)

    def start(self, attempt: Attempt) -> Pending | None:
        """Make a plain call's intent durable; register a session where need be.

        Its row says that the session was used: one that was not is forgotten with its name.
        Clients have theirs since they were granted.
        """
        if attempt.policy.kind is _PLAIN:
            call = attempt.call
            row = _intent_row(call)
            return self._submit(
                attempt,
                JournalEntry(
                    JournalEntry.INTENT,
                    row,
                    patient=False,
                    failure=not_started,
                    durable=partial(self._intended, attempt),
                ),
                self._main,
            )
        entry = attempt.entry
        if self._main.name in entry.registered:
            return None
        # Peers are known without, by their names.
        if self._databases.of(attempt) is not self._main or not is_namespace(entry.client_id):
            # The commit carries the row along.
            registration = JournalEntry.empty(
                failure=not_started, durable=lambda _: self._registered_in_main(entry)
            )
            return self._submit(attempt, registration, self._main)
        return None

    def _may_have_run(self, entry: ClientEntry, identity: int | bytes) -> bool:
        """Whether a run of an earlier incarnation can have left no trace.

        An idempotent method's has no intent. The method of a call to be
        resolved is unknown. A namespace is known without a row.
        """
        known = entry.recovered or (self._main.incarnation > 1 and is_namespace(entry.client_id))
        return (known and self._any_idempotent) or super()._may_have_run(entry, identity)

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Pending | None:
        """Make the record durable, then settle."""
        call = attempt.call
        database = self._databases.of(attempt)
        attempt.owed = True
        kept, data = self._codec.of_a_run(record, call)
        attempt.size = len(data)
        until_s = None if call.key is None else self._until_s(attempt)
        row = (call.client_id, call.identity, call.fingerprint, call.method, until_s, data)
        if kept.outcome is _UNKNOWN:
            database.journal.remember(call.client_id, call.identity, call.method)
        entry = JournalEntry(
            JournalEntry.RECORD,
            row,
            patient=True,
            failure=record_pending,
            durable=partial(self._recorded, attempt, kept, database),
        )
        if kept is not record:
            entry.result = kept
        with self._lock:
            if not is_stale(attempt):
                return self._queue(attempt, entry, database)
            # Acknowledged while it ran: no record is wanted. But that must be durable before
            # this answer leaves, or a late copy looks new after a restart, and is answered anew.
            if of_sqlite(attempt).intended:
                database = self._main
            self._delete(attempt, database)
            acknowledged = JournalEntry(
                JournalEntry.DELETE,
                (call.client_id, call.identity),
                patient=True,
                failure=record_pending,
                durable=partial(self._recorded, attempt, record, database),
            )
            return self._queue(attempt, acknowledged, database)

    # -- many calls at once: see ``BatchRecords`` --------------------------------------

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        """Decide, as ``EmbeddedStore`` does; of a client that has ended once that is durable."""
        replies: Sequence[Any] = super().claim_all(calls, policy)  # type: ignore[assignment]  # at once
        if any(isinstance(reply, KeyLookup | BesideLookup) for reply in replies):
            return MergedLookups(self, replies)
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

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Make the intents of plain calls durable, in one commit."""
        first = attempts[0]
        if first.policy.kind is not _PLAIN:
            # Registers their client where need be, which is the same one.
            registered = self.start(first)
            return [None] * len(attempts) if registered is None else _for_all(registered, attempts)
        rows = [_intent_row(attempt.call) for attempt in attempts]

        def intended(_: JournalEntry) -> None:
            for attempt in attempts:
                of_sqlite(attempt).intended = True
            with self._lock:
                first.entry.registered.add(self._main.name)

        entry = JournalEntry(
            JournalEntry.INTENT, *rows, patient=False, failure=not_started, durable=intended
        )
        with self._lock:
            return _for_all(self._queue(first, entry, self._main), attempts)

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        """Make the records durable in one commit, then settle."""
        first = attempts[0]
        if first.policy.kind is _ATOMIC:
            # A transaction of a handler's may have left another record for each.
            return AllLater([self.finish(*pair) for pair in zip(attempts, records, strict=True)])
        of_a_run = self._codec.of_a_run
        kept: list[CompletionRecord] = []
        rows: list[tuple[Any, ...]] = []
        for attempt, record in zip(attempts, records, strict=True):
            call = attempt.call
            attempt.owed = True
            until_s = None if call.key is None else self._until_s(attempt)
            stands, data = of_a_run(record, call)
            attempt.size = len(data)
            kept.append(stands)
            rows.append(
                (call.client_id, call.identity, call.fingerprint, call.method, until_s, data)
            )
        database = self._databases.of(first)

        def recorded(_: JournalEntry) -> None:
            with self._lock:
                first.entry.registered.add(database.name)
            self._settle_all(attempts, kept)

        entry = JournalEntry(
            JournalEntry.RECORD, *rows, patient=True, failure=record_pending, durable=recorded
        )
        entry.result = [
            None if stands is record else stands
            for stands, record in zip(kept, records, strict=True)
        ]
        with self._lock:
            if not any(is_stale(attempt) for attempt in attempts):
                return self._queue(first, entry, database)
        # Acknowledged while they ran: rare, and no record is wanted of these.
        return AllLater([self.finish(*pair) for pair in zip(attempts, records, strict=True)])

    # -- keys, which are in the database: see ``key_lookup`` ----------------------------

    def _look_up(self, attempt: Attempt, call: Call, policy: MethodPolicy) -> Later:
        """Have a key looked up, or wait for who does; called with the lock held."""
        mine = of_sqlite(attempt)
        return (
            KeyLookup(self, (mine,))
            if mine.call is call
            else BesideLookup(self, mine, call, policy)
        )

    def look_up_beside(self, attempts: Sequence[SqliteAttempt]) -> Pending:
        """Do the same as ``look_up`` beside the event loop."""
        # A method, as a forked child is refused those: there is no thread there that would do it.
        return self._lookups.begin(attempts)

    def look_up(self, attempts: Sequence[SqliteAttempt]) -> Replies:
        """Read keys that are claimed, and decide: see ``ClientTable``."""
        try:
            rows = self._databases.look_up([attempt.call for attempt in attempts])
            found = [
                None if row.record is None else self._found(attempt.call, row, row.record)
                for attempt, row in zip(attempts, rows, strict=True)
            ]
        except BaseException as error:
            self._settle_all(attempts, [None] * len(attempts))
            if isinstance(error, RiflError):
                # A new one for each: what is raised again and again keeps its tracebacks.
                return [type(error)(*error.args) for _ in attempts]
            raise
        now = self._clock()
        replies: list[Any] = []
        waiters: list[Callable[[], None]] = []
        with self._lock:
            for attempt, row, each in zip(attempts, rows, found, strict=True):
                if each is None:
                    reply, woken = self._claim_sought(attempt, row, now)
                else:
                    woken = self._settle_one(attempt, None, now)
                    reply = each
                    if not isinstance(each, Exception):
                        attempt.found = each
                        reply = Decision(_COMPLETED, None, each[1], each[0] is not None)
                replies.append(reply)
                waiters.extend(woken)
        for wake in waiters:
            wake()
        return replies

    def _found(
        self, call: Call, row: LookedUp, record: bytes
    ) -> tuple[bytes | None, CompletionRecord] | Exception:
        """Return what a row says of a call: its record, or what it is refused with."""
        try:
            match_payload(call, row.fingerprint)
            return row.fingerprint, self._codec.from_bytes(record, call)
        except ValueError as error:
            return RecordPending(f"the record of {call.rpc_id} cannot be read: {error}")
        except Exception as error:  # noqa: BLE001 - its call's; the others go on
            return error

    def _claim_sought(
        self, attempt: SqliteAttempt, row: LookedUp, now: float
    ) -> tuple[Any, Sequence[Callable[[], None]]]:
        """Claim a call that is new, with the lock held; the reply, and whom to wake."""
        try:
            decision = self._table.claim_sought(attempt, (row.keys, row.bytes), now)
        except RiflError as refusal:
            self._of_the_key(refusal, attempt.call)
            reply: Any = refusal
            woken = self._settle_one(attempt, None, now)
            if isinstance(refusal, LeaseExpired):
                try:
                    reply = self._expired(attempt.call.client_id, refusal)
                except RiflError as error:
                    reply = error
            return reply, woken
        except InvariantViolated as violation:
            self._broken(violation)
            # The call's; the others go on.
            return violation, ()
        woken, attempt.waiters = attempt.waiters, ()
        return decision, woken

    def looked_up(self, attempt: SqliteAttempt) -> Pending:
        """Return what is done when the attempt's key was looked up."""
        over = Pending()
        with self._lock:
            if attempt.sought and not attempt.ended:
                attempt.waiters = [*attempt.waiters, over.succeed]
                return over
        over.succeed()
        return over

    # -- what handlers' own transactions left ------------------------------------------

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
        # To be on the disk before the answer leaves: this commit waits for what came before
        # it. Or it was rolled back; or its fsync failed, and then it is in the file's log,
        # which only the next start reads: this commit is written over it. Or another thread
        # commits it just now, as when a coroutine was cancelled: this commit comes after.
        call = attempt.call

        def look_again(entry: JournalEntry) -> None:
            entry.result = database.read(call)

        entry = JournalEntry(
            JournalEntry.OVERWRITE,
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
        if attempt.policy.kind is not _ATOMIC:
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
        data = self._codec.to_bytes(record, call)
        attempt.stored = data
        attempt.size = len(data)
        until_s = None if call.key is None else self._until_s(attempt)
        row = (call.client_id, call.identity, call.fingerprint, call.method, until_s, data)
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

    def _until_s(self, attempt: Attempt) -> float | None:
        """Return when the retention of a keyed call ends that completes now."""
        retention_s = attempt.policy.retention_s
        return self._table.kept_until(attempt.call.client_id, retention_s, self._clock())

    # ------------------------------------------------------------------------------

    def abandon(self, attempt: Attempt) -> Pending | None:
        """Remove the intent, if there is one, then make the call new again."""
        if not of_sqlite(attempt).intended:
            self._settle(attempt, None)
            return None
        attempt.owed = True
        entry = JournalEntry(
            JournalEntry.DELETE,
            (attempt.call.client_id, attempt.call.identity),
            patient=True,
            failure=record_pending,
            durable=lambda _: self._settle(attempt, None),
        )
        return self._submit(attempt, entry, self._main)

    def _at_work(self) -> int:
        running = self._table.running()
        if self._bound and self._databases.stopped():
            # Nothing is written any more: what is owed is the next start's.
            return sum(not attempt.owed for attempt in running) + len(self._beside)
        return len(running) + len(self._beside)

    def fetch(self, call: Call) -> CompletionRecord | None:
        """Read a record back."""
        return self._databases.read(call)

    def close(self) -> None:
        """Make durable what is queued and let the files go."""
        if self._bound:
            with self._lock:
                self._note_acknowledgements()
                lived_s = int(self._table.lived(self._clock()))
            if lived_s > self._lived_s:
                self._note_lived(lived_s)
        self._databases.close()
        self.leases.close()
        self._databases.leave()

    def expire_keys(self) -> None:
        """Delete keyed calls whose retention has passed, then forget them (``EmbeddedStore``)."""
        # No commit took along what the last sweep noted: clients renew, and no call is made.
        for database in self._databases:
            database.journal.flush()
        with self._lock:
            # A client with something left to note is not idle.
            self._note_acknowledgements()
        self._set_idle_aside()
        self._databases.look()
        with self._lock:
            lived_s = self._table.live(self._clock())
        try:
            clients = self._removals.expire(lived_s)
            kept = self._databases.keys()
            self._known_keys.read(kept.total())
            if self.observer is not None and self._clock() >= self._unresolved_at:
                self._unresolved_at = self._clock() + UNRESOLVED_EVERY_S
                self.unresolved = self._databases.unresolved()
        except (StoreUnavailable, sqlite3.Error):
            # It is said elsewhere; the next sweep comes back to it.
            return
        self._kept_keys = kept.total()
        if kept and int(lived_s) - self._lived_s >= _UNNOTED_S:
            self._note_lived(int(lived_s))
        for client_id in filter(is_namespace, clients - kept.keys()):
            with self._lock:
                gone = self._table.leave_namespace(client_id)
            if gone:
                self._removals.delete_namespace(client_id)

    def statistics(self) -> tuple[int, int, int]:
        """See ``Store``; completed keyed calls as the last sweep counted them."""
        clients, calls, running = super().statistics()
        return clients, calls + self._kept_keys, running

    def _note_lived(self, lived_s: int) -> None:
        self._lived_s = lived_s
        self._main.journal.live(lived_s)

    # -- from the journals' threads ----------------------------------------------

    def _health(self, name: str, error: Exception | None) -> None:
        with self._lock:
            if error is None:
                self._failing.pop(name, None)
            else:
                self._failing[name] = error
            refusal: RiflError | None = None
            for cause in self._failing.values():
                refusal = StoreUnavailable(f"the store cannot be written: {cause}")
            self._unavailable = refusal
            self._update_refusal()
        self._tell_refusal()

    def _intended(self, attempt: Attempt, _: JournalEntry) -> None:
        of_sqlite(attempt).intended = True
        self._registered_in_main(attempt.entry)

    def _recorded(
        self, attempt: Attempt, record: CompletionRecord, database: Database, entry: JournalEntry
    ) -> None:
        # Only these can meet a record: one that a transaction of the handler's left,
        # and that could not be read when the handler returned.
        doubt: RiflError | None = None
        if attempt.policy.kind is _ATOMIC or attempt.call.fingerprint is None:
            try:
                standing = self.fetch(attempt.call)
            except RiflError as error:
                # What stands will be read by who asks again: the call has ended.
                doubt = error
            else:
                if standing is not None and standing != record:
                    record = entry.result = standing
        now = 0.0 if attempt.call.key is None else self._clock()
        with self._lock:
            attempt.entry.registered.add(database.name)
            waiters = self._settle_one(attempt, record, now)
            if doubt is not None:
                # Who waited for it reads what stands.
                attempt.record = None
        for wake in waiters:
            wake()
        if doubt is not None and not entry.done:
            entry.fail(record_pending(doubt))

    # -- clients: registered before, and removed before, anything of theirs is elsewhere ----

    def _register(self, client_id: int, holder: bytes = b"") -> Pending:
        """Write the row of a client; its id is told when that is durable.

        A retry after a crash then finds a client that is known, and so what is promised for a
        crash holds from its first call on. ``holder``: whom its lease counts for.
        """
        with self._lock:
            # Known here as long as its row may be in the file: see ``_expired``.
            client = self._table.admit(client_id)
            self._main.journal.register(*self._client_row(client), holder)
            registration = JournalEntry.empty(
                failure=not_started, durable=lambda _: self._registered_in_main(client)
            )
            return self._main.journal.submit(registration, awaited=True)

    def _remove(self, client_ids: list[int]) -> None:
        self._removals.remove(client_ids)

    def _expired(self, client_id: int, refusal: LeaseExpired) -> Later:
        """Raise the refusal of a client that has ended, or have it raised once that is durable.

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

    # -- under the lock ----------------------------------------------------------

    def _queue(self, attempt: Attempt, entry: JournalEntry, database: Database) -> Pending:
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
        """Note those of calls whose rows must be deleted, once the next commit may take them."""
        if len(self._table.released) >= RIDING_ACKNOWLEDGEMENTS:
            self._note_acknowledgements()

    def _note_acknowledgements(self) -> None:
        databases = self._databases.by_name
        for client, released in self._table.take_released():
            row = self._client_row(client)
            running = client.running
            if not running.keys().isdisjoint(released):
                # What was given up and runs keeps its row until it ends: after a crash it is
                # unknown what became of it.
                released = [seq for seq in released if seq not in running or running[seq].owed]
            for name in client.registered:
                databases[name].journal.acknowledge(*row, released)

    @staticmethod
    def _client_row(entry: ClientEntry) -> tuple[int, int, bytes]:
        tracker = entry.tracker
        return entry.client_id, tracker.first_incomplete, pack_ranges(tracker.completed_ranges())

    # ------------------------------------------------------------------------------

    def _submit(self, attempt: Attempt, entry: JournalEntry, database: Database) -> Pending:
        with self._lock:
            return self._queue(attempt, entry, database)


def _intent_row(call: Call) -> tuple[Any, ...]:
    until_s = None if call.key is None else 0.0
    return call.client_id, call.identity, call.fingerprint, call.method, until_s


def _for_all(pending: Pending, attempts: Sequence[Attempt]) -> Pending:
    pending.result = [None] * len(attempts)
    return pending


def _doubtful(error: Exception) -> RecordPending:
    return RecordPending(f"what became of the handler's own commit is not known: {error}")
