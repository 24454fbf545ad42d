"""A group as a rifl store: decisions in memory, records in the group's log (DESIGN §7)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from _rifl_ground.refusals import Outcome
from _rifl_ground.system import boottime
from curp._core.appending import Appending
from curp._core.conflict_keys import keys_of_all
from curp._core.entries import CallsAcknowledged, Entry, Operation, SetAside
from curp._core.garbage_collection import Collectable
from curp._core.group_call import SyncVerdict
from curp._core.key_locks import KeyLock
from curp._core.leader import EntryBatch, Leader, Speed
from curp._core.poison import RETRIED, Ledger, PoisonWatch, case_of, unknown_record
from curp._core.read_lease import ReadLease
from curp._core.recovery import operation_of
from curp._core.state import GroupState
from curp._replica.arrival import Arrival, GroupAnswers, SharedLock, arrival_of, arrived
from curp._replica.proposals import LogWrite, Proposals
from curp._replica.waiting import LockQueue, Reads, after_both, wake_all
from curp._wire.entries import entry_to_bytes
from curp.observer import GroupObservers
from lease_server._storage import Acknowledgements, SoleLeaseStorage
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.pending import Pending
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    Deposed,
    InProgress,
    LeaseExpired,
    NotLeader,
    OutcomeUnknown,
    RiflError,
    SessionClosed,
    StoreUnavailable,
)
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord


def random_append_id() -> bytes:
    """Draw what an append is named by."""
    return os.urandom(16)


class GroupStore(EmbeddedStore):
    """Decides while this replica leads, and refuses everything else.

    Invariants (the numbers are those of DESIGN §7):

    - 1, 3: ``finish`` lets an answer leave before its entry is in the log only if
      ``Leader.place`` says FAST.
    - 4: ``step_down`` ends every waiting answer as DEPOSED and drops the state.
    - 9: an attempt is settled only when its entry is in the log. So a duplicate of an
      unsynced operation waits for that, and what it is answered is synced.
    - 10: a read is answered when what it conflicts with is synced and, after that, the
      read lease is found valid.
    - 13: an attempt of a call that may be on a witness ends as not executed by an entry
      in the log, and in no other way.

    Acknowledgements are applied with the entry that carries them, so calls arrive with
    theirs put aside (``Arrival``). Any thread.
    """

    # The handlers' state is the group's: what one did by half, no other replica would do.
    cancels_handlers = False

    def __init__(
        self,
        *,
        boottime: Callable[[], float] = boottime,
        append_id: Callable[[], bytes] = random_append_id,
    ) -> None:
        """``boottime``: the seconds that read leases are counted by.

        ``append_id``: draws what an append is named by (``Appending``).
        """
        super().__init__()
        self.held = GroupAnswers()
        self._append_id = append_id
        self.leases: SoleLeaseStorage
        # For the appender, and everyone who looks whether there is something to do.
        self.work = threading.Condition(self._lock)
        self.state = GroupState()
        self._use(self.state)
        # None: it does not lead.
        self._proposals: Proposals | None = None
        self._reads = Reads(boottime)
        self.serving = False
        # Counts leaderships, so that a call of an earlier one is told apart.
        self._term = 0
        self._locks = LockQueue()
        # Attempts whose handler may run now, with their leadership.
        self._executing: dict[Attempt, int] = {}
        self._leader_address = ""
        self._policies: MethodPolicies
        # Told of requests that are in the log, outside any lock.
        self.on_synced: Callable[[list[Collectable]], None] | None = None
        # The application's version, which each operation's entry has.
        self.application_version = 0
        # The newest ledger of calls that kill, as this replica has read it.
        self.ledger = Ledger()
        # Where a test lets the process die.
        self.fault: Callable[[str], None] | None = None
        # Gives a batch's call its arrival, which single calls bring along.
        self.arrive: Callable[[Call], None] = lambda call: None
        # Told of reads that waited.
        self.watcher: GroupObservers | None = None
        self.speeds: dict[Speed, int] = dict.fromkeys(Speed, 0)
        # What one entry may have: what the engine takes in one append.
        self.max_entry_bytes = sys.maxsize

    def bind(
        self,
        leases: Leases,
        policies: MethodPolicies,
        *,
        clock: Callable[[], float],
        bounds: Bounds,
        key_bounds: KeyBounds | None = None,
    ) -> None:
        """Keep what new states are made with; ``leases`` come with a leadership."""
        self._clock = clock
        self._policies = policies
        self._window = bounds.window
        self._key_bounds = key_bounds
        # Judged by the leader, for new calls: nothing of it is in the log.
        self.held.bound(
            bounds, key_bounds or KeyBounds(), lambda client_id: self.state.leases.holder(client_id)
        )
        self._use(self.new_state())

    @property
    def leader(self) -> Leader | None:
        """The leader's rules, None while this replica does not lead."""
        proposals = self._proposals
        return None if proposals is None else proposals.leader

    @property
    def appending(self) -> Appending | None:
        """What the leader's entries are appended by; under ``work``."""
        proposals = self._proposals
        return None if proposals is None else proposals.appending

    def now(self) -> float:
        """Return the seconds that places are timed by."""
        return self._clock()

    def new_state(self) -> GroupState:
        """Return the state before the first entry."""
        return GroupState(window=self._window, key_bounds=self._key_bounds)

    # -- roles (called by the replica's thread) ------------------------------------------

    def follow(self, state: GroupState) -> None:
        """Let ``state`` be what the replica knows; nothing is served."""
        with self._lock:
            self._use(state)

    def name_leader(self, address: str) -> None:
        """Let refusals name the leader; empty: not known."""
        self._leader_address = address

    def apply(self, state: GroupState, lsn: int, entry: Entry) -> None:
        """Take an entry of another leader's, whose effect is there already.

        ``state``: of who reads. It is no longer this store's where the leadership under which
        the log is read has just ended: it is dropped then, and its reader told.
        """
        with self._lock:
            state.commit(lsn, entry, self._clock(), retention_s=self._retention(entry))

    def lead(
        self, leader: Leader, read_lease: ReadLease, watch: PoisonWatch | None = None
    ) -> Appending:
        """Begin a leadership: entries may be placed, calls are not taken yet.

        ``watch``: what may have killed those who led before. Returns what its
        entries are to be appended by, until it is over.
        """
        self.held.forget()
        with self._lock:
            self._term += 1
            proposals = self._proposals = Proposals(
                leader, self.state, self._append_id, self._clock, watch
            )
            self._reads.lease = read_lease
            return proposals.appending

    def open(self, leases: Leases) -> None:
        """Take calls from now on."""
        with self._lock:
            self.state.lead(leases)
            self.serving = True
            self._leader_address = ""

    def changed(self, configuration: int, *, witnessed: bool) -> None:
        """Go on under that number, unless it is one of an earlier leadership."""
        with self._lock:
            proposals = self._proposals
            if proposals is not None and configuration >= proposals.leader.configuration:
                proposals.changed(configuration, witnessed=witnessed)

    def step_down(self) -> None:
        """Drop every waiting answer, and the state with it (invariant 4).

        The state may hold what never reached the log: it is not used again.
        """
        with self._lock:
            self.serving = False
            proposals, self._proposals = self._proposals, None
            locks, self._locks = self._locks, LockQueue()
            self._term += 1
            state, self.state = self.state, self.new_state()
            state.lead(None)
            waiters = []
            for attempt in state.table.running():
                attempt.ended = True
                waiters += list(attempt.waiters)
                attempt.waiters = ()
            pendings = locks.waiting()
            if proposals is not None:
                proposals.appending.stop()
                pendings += proposals.waiting()
            self._use(self.state)
            self.work.notify_all()
        for pending in pendings:
            pending.fail(Deposed("the leader was deposed while the call was in flight"))
        for wake in waiters:
            wake()

    def executing(self) -> int:
        """How many handlers of earlier leaderships may still run."""
        with self._lock:
            return sum(
                term != self._term or self._proposals is None for term in self._executing.values()
            )

    def takes_calls(self) -> bool:
        """Whether calls are taken: of a leader, until its lease is over.

        One that is cut off from the engine would keep them waiting, while another leads
        by now: so its clients look for that one.
        """
        return self.serving and self._reads.may_lead()

    def not_leader(self) -> NotLeader:
        """Return the refusal of a replica that does not lead, or cannot tell."""
        if self.serving:
            return NotLeader("the lease is over, and was not renewed: another may lead")
        known = self._leader_address
        return NotLeader("another replica leads" if known else "no leader is known", known)

    # -- the log --------------------------------------------------------------------------

    def log(self, entry: Entry) -> Pending:
        """Have an entry that is no operation appended; done when it is in the log.

        Raises ``Deposed`` if this replica does not lead.
        """
        with self._lock:
            proposals = self._leading()
            pending = proposals.wait_for(proposals.event(entry))
            self.work.notify_all()
        return pending

    def registered(self, client_id: int, holder: bytes = b"") -> Pending | None:
        """Have a client's registration appended; done when it is in the log, None if it is.

        ``holder``: whom its lease counts for. Raises ``Deposed`` if this replica does not lead.
        """
        with self._lock:
            pending = self._leading().registered(client_id, holder)
            if pending is not None:
                self.work.notify_all()
        return pending

    def synced(self, lsn: int | None = None) -> Pending | None:
        """Return what is done when the log has everything placed so far; None if it has.

        With ``lsn``, everything up to that one. Raises ``Deposed``.
        """
        with self._lock:
            proposals = self._leading()
            upto = proposals.leader.placed if lsn is None else lsn
            if upto <= proposals.leader.synced:
                return None
            pending = proposals.wait_for(upto)
            self.work.notify_all()
        return pending

    def committed_batch(self, batch: EntryBatch, tail: int) -> None:
        """Handle a batch that is in the log: settle its attempts, and answer the waiting calls.

        One that is not in flight is of a leadership that is over.
        """
        with self._lock:
            found = None if self._proposals is None else self._proposals.committed(batch, tail)
            if found is None:
                return
            if self._draining:
                self._idle.notify_all()
        self._strike("reply")
        wake_all(found.synced)
        for wake in found.waiters:
            wake()
        if found.collectable and self.on_synced is not None:
            self.on_synced(found.collectable)

    def noted(self) -> None:
        """Handle that notes are stored: the calls that waited for theirs begin."""
        with self._lock:
            tokens = [] if self._proposals is None else self._proposals.appending.noted()
        wake_all(list(tokens))

    # -- turns on everything --------------------------------------------------------------

    def ask_exclusively(self) -> tuple[KeyLock, Pending | None] | None:
        """Ask for the turn on everything, and for what is done when it has come.

        None in its place if it has; nothing at all if this replica does not lead. It is
        given back, whether it has come or not.
        """
        turn = KeyLock(frozenset())
        with self._lock:
            if self._proposals is None:
                return None
            return turn, self._locks.stand(turn)

    def give_back(self, turn: KeyLock) -> None:
        """Let others run again."""
        with self._lock:
            come = self._locks.leave(turn) if turn in self._locks else []
        wake_all(come)

    def count_running(self) -> int:
        """How many calls have a turn, or wait for one."""
        with self._lock:
            return len(self._locks)

    # -- what the serving rules ask (rifl.core._serving.records.Records) ------------------------

    def claim(self, call: Call, policy: MethodPolicy) -> Decision:
        """Decide about a call and claim it if it is new, while this replica leads."""
        try:
            return self._claim(call, policy)
        except RiflError as error:
            raise not_by_log(error, call) from None

    def _claim(self, call: Call, policy: MethodPolicy) -> Decision:
        now = self._clock()
        with self._lock:
            proposals = self._proposals
            if not self.serving or proposals is None:
                raise self.not_leader()
            try:
                # A log's state has all its keys: no look-up.
                decision: Any = self._table.decide(call, policy, now)
            except (LeaseExpired, SessionClosed) as error:
                # Until its removal is in the log a later leader may run the request, from a
                # witness or as a late copy: the client must not take it for one that never
                # ran, and send it anew under another id (5, 13).
                # One of a writer that another followed runs nowhere: the log says who that is,
                # and a witness holds none that did not come by way of witnesses.
                followed = not call.configuration and self._table.superseded(call)
                if proposals.known(call.client_id) and not followed:
                    raise InProgress("the client's removal is not in the log yet") from error
                raise
            except InvariantViolated as violation:
                self._broken(violation)
                raise
            if proposals.watch.condemned and decision.verdict is Verdict.NEW:
                decision = self._set_aside(proposals, decision)
            if call.configuration and decision.verdict is not Verdict.NEW:
                # It is in the log, or will be before it is answered (invariant 9).
                call.marks = proposals.marks
            return decision  # type: ignore[no-any-return]  # see above

    def _set_aside(self, proposals: Proposals, decision: Decision) -> Decision:
        """Answer a call that killed leaders before: finally unknown (invariant 12).

        It is new here, so no answer of it is in the log or was on a witness, and no client has
        one: its arrival waits for the entry as for another's attempt.
        """
        attempt: Any = decision.attempt
        case = proposals.watch.condemned.get(attempt.call.rpc_id)
        if case is None:
            return decision
        proposals.notes.close(case.rpc_id)
        self.work.notify_all()
        record = unknown_record(case)
        if arrival_of(attempt.call).reads:
            # Nothing is kept of a read.
            self._table.settle(attempt, None, keep=True, now=self._clock())
            raise OutcomeUnknown(record.details)
        write = self._write(attempt, record, SetAside(case.deaths, case.who, case.why))
        # It grants no other call's turn.
        self._place(attempt, write)
        proposals.leader.demand(proposals.leader.placed)
        return Decision(Verdict.IN_PROGRESS, attempt)

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

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Pending | None:
        """Give the operation its place; return at once if it may be answered first."""
        arrival = arrival_of(attempt.call)
        if arrival.reads:
            return self._finish_read(attempt, arrival)
        self._strike("executed")
        write = self._write(attempt, record)
        with self._lock:
            pending, come = self._place(attempt, write)
        wake_all(come)
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
                arrival = arrival_of(attempt.call)
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
        wake_all(come)
        return AllLater(replies)

    def _write(
        self, attempt: Attempt, record: CompletionRecord, set_aside: SetAside | None = None
    ) -> LogWrite:
        """Return the entry; made here, where what cannot be written is recorded as such."""
        call = attempt.call
        arrival = arrival_of(call)
        entry = operation_of(
            call,
            arrival.request,
            record,
            arrival.keys,
            first_incomplete=arrival.first_incomplete,
            completed=arrival.completed,
            refusal=arrival.turn is None,
            application_version=self.application_version,
        )
        if set_aside is not None:
            entry = entry._replace(request=b"", set_aside=set_aside)
        body = entry_to_bytes(entry)
        if len(body) > self.max_entry_bytes:
            raise ValueError(f"its entry has {len(body)} bytes, which one append does not hold")
        return LogWrite(entry, body, attempt, call.configuration)

    def _place(self, attempt: Attempt, write: LogWrite) -> tuple[Pending | None, list[Pending]]:
        """Give an operation its place, with the lock held.

        What it waits for, None if it is answered first; and whose turn has come.
        """
        call = attempt.call
        proposals = self._own(attempt)
        try:
            lsn, speed = proposals.operation(write, attempt)
            come = self._give_back(attempt)
        except InvariantViolated as violation:
            self._broken(violation)
            raise
        if arrival_of(call).turn is not None:
            self.speeds[speed] += 1
        pending: Pending | None = None
        if speed is not Speed.FAST:
            pending = proposals.wait_for(lsn)
            if call.configuration:
                call.marks = proposals.marks
        if proposals.due():
            self.work.notify_all()
        return pending, come

    def abandon(self, attempt: Attempt) -> Pending | None:
        """Make the call new again, which nothing but a failed start does."""
        with self._lock:
            come = self._give_back(attempt)
        wake_all(come)
        self._settle(attempt, None)
        return None

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Log what a client's renewal acknowledged, if records go by it.

        They go when the entry is in the log, on every replica; the renewal does not wait for that.
        """
        self.held.acknowledge(client_id, *acknowledged)
        first_incomplete, completed = acknowledged
        with self._lock:
            proposals = self._proposals
            if proposals is None or not self._table.frees(client_id, first_incomplete, completed):
                return
            entry = CallsAcknowledged(client_id, first_incomplete, tuple(completed))
            proposals.event(entry)
            if proposals.due():
                self.work.notify_all()

    def clients_ended(self, client_ids: Iterable[int]) -> None:
        """Log the removal of clients behind their last operation (invariant 7)."""
        ended = list(client_ids)
        self.held.drop(ended)
        with self._lock:
            if self._proposals is None:
                return
            self._proposals.remove(self._table.drop(ended))
            self.work.notify_all()

    def close(self) -> None:
        """Do nothing: the replica closes the engine."""

    # -- turns: a handler runs when it is its turn, its client is known, and it is noted -------

    def start(self, attempt: Attempt) -> Pending | None:
        """Wait for the turn on the call's conflict keys, and for its client to be known."""
        arrival = arrived(attempt)
        turn = arrival.turn = KeyLock(arrival.keys, reads=arrival.reads)
        with self._lock:
            proposals = self._own(attempt)
            # Counted from now: it may run as soon as it wakes up.
            self._executing[attempt] = self._term
            pending = self._locks.stand(turn)
            registered = self._registered(proposals, attempt)
            notes = proposals.notes
            if not (attempt.call.attempt > 1 or notes.alert):
                return after_both(registered, pending)
            watched = notes.watches(attempt.call, self._clock())
        pending = after_both(registered, pending)
        return self._noted([attempt], pending) if watched else pending

    def _noted(self, attempts: Sequence[Attempt], turn: Pending | None) -> Pending:
        """Have calls noted when their turn has come; what is done when they may run."""
        noted = Pending()
        cases = {attempt: case_of(attempt.call, RETRIED) for attempt in attempts}

        def come(done: Pending | None = None) -> None:
            error = None if done is None else done.error
            if error is None:
                with self._lock:
                    try:
                        proposals = self._own(attempts[0])
                    except Deposed as deposed:
                        error = deposed
                    else:
                        proposals.notes.ask(noted, cases)
                        self.work.notify_all()
            if error is not None:
                noted.fail(error)

        if turn is None:
            come()
        else:
            turn.add_callback(come)
        return noted

    def _registered(self, proposals: Proposals, attempt: Attempt) -> Pending | None:
        pending = proposals.registered(attempt.call.client_id)
        if pending is not None:
            self.work.notify_all()
        return pending

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Wait for one turn on the keys of all.

        A turn each would have calls of a batch wait for one another, and they end
        together.
        """
        replies: list[Any] = [None] * len(attempts)
        arrivals = [arrived(attempt) for attempt in attempts]
        turn = KeyLock(
            keys_of_all(arrival.keys for arrival in arrivals),
            reads=all(arrival.reads for arrival in arrivals),
        )
        shared = SharedLock()
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
            pending = self._locks.stand(turn)
            proposals = self._own(owned := next(iter(shared.attempts)))
            registered = self._registered(proposals, owned)
            come = self._one_suspect(proposals, shared, attempts, replies)
            watched = [
                attempt
                for attempt in shared.attempts
                if proposals.notes.watches(attempt.call, self._clock())
            ]
        wake_all(come)
        pending = after_both(registered, pending)
        if watched:
            pending = self._noted(watched, pending)
        if pending is None:
            return replies
        return AllLater([pending if reply is None else reply for reply in replies])

    def _one_suspect(
        self,
        proposals: Proposals,
        shared: SharedLock,
        attempts: Sequence[Attempt],
        replies: list[Any],
    ) -> list[Pending]:
        """Refuse all but the first of a batch that has suspects: they run one at a time."""
        suspects = proposals.watch.suspects
        if not suspects or not any(each.call.rpc_id in suspects for each in shared.attempts):
            return []
        come: list[Pending] = []
        first = True
        for at, attempt in enumerate(attempts):
            if attempt not in shared.attempts:
                continue
            if not first:
                replies[at] = StoreUnavailable(
                    "a leader died running some of this batch: they run one at a time"
                )
                come += self._give_back(attempt)
            first = False
        return come

    # -- sync requests --------------------------------------------------------------------

    def call_synced(self, configuration: int, call: Call) -> Pending | SyncVerdict:
        """Find a call for a sync request (invariant 9).

        ``configuration``: under which the client sent it. The verdict, or what is done when
        the call's attempt ended: then ask again.
        """
        with self._lock:
            proposals = self._proposals
            if not self.serving or proposals is None:
                raise self.not_leader()
            if configuration != proposals.leader.configuration:
                # What a later leader knows of the call is not what this one answered.
                return SyncVerdict.OTHER_CONFIGURATION
            entry = self._table.find(call.client_id)
            if entry is None:
                return SyncVerdict.NOT_KNOWN
            attempt = entry.running.get(call.identity)
            if attempt is None:
                synced = entry.kept(call) is not None
                return SyncVerdict.SYNCED if synced else SyncVerdict.NOT_KNOWN
            pending = Pending()
            attempt.waiters = [*attempt.waiters, pending.succeed]
            proposals.leader.demand(proposals.leader.placed)
            self.work.notify_all()
        return pending

    def _counts(self) -> bool:
        """Whether it leads: each replica has the state."""
        return self.takes_calls()

    def _set_idle_aside(self) -> None:
        """Set no client aside: recovery and sync requests look at entries (6, 9, 12)."""

    def _settle(self, attempt: Attempt, record: CompletionRecord | None) -> None:
        """End an attempt that leaves no entry, unless its leadership ended it."""
        with self._lock:
            if attempt.ended:
                return
            if self._table.settle(attempt, record, keep=True, now=self._clock()):
                if self._proposals is not None:
                    self._proposals.remove([attempt.call.client_id])
                self.work.notify_all()
            if self._draining:
                self._idle.notify_all()
            waiters, attempt.waiters = attempt.waiters, ()
        for wake in waiters:
            wake()

    # -- reads ----------------------------------------------------------------------------

    def _finish_read(self, attempt: Attempt, arrival: Arrival) -> Pending | None:
        """Answer a read that is on top of synced operations only (invariant 10)."""
        call = attempt.call
        with self._lock:
            proposals = self._own(attempt)
            lsn = proposals.leader.conflict(arrival.keys)
            pending = proposals.wait_for(lsn) if lsn else None
            come = self._give_back(attempt)
            if call.configuration:
                call.marks = proposals.marks
            if pending is not None:
                self.work.notify_all()
        wake_all(come)
        if pending is None:
            try:
                self._reads.check(attempt)
            finally:
                self._end_read(attempt)
            return None
        if (watcher := self.watcher) is not None:
            began = self._clock()
            pending.add_callback(lambda _: watcher.read_waited(call.method, self._clock() - began))
        return self._reads.answered(attempt, pending, self._end_read)

    def _end_read(self, attempt: Attempt) -> None:
        # Nothing is kept of it: asked again, it is run again.
        self._settle(attempt, None)

    # -- under the lock -------------------------------------------------------------------

    def _use(self, state: GroupState) -> None:
        self.state = state
        self._table = state.table
        self._update_refusal()

    def _leading(self) -> Proposals:
        if self._proposals is None:
            raise Deposed("another replica leads")
        return self._proposals

    def _retention(self, entry: Entry) -> float | None:
        if not isinstance(entry, Operation) or entry.key is None:
            return None
        policy = self._policies.find(entry.method)
        return None if policy is None else policy.retention_s

    def _strike(self, point: str) -> None:
        if self.fault is not None:
            self.fault(point)

    def _own(self, attempt: Attempt) -> Proposals:
        """Return what its leadership places, if the attempt is of this one."""
        proposals = self._proposals
        # One of an earlier leadership is ended, and its state is gone.
        if attempt.ended or proposals is None:
            self._executing.pop(attempt, None)
            raise Deposed("the leader was deposed while the call was in flight")
        return proposals

    def _give_back(self, attempt: Attempt) -> list[Pending]:
        """End an attempt's turn, if it is its own; return the calls that must be woken."""
        self._executing.pop(attempt, None)
        if (proposals := self._proposals) is not None and proposals.notes.any:
            proposals.notes.ended(attempt)
            self.work.notify_all()
        arrival = arrival_of(attempt.call)
        turn, shared = arrival.turn, arrival.shared
        if turn is None or attempt.ended:
            return []
        if shared is not None:
            shared.attempts.discard(attempt)
            if shared.attempts:
                return []
        return self._locks.leave(turn)


def not_by_log(error: RiflError, call: Call) -> RiflError:
    """Return the refusal to tell for a call that may be on a witness (invariant 13).

    A later leader may run it: only what is in the log says that it never will.
    """
    if call.configuration and error.outcome is Outcome.NOT_EXECUTED:
        error.may_have_run()
    return error
