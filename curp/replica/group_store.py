"""A group as a rifl store: decisions in memory, records in the group's log (DESIGN §7)."""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from curp.core.appending import Appending
from curp.core.collection import Collectable
from curp.core.conflict_keys import keys_of_all
from curp.core.entries import ClientRegistered, ClientRemoved, Entry, Operation
from curp.core.leader import Batch, Leader, Speed, Wish
from curp.core.read_lease import ReadLease
from curp.core.recovery import operation_of
from curp.core.state import GroupState
from curp.core.turns import Turn, Turns
from curp.observer import GroupObservers
from curp.replica.clock import boottime
from curp.wire import SYNCED_KEY, entry_to_bytes
from lease_server.storage import LeaseStorage
from rifl.core.call import Call
from rifl.core.client_table import Attempt, Decision, Leases
from rifl.core.errors import (
    BadHeader,
    Deposed,
    InProgress,
    LeaseExpired,
    NotLeader,
    RiflError,
    SessionClosed,
)
from rifl.core.groups import Replies, Together
from rifl.core.invariant import InvariantViolated
from rifl.core.later import Later
from rifl.core.namespace import is_namespace
from rifl.core.outcome import Outcome
from rifl.core.policy import KeyBounds, MethodPolicies, MethodPolicy
from rifl.core.record import CompletionRecord
from rifl.core.verdict import Verdict
from rifl.stores.embedded import EmbeddedStore
from rifl.stores.pending import Pending

__all__ = ["Arrival", "GroupStore", "LogWrite", "not_by_log"]


def _append_id() -> bytes:
    return os.urandom(16)


class Arrival:
    """What a group needs of a call beside the call: its bytes, keys and acknowledgements."""

    __slots__ = (
        "completed",
        "configuration",
        "covered",
        "deterministic",
        "first_incomplete",
        "keys",
        "reads",
        "request",
        "shared",
        "turn",
    )

    def __init__(
        self,
        request: bytes,
        keys: frozenset[int],
        configuration: int,
        first_incomplete: int,
        completed: Any,
        *,
        reads: bool = False,
        deterministic: bool = True,
        covered: bool = True,
    ) -> None:
        self.request = request
        self.keys = keys
        self.configuration = configuration
        self.first_incomplete = first_incomplete
        self.completed = completed
        self.reads = reads
        self.deterministic = deterministic
        self.covered = covered
        self.turn: Turn | None = None
        # Where the turn is a whole batch's.
        self.shared: _Shared | None = None


class _Shared:
    """Those of a batch that have one turn, which the last of them gives back."""

    __slots__ = ("attempts",)

    def __init__(self, attempts: set[Attempt]) -> None:
        self.attempts = attempts


class LogWrite(NamedTuple):
    """An entry on its way into the log, with what hangs on it."""

    entry: Entry
    body: bytes
    attempt: Attempt | None
    # The header's number, where a witness may hold the request.
    configuration: int


