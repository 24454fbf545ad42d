"""The store under a replica's roles: what it follows, and what it places in the log as leader."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from curp._core.appending import Appending
from curp._core.entries import Entry, Operation
from curp._core.garbage_collection import Collectable
from curp._core.key_locks import KeyLock, KeyLocks
from curp._core.leader import EntryBatch, Leader
from curp._core.poison import Ledger, PoisonWatch
from curp._core.read_lease import ReadLease
from curp._core.state import GroupState
from curp._replica.arrival import GroupAnswers
from curp._replica.clock import boottime
from curp._replica.proposals import Proposals
from lease_server._storage import SoleLeaseStorage
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.pending import Pending
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.leases import Leases
from rifl.core._serving.policy import MethodPolicies
from rifl.core._shared.errors import Deposed, NotLeader


class Reads:
    """Judges when a read may be answered. Any thread.

    Invariant 10 (DESIGN §7): when what it conflicts with is synced and, after that, the
    read lease is found valid.
    """

    def __init__(self, boottime: Callable[[], float]) -> None:
        """``boottime``: the seconds that leases are counted by."""
        self._boottime = boottime
        self.lease: ReadLease | None = None

    def may_lead(self) -> bool:
        """Whether nobody else may lead by now, as far as the clock here tells."""
        return self.lease is not None and not self.lease.over(self._boottime())

    def check(self, attempt: Attempt) -> None:
        """Raise ``Deposed`` if a read whose state was read may not be answered."""
        # The clock is asked after the state was read: a lease that ends in between
        # would let a later leader's write be missed.
        lease = self.lease
        if attempt.ended or lease is None or not lease.valid(self._boottime()):
            raise Deposed("the leader cannot tell whether it still leads: ask again")

    def answered(
        self, attempt: Attempt, synced: Pending, end: Callable[[Attempt], None]
    ) -> Pending:
        """Return what is done when a read may be answered that waits for ``synced``.

        ``end`` is called with it before; nothing is kept of it.
        """
        answered = Pending()

        def judge(done: Pending) -> None:
            try:
                if done.error is not None:
                    raise done.error
                self.check(attempt)
            except Exception as error:  # noqa: BLE001 - passed on
                end(attempt)
                answered.fail(error)
            else:
                end(attempt)
                answered.succeed()

        synced.add_callback(judge)
        return answered


class LockQueue:
    """The turns of one leadership. Under the store's lock, so nobody is woken in here."""

    def __init__(self) -> None:
        self._turns = KeyLocks()
        self._waiting: dict[KeyLock, Pending] = {}

    def __len__(self) -> int:
        """How many have a turn, or wait for one."""
        return len(self._turns)

    def __contains__(self, turn: KeyLock) -> bool:
        """Whether a turn was not given back yet."""
        return turn in self._turns

    def stand(self, turn: KeyLock) -> Pending | None:
        """Ask for a turn; what is done when it has come, None if it has."""
        if self._turns.ask(turn):
            return None
        pending = self._waiting[turn] = Pending()
        return pending

    def leave(self, turn: KeyLock) -> list[Pending]:
        """Give a turn back, or wait for it no longer; who is to be woken now."""
        self._waiting.pop(turn, None)
        return [
            pending
            for come in self._turns.give_back(turn)
            if (pending := self._waiting.pop(come, None)) is not None
        ]

    def waiting(self) -> list[Pending]:
        """Return everyone whose turn has not come."""
        return list(self._waiting.values())


def random_append_id() -> bytes:
    """Draw what an append is named by."""
    return os.urandom(16)


class RoleStore(EmbeddedStore):
    """A table of clients that is the log's, under the roles of a replica.

    Called by the replica's own threads; what a server asks of a store is
    ``GroupStore``'s. Invariant 4 (DESIGN §7): ``step_down`` ends every waiting answer as
    DEPOSED and lets go of the state. Any thread.
    """

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
        self.held.bound(bounds, key_bounds or KeyBounds())
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
            pending.fail(Deposed("the leader was deposed with the call under way"))
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

    def registered(self, client_id: int) -> Pending | None:
        """Have a client's registration appended; done when it is in the log, None if it is.

        Raises ``Deposed`` if this replica does not lead.
        """
        with self._lock:
            pending = self._leading().registered(client_id)
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
        """Take that a batch is in the log: settle its attempts, and answer who waits.

        One that is not under way is of a leadership that is over.
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
        """Take that notes were put down: calls that waited for theirs begin."""
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


def wake_all(pendings: list[Pending]) -> None:
    """Wake everyone whose time has come."""
    for pending in pendings:
        pending.succeed()
