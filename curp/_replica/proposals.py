"""The proposals of one leadership: entries on their way into the log, and who waits for them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from curp._core.appending import Appending
from curp._core.entries import ClientRegistered, ClientRemoved, Entry, Operation
from curp._core.garbage_collection import Collectable
from curp._core.leader import EntryBatch, Leader, Speed, SpeedWish
from curp._core.poison import PoisonWatch
from curp._core.poison_notes import PoisonNotes
from curp._core.state import GroupState
from curp._replica.arrival import arrival_of
from curp._wire.entries import entry_to_bytes
from curp._wire.labels import SYNCED_KEY
from rifl._stores.pending import Pending
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.namespace import is_namespace


class LogWrite(NamedTuple):
    """An entry on its way into the log, with what hangs on it."""

    entry: Entry
    body: bytes
    attempt: Attempt | None
    # The header's number, if a witness may hold the request.
    configuration: int


class CommittedBatch(NamedTuple):
    """What a batch that is in the log brings: to be told without the lock.

    ``collectable``: witnesses may drop it. ``waiters``: of attempts that ended.
    ``synced``: who waited for the log to come so far.
    """

    collectable: list[Collectable]
    waiters: list[Callable[[], None]]
    synced: list[Pending]


class Proposals:
    """Gives out a leadership's places, and settles what is in the log.

    Invariants (the numbers are those of DESIGN §7):

    - 3: a client's registration has its place in front of its first operation.
    - 7: its removal has one behind its last: when nothing of it runs any more.
    - 9: an attempt is settled when its entry is in the log, and not before.

    Under the store's lock, so no thread is woken in here. ``state``: what the log made it.
    """

    def __init__(
        self,
        leader: Leader,
        state: GroupState,
        append_id: Callable[[], bytes],
        clock: Callable[[], float],
        watch: PoisonWatch | None = None,
    ) -> None:
        """``append_id``: see ``Appending``. ``clock``: the seconds that places are timed by.

        ``watch``: what may have killed those who led before.
        """
        self.leader = leader
        self.watch = watch or PoisonWatch()
        self.notes = PoisonNotes(self.watch, clock())
        self.appending = Appending(leader, append_id, self.notes)
        self._state = state
        self._clock = clock
        self._order = count()
        self._waiters: list[tuple[int, int, Pending]] = []
        # Where the registrations stand that are not in the log yet.
        self._registering: dict[int, int] = {}
        # What an answer is marked with that is synced.
        self.marks: tuple[tuple[str, str], ...] = ()
        self._mark()

    def changed(self, configuration: int, *, witnessed: bool) -> None:
        """Go on under that number."""
        self.leader.end_change(configuration, witnessed=witnessed)
        self._mark()

    def operation(self, write: LogWrite, attempt: Attempt) -> tuple[int, Speed]:
        """Give an operation that was executed its place; and whether it may answer first."""
        call = attempt.call
        arrival = arrival_of(call)
        now = self._clock()
        registered = self._register(call.client_id)
        if arrival.turn is None:
            # A refusal has no effect, and so no place among those that have.
            lsn = self.leader.place_event(write, len(write.body), now)
            return lsn, Speed.NONDETERMINISTIC
        wish = SpeedWish(
            call.configuration,
            # A plain key's record has its time: a later leader may still have the
            # one before, and would take the request on a witness for known.
            registered and (call.key is None or attempt.entry.keyed_only),
            arrival.deterministic,
            arrival.covered,
        )
        return self.leader.place(write, len(write.body), now, arrival.keys, wish)

    def registered(self, client_id: int, holder: bytes = b"") -> Pending | None:
        """Have a client's registration in the log; what is done then, None if it is.

        ``holder``: whom its lease counts for.

        Before its first handler starts: the next leader then knows the client, and does
        not take its retries, or its calls on a witness, for a stranger's.
        """
        if is_namespace(client_id) or self._register(client_id, holder):
            return None
        return self.wait_for(self._registering[client_id])

    def event(self, entry: Entry) -> int:
        """Give an entry its place that is no operation."""
        body = entry_to_bytes(entry)
        return self.leader.place_event(LogWrite(entry, body, None, 0), len(body), self._clock())

    def remove(self, client_ids: Iterable[int]) -> None:
        """Place the removal of clients of which nothing runs any more (invariant 7)."""
        for client_id in client_ids:
            if self.known(client_id):
                self.event(ClientRemoved(client_id))

    def known(self, client_id: int) -> bool:
        """Whether the log knows a client, or will."""
        return client_id in self._state.clients or client_id in self._registering

    def due(self) -> bool:
        """Return whether the appender must be woken."""
        return self.appending.wakes(self._clock())

    def wait_for(self, lsn: int) -> Pending:
        """Demand that the log come so far; what is done then."""
        pending = Pending()
        self.leader.demand(lsn)
        heapq.heappush(self._waiters, (lsn, next(self._order), pending))
        return pending

    def waiting(self) -> list[Pending]:
        """Return everyone who waits for the log, or for a note."""
        return [*(pending for _, _, pending in self._waiters), *self.notes.waiting()]

    def committed(self, batch: EntryBatch, tail: int) -> CommittedBatch | None:
        """Handle a batch that is in the log; None if it is not the one in flight."""
        under_way = self.appending.under_way
        if under_way is None or under_way.batch is not batch:
            return None
        self.appending.appended(tail)
        found = CommittedBatch([], [], [])
        now = self._clock()
        gone: list[int] = []
        for placed in batch.placed:
            write: LogWrite = placed.what
            entry, attempt = write.entry, write.attempt
            if self._state.commit(
                placed.lsn,
                entry,
                now,
                attempt=attempt,
                retention_s=None if attempt is None else attempt.policy.retention_s,
            ):
                gone.append(entry.client_id)  # type: ignore[union-attr]  # an operation's
            if attempt is not None:
                found.waiters.extend(attempt.waiters)
                attempt.waiters = ()
            if isinstance(entry, ClientRegistered):
                self._registering.pop(entry.client_id, None)
            elif isinstance(entry, Operation) and write.configuration:
                found.collectable.append(
                    Collectable(entry.client_id, entry.seq, entry.key, entry.keys)
                )
        self.remove(gone)
        while self._waiters and self._waiters[0][0] <= tail:
            found.synced.append(heapq.heappop(self._waiters)[2])
        return found

    def _register(self, client_id: int, holder: bytes = b"") -> bool:
        """Have the client's registration in front of its first operation (invariant 3)."""
        if client_id in self._state.clients:
            return True
        if client_id not in self._registering and not is_namespace(client_id):
            self._registering[client_id] = self.event(ClientRegistered(client_id, holder))
        return False

    def _mark(self) -> None:
        self.marks = ((SYNCED_KEY, str(self.leader.configuration)),)
