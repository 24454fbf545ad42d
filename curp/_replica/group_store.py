"""A group as a rifl store: decisions in memory, records in the group's log (DESIGN §7)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from _rifl_ground.refusals import Outcome
from curp._core.entries import SetAside
from curp._core.group_call import SyncVerdict
from curp._core.leader import Speed
from curp._core.poison import unknown_record
from curp._core.recovery import operation_of
from curp._replica.arrival import Arrival, arrival_of
from curp._replica.clock import boottime
from curp._replica.proposals import LogWrite, Proposals
from curp._replica.role_store import random_append_id, wake_all
from curp._replica.turn_store import TurnStore
from curp._wire.entries import entry_to_bytes
from curp.observer import GroupObservers
from rifl._stores.pending import Pending
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    Deposed,
    InProgress,
    LeaseExpired,
    OutcomeUnknown,
    RiflError,
    SessionClosed,
)
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord


class GroupStore(TurnStore):
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
        append_id: Callable[[], bytes] = random_append_id,
    ) -> None:
        """As ``RoleStore``."""
        super().__init__(boottime=boottime, append_id=append_id)
        # Gives a batch's call its arrival, which single calls bring along.
        self.arrive: Callable[[Call], None] = lambda call: None
        # Told of reads that waited.
        self.watcher: GroupObservers | None = None
        self.speeds: dict[Speed, int] = dict.fromkeys(Speed, 0)
        # What one entry may have: what the engine takes in one append.
        self.max_entry_bytes = sys.maxsize

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
                decision = self._table.decide(call, policy, now)
            except (LeaseExpired, SessionClosed) as error:
                # Until its removal is in the log a later leader may run the request, from a
                # witness or as a late copy: the client must not take it for one that never
                # ran, and send it anew under another id (5, 13).
                if proposals.known(call.client_id):
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
            return decision

    def _set_aside(self, proposals: Proposals, decision: Decision) -> Decision:
        """Answer a call that killed leaders before: unknown, for ever (invariant 12).

        It is new here, so no answer of it is in the log or was on a witness, and nobody has
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
        # Nobody else's turn comes by it.
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
        """Nothing to let go of: the replica closes the engine."""

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


def not_by_log(error: RiflError, call: Call) -> RiflError:
    """Return a refusal as it is told of a call that may be on a witness (invariant 13).

    A later leader may run it: only what is in the log says that it never will.
    """
    if call.configuration and error.outcome is Outcome.NOT_EXECUTED:
        error.may_have_run()
    return error