class GroupStore(EmbeddedStore):
    """Decides while this replica leads, and refuses everything else.

    Invariants (the numbers are those of DESIGN §7):

    - 1, 3: ``finish`` lets an answer leave before its entry is in the log only if
      ``Leader.place`` says FAST.
    - 4: ``step_down`` ends every waiting answer as DEPOSED and lets go of the state.
    - 9: an attempt is settled only when its entry is in the log. So a duplicate of an
      unsynced operation waits for that, and what it is answered is synced.
    - 10: a read is answered when what it conflicts with is synced and, after that, the
      read lease is found valid.
    - 13: an attempt of a call that may be on a witness ends as not executed by an entry
      in the log, and in no other way.

    Acknowledgements are applied with the entry that carries them, so calls arrive with
    theirs put aside (``Arrival``). Any thread.
    """

    def __init__(
        self,
        *,
        boottime: Callable[[], float] = boottime,
        append_id: Callable[[], bytes] = _append_id,
    ) -> None:
        """``boottime``: the seconds that read leases are counted by.

        ``append_id``: draws what an append is named by (``Appending``).
        """
        super().__init__()
        self._boottime = boottime
        self._append_id = append_id
        self.leases: LeaseStorage
        # For the appender, and everyone who looks whether there is something to do.
        self.work = threading.Condition(self._lock)
        self.state = GroupState()
        self._use(self.state)
        self.leader: Leader | None = None
        # What the leader's entries are appended by; under ``work``.
        self.appending: Appending | None = None
        self.read_lease: ReadLease | None = None
        self.serving = False
        # Counts leaderships, so that a call of an earlier one is told apart.
        self._term = 0
        self._turns = Turns()
        self._waiting_turns: dict[Turn, Pending] = {}
        self._order = count()
        self._synced_waiters: list[tuple[int, int, Pending]] = []
        self._registering: set[int] = set()
        # Attempts whose handler may run now, with their leadership.
        self._executing: dict[Attempt, int] = {}
        self._marks: tuple[tuple[str, str], ...] = ()
        self._leader_address = ""
        self._policies: MethodPolicies
        # Gives a batch's call its arrival, which single calls bring along.
        self.arrive: Callable[[Call], None] = lambda call: None
        # Told of requests that are in the log, outside any lock.
        self.on_synced: Callable[[list[Collectable]], None] | None = None
        # Where a test lets the process die.
        self.fault: Callable[[str], None] | None = None
        # Told of reads that waited.
        self.watcher: GroupObservers | None = None
        self.speeds: dict[Speed, int] = dict.fromkeys(Speed, 0)

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        window: int,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Keep what new states are made with; ``leases`` come with a leadership."""
        self._clock = clock
        self._policies = policies
        self._window = window
        self._key_bounds = key_bounds
        self._use(self.new_state())

    def now(self) -> float:
        """Return the seconds that places are timed by."""
        return self._clock()

    def new_state(self) -> GroupState:
        """Return a state as it is before the first entry."""
        return GroupState(window=self._window, key_bounds=self._key_bounds)

    # -- roles (called by the replica's thread) ------------------------------------------

    def follow(self, state: GroupState) -> None:
        """Let ``state`` be what the replica knows; nothing is served."""
        with self._lock:
            self._use(state)

    def name_leader(self, address: str) -> None:
        """Let refusals name the leader; empty: nobody knows it."""
        self._leader_address = address

    def apply(self, lsn: int, entry: Entry) -> None:
        """Take an entry of another leader's, whose effect is there already."""
        with self._lock:
            self.state.commit(lsn, entry, self._clock(), retention_s=self._retention(entry))

    def lead(self, leader: Leader, read_lease: ReadLease) -> Appending:
        """Begin a leadership: entries may be placed, calls are not taken yet.

        Returns what its entries are to be appended by, until it is over.
        """
        with self._lock:
            self._term += 1
            self.leader = leader
            self.appending = Appending(leader, self._append_id)
            self.read_lease = read_lease
            self._mark(leader)
            return self.appending

    def open(self, leases: Leases) -> None:
        """Take calls from now on."""
        with self._lock:
            self.state.lead(leases)
            self.serving = True
            self._leader_address = ""

    def changed(self, configuration: int, *, witnessed: bool) -> None:
        """Go on under that number."""
        with self._lock:
            if self.leader is not None:
                self.leader.end_change(configuration, witnessed=witnessed)
                self._mark(self.leader)

    def step_down(self) -> None:
        """Drop every waiting answer, and the state with it (invariant 4).

        The state may hold what never reached the log: it is not used again.
        """
        with self._lock:
            self.serving = False
            self.leader = None
            if self.appending is not None:
                self.appending.stop()
                self.appending = None
            self._term += 1
            state, self.state = self.state, self.new_state()
            state.lead(None)
            ended = state.table.running()
            waiters = []
            for attempt in ended:
                attempt.ended = True
                waiters += list(attempt.waiters)
                attempt.waiters = ()
            pendings = [pending for _, _, pending in self._synced_waiters]
            pendings += self._waiting_turns.values()
            self._synced_waiters = []
            self._waiting_turns = {}
            self._turns = Turns()
            self._registering = set()
            self._use(self.state)
            self.work.notify_all()
        for pending in pendings:
            pending.fail(Deposed("the leader was deposed with the call under way"))
        for wake in waiters:
            wake()

    def executing(self) -> int:
        """How many handlers of earlier leaderships may still run."""
        with self._lock:
            return sum(
                term != self._term or self.leader is None for term in self._executing.values()
            )

    # -- what the serving rules ask (rifl.core.serving.Records) ------------------------

    def claim(self, call: Call, policy: MethodPolicy) -> Decision:
        """Decide about a call and claim it if it is new, while this replica leads."""
        try:
            return self._claim(call, policy)
        except RiflError as error:
            raise not_by_log(error, call) from None

    def _claim(self, call: Call, policy: MethodPolicy) -> Decision:
        now = self._clock()
        with self._lock:
            if not self.serving:
                raise self.not_leader()
            try:
                decision = self._table.decide(call, policy, now)
            except (LeaseExpired, SessionClosed) as error:
                # Until its removal is in the log a later leader may run the request from
                # a witness: the client must not take it for one that never ran (13).
                if call.configuration and self._known_to_log(call.client_id):
                    raise InProgress("the client's removal is not in the log yet") from error
                raise
            except InvariantViolated as violation:
                self._broken(violation)
                raise
            if call.configuration and decision.verdict is not Verdict.NEW:
                # It is in the log, or will be before it is answered (invariant 9).
                call.marks = self._marks
            return decision

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> list[Any]:
        """Decide about the calls of a batch, one by one."""
        replies: list[Any] = []
        for call in calls:
            try:
                if call.extra is None:
                    self.arrive(call)
                replies.append(self.claim(call, policy))
            except RiflError as refusal:
                replies.append(refusal)
        return replies

    def start(self, attempt: Attempt) -> Pending | None:
        """Wait for the turn on the call's conflict keys."""
        arrival = _arrived(attempt)
        turn = arrival.turn = Turn(arrival.keys, reads=arrival.reads)
        with self._lock:
            self._own(attempt)
            # Counted from now: it may run as soon as it is woken.
            self._executing[attempt] = self._term
            return self._stand_in_line(turn)

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Wait for one turn on the keys of all.

        A turn each would have calls of a batch wait for one another, and they end
        together.
        """
        replies: list[Any] = [None] * len(attempts)
        arrivals = [_arrived(attempt) for attempt in attempts]
        turn = Turn(
            keys_of_all(arrival.keys for arrival in arrivals),
            reads=all(arrival.reads for arrival in arrivals),
        )
        shared = _Shared(set())
        with self._lock:
            for at, attempt in enumerate(attempts):
                try:
                    self._own(attempt)
                except Deposed as error:
                    replies[at] = error
                    continue
                self._executing[attempt] = self._term
                shared.attempts.add(attempt)
                arrivals[at].turn, arrivals[at].shared = turn, shared
            if not shared.attempts:
                return replies
            pending = self._stand_in_line(turn)
        if pending is None:
            return replies
        return Together([pending if reply is None else reply for reply in replies])

    def _stand_in_line(self, turn: Turn) -> Pending | None:
        if self._turns.ask(turn):
            return None
        pending = self._waiting_turns[turn] = Pending()
        return pending

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Pending | None:
        """Give the operation its place; return at once if it may be answered first."""
        arrival = _arrival(attempt.call)
        if arrival.reads:
            return self._finish_read(attempt, arrival)
        self._strike("executed")
        write = self._write(attempt, record)
        with self._lock:
            pending, come = self._place(attempt, write)
        _wake(come)
        if pending is None:
            self._strike("answered")
        return pending

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        """Give operations their places, one behind the other: one append takes them all.

        Up to the bounds of an append. None of a batch is answered first (invariant 1): its
        header has no configuration number, and so no witness has it.
        """
        replies: list[Any] = [None] * len(attempts)
        writes: list[tuple[int, Attempt, LogWrite]] = []
        self._strike("executed")
        for at, (attempt, record) in enumerate(zip(attempts, records, strict=True)):
            try:
                arrival = _arrival(attempt.call)
                if arrival.reads:
                    replies[at] = self._finish_read(attempt, arrival)
                else:
                    writes.append((at, attempt, self._write(attempt, record)))
            except Exception as error:  # noqa: BLE001 - its own; the others go on
                replies[at] = error
        come: list[Pending] = []
        with self._lock:
            for at, attempt, write in writes:
                try:
                    replies[at], ready = self._place(attempt, write)
                except Deposed as error:
                    replies[at] = error
                else:
                    come += ready
        _wake(come)
        return Together(replies)

    def _write(self, attempt: Attempt, record: CompletionRecord) -> LogWrite:
        """Return the entry; made here, where what cannot be written is recorded as such."""
        call = attempt.call
        arrival = _arrival(call)
        entry = operation_of(
            call,
            arrival.request,
            record,
            arrival.keys,
            first_incomplete=arrival.first_incomplete,
            completed=arrival.completed,
            refusal=arrival.turn is None,
        )
        return LogWrite(entry, entry_to_bytes(entry), attempt, call.configuration)

    def _place(self, attempt: Attempt, write: LogWrite) -> tuple[Pending | None, list[Pending]]:
        """Give an operation its place, with the lock held.

        What it waits for, None if it is answered first; and whose turn has come.
        """
        call = attempt.call
        arrival = _arrival(call)
        refusal = arrival.turn is None
        leader = self._own(attempt)
        now = self._clock()
        registered = self._register(call.client_id, leader, now)
        wish = Wish(
            call.configuration,
            # A plain key's record has its time: a later leader may still have the
            # one before, and would take the request on a witness for known.
            registered and (call.key is None or attempt.entry.keyed_only),
            arrival.deterministic and not refusal,
            arrival.covered,
        )
        size = len(write.body)
        try:
            if refusal:
                # It has no effect, and so no place among those that have.
                lsn, speed = leader.place_event(write, size, now), Speed.NONDETERMINISTIC
            else:
                lsn, speed = leader.place(write, size, now, arrival.keys, wish)
                self.speeds[speed] += 1
            come = self._give_back(attempt)
        except InvariantViolated as violation:
            self._broken(violation)
            raise
        pending: Pending | None = None
        if speed is not Speed.FAST:
            pending = self._wait_for(lsn)
            if call.configuration:
                call.marks = self._marks
        if self.appending is not None and self.appending.wakes(now):
            self.work.notify_all()
        return pending, come

    def abandon(self, attempt: Attempt) -> Pending | None:
        """Make the call new again, which nothing but a failed start does."""
        with self._lock:
            come = self._give_back(attempt)
        _wake(come)
        self._settle(attempt, None)
        return None

    def drop(self, client_ids: Iterable[int]) -> None:
        """Log the removal of clients behind their last operation (invariant 7)."""
        with self._lock:
            if self.leader is None:
                return
            self._remove(self._table.drop(client_ids))
            self.work.notify_all()

    def close(self) -> None:
        """Nothing to let go of: the replica closes the engine."""

    # -- the log --------------------------------------------------------------------------

    def log(self, entry: Entry) -> Pending:
        """Have an entry that is no operation appended; done when it is in the log.

        Raises ``Deposed`` if this replica does not lead.
        """
        body = entry_to_bytes(entry)
        with self._lock:
            if self.leader is None:
                raise Deposed("another replica leads")
            lsn = self.leader.place_event(LogWrite(entry, body, None, 0), len(body), self._clock())
            pending = self._wait_for(lsn)
            self.work.notify_all()
        return pending

    def synced(self, lsn: int | None = None) -> Pending | None:
        """Return what is done when the log has everything placed so far; None if it has.

        With ``lsn``, everything up to that one. Raises ``Deposed``.
        """
        with self._lock:
            if self.leader is None:
                raise Deposed("another replica leads")
            upto = self.leader.placed if lsn is None else lsn
            if not self.leader.demand(upto):
                return None
            pending = self._wait_for(upto)
            self.work.notify_all()
        return pending

    def call_synced(self, call: Call) -> Pending | bool:
        """Find a call for a sync request (invariant 9).

        True: its entry is in the log. False: this leader does not know it. Else what is
        done when its attempt ended: then ask again.
        """
        with self._lock:
            if not self.serving or self.leader is None:
                raise self.not_leader()
            entry = self._table.find(call.client_id)
            if entry is None:
                return False
            attempt = entry.running.get(call.identity)
            if attempt is None:
                return entry.kept(call) is not None
            pending = Pending()
            attempt.waiters = [*attempt.waiters, pending.succeed]
            self.leader.demand(self.leader.placed)
            self.work.notify_all()
        return pending

    def committed_batch(self, batch: Batch, tail: int) -> None:
        """Take that a batch is in the log: settle its attempts, and answer who waits."""
        collectable: list[Collectable] = []
        waiters: list[Callable[[], None]] = []
        done: list[Pending] = []
        with self._lock:
            appending = self.appending
            under_way = None if appending is None else appending.under_way
            if appending is None or under_way is None or under_way.batch is not batch:
                # It is of a leadership that is over.
                return
            appending.appended(tail)
            now = self._clock()
            gone: list[int] = []
            for placed in batch.placed:
                write: LogWrite = placed.what
                attempt = write.attempt
                if self.state.commit(
                    placed.lsn,
                    write.entry,
                    now,
                    attempt=attempt,
                    retention_s=None if attempt is None else attempt.policy.retention_s,
                ):
                    gone.append(write.entry.client_id)  # type: ignore[union-attr]
                if attempt is not None:
                    waiters += attempt.waiters
                    attempt.waiters = ()
                if isinstance(write.entry, ClientRegistered):
                    self._registering.discard(write.entry.client_id)
                elif isinstance(write.entry, Operation) and write.configuration:
                    entry = write.entry
                    collectable.append(
                        Collectable(entry.client_id, entry.seq, entry.key, entry.keys)
                    )
            self._remove(gone)
            while self._synced_waiters and self._synced_waiters[0][0] <= tail:
                done.append(heapq.heappop(self._synced_waiters)[2])
            if self._draining:
                self._idle.notify_all()
        self._strike("reply")
        for pending in done:
            pending.succeed()
        for wake in waiters:
            wake()
        if collectable and self.on_synced is not None:
            self.on_synced(collectable)

    def exclusively(self, timeout_s: float) -> Turn | None:
        """Wait until nothing runs, and let nothing run, until the turn is given back.

        None if that took too long, or this replica does not lead any more.
        """
        asked = self.ask_exclusively()
        if asked is None:
            return None
        turn, pending = asked
        if pending is None:
            return turn
        event = threading.Event()
        pending.add_callback(lambda _: event.set())
        if event.wait(timeout_s) and pending.error is None:
            return turn
        self.give_back(turn)
        return None

    def ask_exclusively(self) -> tuple[Turn, Pending | None] | None:
        """Ask for the turn on everything, and for what is done when it has come.

        None in its place if it has; nothing at all if this replica does not lead. It is
        given back, whether it has come or not.
        """
        turn = Turn(frozenset())
        with self._lock:
            if self.leader is None:
                return None
            return turn, self._stand_in_line(turn)

    def give_back(self, turn: Turn) -> None:
        """Let others run again."""
        with self._lock:
            self._waiting_turns.pop(turn, None)
            come = self._come(self._turns.give_back(turn)) if turn in self._turns else []
        _wake(come)

    def takes_calls(self) -> bool:
        """Whether calls are taken: of a leader, until its lease is over.

        One that is cut off from the engine would keep them waiting, while another leads
        by now: so its clients look for that one.
        """
        lease = self.read_lease
        return self.serving and lease is not None and not lease.over(self._boottime())

    def not_leader(self) -> NotLeader:
        """Return the refusal of a replica that does not lead, or cannot tell."""
        if self.serving:
            return NotLeader("the lease is over, and was not renewed: another may lead")
        known = self._leader_address
        return NotLeader("another replica leads" if known else "no leader is known", known)

    def count_running(self) -> int:
        """How many calls have a turn, or wait for one."""
        with self._lock:
            return len(self._turns)

    def _rest(self) -> None:
        """Let nobody rest: recovery and sync requests look at entries (6, 9, 12)."""

    def _settle(self, attempt: Attempt, record: CompletionRecord | None) -> None:
        """End an attempt that leaves no entry, unless its leadership ended it."""
        with self._lock:
            if attempt.ended:
                return
            if self._table.settle(attempt, record, keep=True, now=self._clock()):
                self._remove([attempt.call.client_id])
                self.work.notify_all()
            if self._draining:
                self._idle.notify_all()
            waiters, attempt.waiters = attempt.waiters, ()
        for wake in waiters:
            wake()

    # -- under the lock -------------------------------------------------------------------

    def _use(self, state: GroupState) -> None:
        self.state = state
        self._table = state.table
        self._update_refusal()

    def _mark(self, leader: Leader) -> None:
        self._marks = ((SYNCED_KEY, str(leader.configuration)),)

    def _own(self, attempt: Attempt) -> Leader:
        """Return the leadership, if the attempt is of this one."""
        leader = self.leader
        # One of an earlier leadership is ended, and its state is gone.
        if attempt.ended or leader is None:
            self._executing.pop(attempt, None)
            raise Deposed("the leader was deposed with the call under way")
        return leader

    def _known_to_log(self, client_id: int) -> bool:
        return client_id in self.state.clients or client_id in self._registering

    def _register(self, client_id: int, leader: Leader, now: float) -> bool:
        """Have the client's registration in front of its first operation (invariant 3)."""
        if client_id in self.state.clients:
            return True
        if client_id not in self._registering and not is_namespace(client_id):
            self._registering.add(client_id)
            entry = ClientRegistered(client_id)
            body = entry_to_bytes(entry)
            leader.place_event(LogWrite(entry, body, None, 0), len(body), now)
        return False

    def _remove(self, client_ids: list[int]) -> None:
        """Place the removal of clients of which nothing runs any more."""
        leader = self.leader
        if leader is None:
            return
        for client_id in client_ids:
            if self._known_to_log(client_id):
                entry = ClientRemoved(client_id)
                body = entry_to_bytes(entry)
                leader.place_event(LogWrite(entry, body, None, 0), len(body), self._clock())

    def _wait_for(self, lsn: int) -> Pending:
        pending = Pending()
        self.leader.demand(lsn)  # type: ignore[union-attr]  # the caller looked
        heapq.heappush(self._synced_waiters, (lsn, next(self._order), pending))
        return pending

    def _give_back(self, attempt: Attempt) -> list[Pending]:
        self._executing.pop(attempt, None)
        arrival = _arrival(attempt.call)
        turn, shared = arrival.turn, arrival.shared
        if turn is None or attempt.ended:
            return []
        if shared is not None:
            shared.attempts.discard(attempt)
            if shared.attempts:
                return []
        self._waiting_turns.pop(turn, None)
        return self._come(self._turns.give_back(turn))

    def _come(self, turns: list[Turn]) -> list[Pending]:
        return [
            pending
            for turn in turns
            if (pending := self._waiting_turns.pop(turn, None)) is not None
        ]

    def _retention(self, entry: Entry) -> float | None:
        if not isinstance(entry, Operation) or entry.key is None:
            return None
        policy = self._policies.find(entry.method)
        return None if policy is None else policy.retention_s

    # -- reads ----------------------------------------------------------------------------

    def _finish_read(self, attempt: Attempt, arrival: Arrival) -> Pending | None:
        """Answer a read that is on top of synced operations only (invariant 10)."""
        call = attempt.call
        with self._lock:
            lsn = self._own(attempt).conflict(arrival.keys)
            pending = self._wait_for(lsn) if lsn else None
            come = self._give_back(attempt)
            if call.configuration:
                call.marks = self._marks
            if pending is not None:
                self.work.notify_all()
        _wake(come)
        if pending is None:
            try:
                self._check_read_lease(attempt)
            finally:
                self._end_read(attempt)
            return None
        answered = Pending()
        began = self._clock()

        def synced(done: Pending) -> None:
            if self.watcher is not None:
                self.watcher.read_waited(call.method, self._clock() - began)
            try:
                if done.error is not None:
                    raise done.error
                self._check_read_lease(attempt)
            except Exception as error:  # noqa: BLE001 - passed on
                self._end_read(attempt)
                answered.fail(error)
            else:
                self._end_read(attempt)
                answered.succeed()

        pending.add_callback(synced)
        return answered

    def _check_read_lease(self, attempt: Attempt) -> None:
        # The clock is asked after the state was read: a lease that ends in between
        # would let a later leader's write be missed.
        lease = self.read_lease
        if attempt.ended or lease is None or not lease.valid(self._boottime()):
            raise Deposed("the leader cannot tell whether it still leads: ask again")

    def _end_read(self, attempt: Attempt) -> None:
        # Nothing is kept of it: asked again, it is run again.
        self._settle(attempt, None)

    def _strike(self, point: str) -> None:
        if self.fault is not None:
            self.fault(point)


def _arrival(call: Call) -> Arrival:
    found: Arrival | None = call.extra
    if found is None:
        # A resolution: nothing runs, and it conflicts with nothing that does.
        found = call.extra = Arrival(b"", frozenset(), 0, 1, (), deterministic=False)
    return found


def _arrived(attempt: Attempt) -> Arrival:
    """Return the arrival of a call that is to run; raises ``BadHeader`` if it has none."""
    found: Arrival | None = attempt.call.extra
    if found is None:
        # Its request could not be replayed: the group has not seen it.
        raise BadHeader(
            f"{attempt.call.method} is not the group's: its servicer was not added to the "
            "replica's registrar"
        )
    return found


def not_by_log(error: RiflError, call: Call) -> RiflError:
    """Return a refusal as it is told of a call that may be on a witness (invariant 13).

    A later leader may run it: only what is in the log says that it never will.
    """
    if call.configuration and error.outcome is Outcome.NOT_EXECUTED:
        # Of this refusal, not of its class.
        error.__dict__["outcome"] = Outcome.UNKNOWN
    return error


def _wake(pendings: list[Pending]) -> None:
    for pending in pendings:
        pending.succeed()
