"""The part that stores inside the server's process share: one table of clients, one lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from _rifl_ground.log import get_logger
from _rifl_ground.owned_lock import OneByOne
from _rifl_ground.refusals import Outcome
from lease_server._storage import Acknowledgements
from rifl._stores.base import Unresolved
from rifl._stores.forks import belongs_here
from rifl._stores.held_answers import HeldAnswers
from rifl._stores.rows import ConditionalRows
from rifl._stores.transactions import SharedBlocks, Transactions
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt, ClientEntry
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later, Replies
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    Draining,
    LeaseExpired,
    RiflError,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.observer import Observer
from rifl.core._shared.record import CompletionRecord

_log = get_logger("rifl.store")
_UNKNOWN = Outcome.UNKNOWN
# Bounds how long a sweep holds the lock.
_KEYS_PER_SWEEP = 10_000
_LOOKED_AT_AT_ONCE = 256
# Whose are the runs that are of no client's call; nothing of it is ever changed.
_NOBODY = ClientEntry(0, 1)


class EmbeddedStore:
    """Decides in memory; what it keeps durable, if anything, is a subclass's.

    The decision and the claim are one step under ``_lock``, which is never held
    across I/O. By itself it is the whole of ``memory:``.
    """

    decides_here = True
    cancels_handlers = True
    transactions: Transactions | None = None
    shared_blocks: SharedBlocks | None = None
    rows: ConditionalRows | None = None
    # Whether records stay in memory, or are fetched.
    _keeps_records = True
    # Whether there are rows to delete when calls are acknowledged.
    _has_rows = False
    _attempt_class: type[Attempt] = Attempt
    # Of a store that finds keys by itself: see ``ClientTable``.
    _look_up: Callable[[Attempt, Call, MethodPolicy], Later] | None = None

    def __init__(self) -> None:
        # Both are set before ``bind``, if at all.
        self.observer: Observer | None = None
        self.on_refusal: Callable[[RiflError | None], None] | None = None
        self.free_bytes: int | None = None
        self.unresolved: Unresolved | None = None
        self.cancelled = 0
        self._told: RiflError | None = None
        # That it may be another one: who is told may say so again.
        self._changes: OneByOne[None] = OneByOne()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._may_have: Callable[[int, bytes], bool] = lambda *_: True
        self._table: ClientTable
        self._clock: Callable[[], float]
        self._draining = False
        self._unavailable: RiflError | None = None
        self._stopped: RiflError | None = None
        self.held = HeldAnswers()
        # Runs of handlers that are of no client's call.
        self._beside: set[Attempt] = set()
        belongs_here(self, "store")

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        bounds: Bounds,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Be ready for calls, decided by ``leases`` and timed by ``clock``."""
        self.held.bound(bounds, key_bounds or KeyBounds(), leases.holder)
        self._table = ClientTable(
            leases,
            window=bounds.window,
            key_bounds=key_bounds,
            note_released=self._has_rows,
            attempts=self._attempt_class,
            look_up=self._look_up,
            may_have=self._may_have,
        )
        self._clock = clock
        self._live_on(0.0)

    def _live_on(self, lived_s: float) -> None:
        # A test's clock says by itself that it makes no jumps.
        self._table.live_on(lived_s, whole=getattr(self._clock, "is_lived_through", False))

    def claim(self, call: Call, policy: MethodPolicy) -> Decision | Later:
        """Decide about a call and claim it if it is new."""
        now = self._clock()
        lock = self._lock
        # Not ``with``, which costs more than the lock: here and where calls are settled.
        lock.acquire()
        try:
            return self._table.decide(call, policy, now)
        except WindowExceeded as refusal:
            self._of_the_key(refusal, call)
            raise
        except LeaseExpired as refusal:
            return self._expired(call.client_id, refusal)
        except InvariantViolated as violation:
            self._broken(violation)
            raise
        finally:
            lock.release()

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        """Decide about many calls and claim those that are new: see ``BatchRecords``."""
        now = self._clock()
        decide = self._table.decide
        replies: list[Any] = []
        with self._lock:
            for call in calls:
                try:
                    replies.append(decide(call, policy, now))
                except RiflError as refusal:
                    self._of_the_key(refusal, call)
                    replies.append(refusal)
                except InvariantViolated as violation:
                    self._broken(violation)
                    raise
        return replies

    def _expired(self, client_id: int, refusal: LeaseExpired) -> Later:
        """Raise the refusal of a client that has ended; called with the lock held."""
        raise refusal

    def start(self, attempt: Attempt) -> Any | None:
        """Nothing to make durable."""
        return None

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """No transaction of a handler's reaches this store."""
        return None

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Any | None:
        """Keep the record."""
        self._settle(attempt, record)
        if record.outcome is _UNKNOWN:
            self._note_unknown(attempt)
        return None

    def may_have_run(self, attempt: Attempt) -> bool:
        """Whether the call may have run before, and be new again."""
        return self._may_have_run(attempt.entry, attempt.call.identity)

    def _may_have_run(self, entry: ClientEntry, identity: int | bytes) -> bool:
        """Nothing outlives this process, and it knows what it ran."""
        return entry.may_have_run(identity)

    def _of_the_key(self, refusal: RiflError, call: Call) -> None:
        """Have a refusal for lack of room say no more of a key than is known of it."""
        if call.key is None or not isinstance(refusal, WindowExceeded):
            return
        entry = self._table.get(call.client_id)
        if entry is not None and self._may_have_run(entry, call.key):
            refusal.may_have_run()

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> None:
        """Keep a record that is durable already."""
        self._settle(attempt, record)

    def abandon(self, attempt: Attempt) -> Any | None:
        """Make the call new again."""
        self._settle(attempt, None)
        return None

    def was_cancelled(self, attempt: Attempt) -> None:
        """Count a coroutine that was cancelled: a thread that it began may go on."""
        self.cancelled += 1

    def fetch(self, call: Call) -> CompletionRecord | None:
        """Records are in memory: what is not there is gone."""
        return None

    def token(self, client_id: int) -> bytes:
        """Return the token last verified for a client, empty if none was."""
        entry = self._table.get(client_id)
        return b"" if entry is None else entry.token

    def wait(self, attempt: Attempt, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called when the attempt ends; False if it has."""
        with self._lock:
            if attempt.ended:
                return False
            attempt.waiters = [*attempt.waiters, wake]
            return True

    def overdue(self) -> bool:
        """False: no other server takes its calls over."""
        return False

    def lapses(self) -> int:
        """Never."""
        return 0

    def leave(self, attempt: Attempt, wake: Callable[[], None]) -> None:
        """No longer wait."""
        with self._lock:
            attempt.waiters = [other for other in attempt.waiters if other != wake]

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Forget what a client acknowledged with a renewal; see ``SoleLeaseStorage``."""
        self.held.acknowledge(client_id, *acknowledged)
        with self._lock:
            self._table.acknowledge(client_id, *acknowledged)

    def clients_ended(self, client_ids: Iterable[int]) -> None:
        """Forget clients whose leases or sessions have ended, with their records."""
        ended = list(client_ids)
        self.held.drop(ended)
        with self._lock:
            self._remove(self._table.drop(ended))

    def expire_keys(self) -> None:
        """Forget keyed calls whose retention has passed, and set idle clients aside."""
        with self._lock:
            for client_id, key in self._table.due_keys(self._clock(), _KEYS_PER_SWEEP):
                self._table.forget_key(client_id, key)
        self._set_idle_aside()
        with self._lock:
            # Also if no observer asks: it forgets what is not kept any more.
            found = Unresolved(*self._table.unknown(self._clock()))
        self.unresolved = found if self.observer is not None and self._counts() else None

    def _counts(self) -> bool:
        """Whether this process tells how many outcomes are unknown: of replicas, one does."""
        return True

    def _note_unknown(self, attempt: Attempt) -> None:
        call, now = attempt.call, self._clock()
        with self._lock:
            self._table.note_unknown(call.client_id, call.identity, now)

    def begin_beside(self, call: Call, policy: MethodPolicy) -> Attempt:
        """Begin a run of a handler that is of no client's call.

        Raises what new calls are refused with.
        """
        attempt = self._attempt_class(_NOBODY, call, policy)
        with self._lock:
            refusing = self._table.refusing
            if refusing is not None:
                raise type(refusing)(*refusing.args)
            self._beside.add(attempt)
        return attempt

    def end_beside(self, attempt: Attempt) -> None:
        """End such a run, and wake who waits for it."""
        with self._lock:
            self._beside.discard(attempt)
            attempt.ended = True
            waiters, attempt.waiters = attempt.waiters, ()
            if self._draining:
                self._idle.notify_all()
        for wake in waiters:
            wake()

    # Without the lock, up to ``settled``: a signal's handler may ask in the middle of a call.

    def refuse_new(self, draining: bool) -> None:
        """Begin or stop refusing new calls as draining."""
        self._draining = draining
        self._update_refusal()
        self._tell_refusal()

    def running(self) -> int:
        """How many attempts are not settled."""
        return self._at_work()

    def handling(self) -> int:
        """How many attempts have a handler that has not ended."""
        return len(self._beside) + sum(not each.owed for each in self._table.running())

    def _at_work(self) -> int:
        """How many attempts there is anything to wait for."""
        return len(self._table.running()) + len(self._beside)

    def statistics(self) -> tuple[int, int, int]:
        """Clients with state, calls not acknowledged, and of these the ones running."""
        entries, clients = self._table.active(), len(self._table)
        idle_calls = self._table.idle_calls
        # Each number is one that was true a moment ago.
        calls = sum(
            len(entry.tracker) + (0 if entry.keyed is None else len(entry.keyed))
            for entry in entries
        )
        running = sum(len(entry.running) for entry in entries)
        return clients, calls + idle_calls, running

    def settled(self, timeout_s: float) -> bool:
        """Wait until no attempt runs; False if that took longer."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._at_work(), timeout_s)

    def close(self) -> None:
        """Do nothing: it holds no resource."""

    def _set_idle_aside(self) -> None:
        while True:
            with self._lock:
                if not self._table.set_idle_aside(_LOOKED_AT_AT_ONCE):
                    return

    def _update_refusal(self) -> None:
        self._table.refusing = (
            self._stopped
            or (Draining("the server is about to stop") if self._draining else None)
            or self._unavailable
        )

    def _tell_refusal(self) -> None:
        """Say whether new calls are refused; the lock is not held."""
        # One at a time, so that the last to be told is what holds.
        self._changes.post(None, self._tell)

    def _tell(self, _: None) -> None:
        # Again and in turn: the last to look knows all.
        self._update_refusal()
        told, self._told = self._told, self._table.refusing
        if self.on_refusal is not None and type(self._told) is not type(told):
            self.on_refusal(self._told)

    def _settle(self, attempt: Attempt, record: CompletionRecord | None) -> None:
        # Only what is kept for a time needs one.
        now = 0.0 if attempt.call.key is None else self._clock()
        lock = self._lock
        lock.acquire()
        try:
            waiters = self._settle_one(attempt, record, now)
        finally:
            lock.release()
        for wake in waiters:
            wake()

    def _settle_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord | None]
    ) -> None:
        now = self._clock()
        waiters: list[Callable[[], None]] = []
        with self._lock:
            for attempt, record in zip(attempts, records, strict=True):
                waiters.extend(self._settle_one(attempt, record, now))
        for wake in waiters:
            wake()

    def _settle_one(
        self, attempt: Attempt, record: CompletionRecord | None, now: float
    ) -> Sequence[Callable[[], None]]:
        """Settle with the lock held; whom to wake without it."""
        try:
            gone = self._table.settle(attempt, record, keep=self._keeps_records, now=now)
        except InvariantViolated as violation:
            self._broken(violation)
            raise
        if gone:
            self._remove([attempt.entry.client_id])
        if self._draining:
            self._idle.notify_all()
        # No waiter comes after `ended`, but one may leave while we wake them.
        waiters = attempt.waiters
        if waiters:
            attempt.waiters = ()
        return waiters

    def _broken(self, violation: InvariantViolated) -> None:
        """Begin no new calls, for good: one of our own rules is broken (DESIGN §9)."""
        self._stopped = StoreUnavailable(f"the server broke a rule of its own: {violation}")
        self._update_refusal()

        def tell() -> None:
            _log.critical("invariant_violated", error=str(violation))
            self._tell_refusal()

        # The lock is held here, and no callback may run under it.
        threading.Thread(target=tell, name="rifl-refusal", daemon=True).start()

    def _remove(self, client_ids: list[int]) -> None:
        """Let the rows of forgotten clients go; called with the lock held."""
