"""The table of clients: what one server knows of their calls, and its decisions (DESIGN §4).

This is the whole of steps 2 to 5: one call of ``ClientTable.decide`` is the
decision and the claim, so a shell only has to make it atomic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.client_entry import Attempt, ClientEntry, Kept
from rifl.core._serving.decision import Decision
from rifl.core._serving.idle_clients import IdleClients
from rifl.core._serving.keyed_tracker import KeyedTracker
from rifl.core._serving.later import Later
from rifl.core._serving.leases import Leases
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    BadHeader,
    LeaseExpired,
    PayloadMismatch,
    RiflError,
    SessionClosed,
    StoreMismatch,
)
from rifl.core._shared.identity import DEFAULT_WINDOW
from rifl.core._shared.invariant import InvariantViolated
from rifl.core._shared.record import CompletionRecord

# What `_order` may hold beyond twice what is kept.
_SLACK = 1024
# A sweep counts at most twice what the last one did; before the first one, this.
_AT_FIRST_S = 10.0
_LEAST_S = 1.0


class LivedTime:
    """Seconds that were lived through: a clock's, without its jumps.

    Invariants:

    1. It never goes back, and is never ahead of what the clock showed, step by step.
    2. From one sweep to the next it moves by at most twice what it moved before: a clock that
       is set ahead for a moment costs one such step, whatever it shows.

    Too little of it is safe: records stay longer. ``whole``: all of the clock's time counts,
    for one that a test sets. Not thread-safe.
    """

    __slots__ = ("_last", "_lived_s", "_most_s", "_whole")

    def __init__(self, lived_s: float = 0.0, *, whole: bool = False) -> None:
        self._whole = whole
        self._lived_s = lived_s
        self._last: float | None = None
        self._most_s = _AT_FIRST_S

    def at(self, now: float) -> float:
        """Return how long was lived through when the clock shows ``now``, in seconds."""
        if self._last is None:
            self._last = now
        step_s = max(0.0, now - self._last)
        return self._lived_s + (step_s if self._whole else min(step_s, self._most_s))

    def sweep(self, now: float) -> float:
        """Move on to ``now``: the same. Called every few seconds."""
        lived_s = self.at(now)
        if lived_s > self._lived_s:
            self._most_s = 2.0 * max(lived_s - self._lived_s, _LEAST_S)
        self._lived_s, self._last = lived_s, now
        return lived_s


class Retention:
    """Which keys are due, counted from the completion of their calls.

    Invariants:

    1. A key is due when the time last noted for it was lived through, and not before.
    2. A key is returned once; one that was forgotten, never.

    Times are seconds of any clock that the caller keeps to; of its jumps see
    ``LivedTime``, which moves with ``due``. ``note`` and ``due`` take time logarithmic in
    what is kept, for each key. Not thread-safe.
    """

    __slots__ = ("_order", "_until", "lived")

    def __init__(self) -> None:
        self.lived = LivedTime()
        self._until: dict[tuple[int, bytes], float] = {}
        # May hold what is no longer true; `_until` says what is.
        self._order: list[tuple[float, int, bytes]] = []

    def note(self, client_id: int, key: bytes, seconds: float, now: float) -> None:
        """Keep a key for so many seconds from ``now``, whatever was noted before."""
        until = self.lived.at(now) + seconds
        self._until[client_id, key] = until
        heapq.heappush(self._order, (until, client_id, key))
        if len(self._order) > 2 * len(self._until) + _SLACK:
            self._order = [(until, *identity) for identity, until in self._until.items()]
            heapq.heapify(self._order)

    def forget(self, client_id: int, key: bytes) -> None:
        """Note that a key is gone, or is to stay."""
        self._until.pop((client_id, key), None)

    def due(self, now: float, limit: int) -> list[tuple[int, bytes]]:
        """Take the keys whose retention has passed, the oldest first, at most ``limit``."""
        lived_s = self.lived.sweep(now)
        taken: list[tuple[int, bytes]] = []
        while self._order and self._order[0][0] <= lived_s and len(taken) < limit:
            until, client_id, key = heapq.heappop(self._order)
            if self._until.get((client_id, key)) == until:
                del self._until[client_id, key]
                taken.append((client_id, key))
        return taken

    def __len__(self) -> int:
        """How many keys are kept for a time."""
        return len(self._until)


_STALE = Decision(Verdict.STALE)
_NEW = Verdict.NEW
# Every call makes one of each: made so, it skips the Python of ``__new__`` and ``__init__``.
_decision: Any = tuple.__new__
_new: Any = object.__new__


class ClientTable:
    """Every client this server has state for.

    Invariants:

    1. An entry exists only for a client that was known and alive when a call of
       it was claimed, or that the store knew at start. The namespace of a peer's
       keys is always known.
    2. ``entry.running`` holds exactly the attempts that are not settled; an
       identity has at most one.
    3. An entry goes only when it was dropped and none of its attempts runs.
    4. A client has an entry or is among the idle clients, never both. It has an entry
       while a call of it runs, while it has keyed calls, calls that ran and are new again,
       or rows to delete.
    5. Where the store finds keys, no completed keyed call is here. A key is claimed before it
       is looked up, so two calls of one key are never looked up, or new, at once. It is not
       looked up if the store cannot have it, and its client is far from its bounds.

    Not thread-safe: the caller makes each method atomic. No I/O, no clock.
    """

    def __init__(
        self,
        leases: Leases,
        *,
        window: int = DEFAULT_WINDOW,
        key_bounds: KeyBounds | None = None,
        note_released: bool = False,
        attempts: type[Attempt] = Attempt,
        look_up: Callable[[Attempt, Call, MethodPolicy], Later] | None = None,
        may_have: Callable[[int, bytes], bool] = lambda *_: True,
    ) -> None:
        """``look_up``: for a store that finds keys by itself. It is given the attempt that claimed
        a key, and the arriving call, which may be another one than the attempt's; its result is
        what ``decide`` would return, by ``claim_sought`` for the attempt's own. ``may_have``: for
        the same store. It is told each key that is claimed, and says whether one may have a record.

        ``attempts``: the class of those that are begun; made without its ``__init__``.

        ``note_released``: for a store that calls ``take_released``; for any other what is
        ``released`` would only grow.
        """
        self._leases = leases
        self._note_released = note_released
        # Calls that are forgotten, by client id and seq: the store has rows of them to delete.
        self.released: list[tuple[int, int]] = []
        self._window = window
        self._key_bounds = key_bounds or KeyBounds()
        self._retention = Retention()
        self._clients: dict[int, ClientEntry] = {}
        self._idle = IdleClients()
        self._to_look_at: list[int] = []
        # Since when: of calls whose records, which are kept here, say that the outcome is unknown.
        self._unknown: dict[tuple[int, int | bytes], float] = {}
        self._attempt_class = attempts
        self._look_up = look_up
        self._may_have = may_have
        # Set while new calls are refused: draining, or the store is not writable.
        self.refusing: RiflError | None = None

    def __len__(self) -> int:
        return len(self._clients) + len(self._idle)

    def get(self, client_id: int) -> ClientEntry | None:
        """Return the client's entry; None if it has no state here, or is idle."""
        return self._clients.get(client_id)

    def find(self, client_id: int) -> ClientEntry | None:
        """Return the client's entry, also of an idle client; None if nothing is known of it."""
        return self._clients.get(client_id) or self._activate(client_id)

    def entries(self) -> list[ClientEntry]:
        """Return all entries; clients that were idle have one again."""
        for client_id in self._idle:
            self._activate(client_id)
        return list(self._clients.values())

    def active(self) -> list[ClientEntry]:
        """Return the entries of all clients that are not idle."""
        return list(self._clients.values())

    @property
    def idle_calls(self) -> int:
        """Unacknowledged calls of the idle clients."""
        return self._idle.calls

    def set_idle_aside(self, limit: int) -> bool:
        """Look at so many entries, and put idle clients into ``idle_clients``; False at the end.

        A client is idle if it acknowledged nothing since it was last looked at, and no call of
        it runs. So the first look at a client never makes it idle.
        """
        if not self._to_look_at:
            self._to_look_at = list(self._clients)
        looking, self._to_look_at = self._to_look_at[-limit:], self._to_look_at[:-limit]
        releasing = {client_id for client_id, _ in self.released}
        for client_id in looking:
            entry = self._clients.get(client_id)
            if entry is None or entry.running or entry.keyed or entry.keyed_only:
                continue
            if entry.may_have_run_any():
                continue
            tracker = entry.tracker
            if entry.looked_at != tracker.first_incomplete or client_id in releasing:
                entry.looked_at = tracker.first_incomplete
            elif self._idle.put(client_id, tracker, entry.registered, entry.recovered):
                del self._clients[client_id]
        return bool(self._to_look_at)

    def take_released(self) -> list[tuple[ClientEntry, list[int]]]:
        """Return the seqs that were forgotten since the last call, by their clients.

        With what the clients acknowledged by now their rows may go. Those of a client that was
        dropped go with it.
        """
        found: dict[int, list[int]] = {}
        for client_id, seq in self.released:
            found.setdefault(client_id, []).append(seq)
        # The trackers have it, too.
        self.released.clear()
        return [(self._clients[each], found[each]) for each in found if each in self._clients]

    def entry(self, client_id: int) -> ClientEntry:
        """Return the client's entry, made if need be: for what a store recovers."""
        entry = self._clients.get(client_id) or self._activate(client_id)
        if entry is None:
            entry = self._clients[client_id] = self._new_entry(client_id)
            entry.recovered = True
        return entry

    def admit(self, client_id: int) -> ClientEntry:
        """Return the entry of a client that is new: for a store that writes its row."""
        entry = self._clients[client_id] = self._new_entry(client_id)
        return entry

    def decide(self, call: Call, policy: MethodPolicy, now: float) -> Decision | Later:
        """Decide about an arriving call, and claim it if it is new; or have its key looked up.

        Raises ``PayloadMismatch``, ``LeaseExpired``, ``SessionClosed``,
        ``BadHeader``, ``WindowExceeded``, or what ``refusing`` holds. The header
        has been checked against itself, and its token, before.
        """
        client_id = call.client_id
        alive = self._leases.renew(client_id, now)
        entry = self._clients.get(client_id)
        seq = call.seq
        # A seq that is new to its tracker is neither known nor stale: most calls.
        if (
            entry is None
            or seq is None
            or not alive
            or self.refusing is not None
            or entry.keyed_only
            or not entry.tracker.claim(seq, call.first_incomplete, call.completed)
        ):
            if entry is None:
                entry = self._activate(client_id)
            known = None if entry is None else self._known(entry, call)
            if (
                known is None
                and self._look_up is not None
                and call.key is not None
                and (entry is not None or alive or is_namespace(client_id))
                and not self._is_new(entry, call.key, client_id)
            ):
                known = self._seek(entry, call, policy)
            if known is not None:
                if known.attempt is not None and known.attempt.sought:
                    return self._look_up(known.attempt, call, policy)  # type: ignore[misc]
                if alive and call.key is None:
                    entry.tracker.acknowledge(  # type: ignore[union-attr]
                        call.first_incomplete, call.completed
                    )
                return known
            entry = self._begin(entry, call, alive=alive)
        if entry.token is not call.token:
            entry.token = call.token
        attempt: Attempt = _new(self._attempt_class)
        attempt.entry = entry
        attempt.call = call
        attempt.policy = policy
        entry.running[call.identity] = attempt
        decision: Decision = _decision(Decision, (_NEW, attempt, None, True))
        return decision

    def claim_sought(self, attempt: Attempt, kept: tuple[int, int], now: float) -> Decision:
        """Claim a call whose key the store has no record of.

        ``kept``: keys of its client with a record, and their bytes. Raises as ``decide``; the
        attempt is then to be settled.
        """
        call, entry = attempt.call, attempt.entry
        alive = self._leases.renew(call.client_id, now)
        keys, size = attempt.recorded_before
        entry.kept_keys = kept[0] - keys, kept[1] - size
        self._begin(entry, call, alive=alive, kept=kept)
        attempt.sought = False
        return Decision(_NEW, attempt)

    def acknowledge(
        self, client_id: int, first_incomplete: int, completed: Sequence[tuple[int, int]]
    ) -> None:
        """Apply what a renewal acknowledges, as a header's; ignored of sessions, and unknown ids.

        Its client is alive, and the numbers fit together.
        """
        entry = self._clients.get(client_id)
        if entry is None and self._idle.knows_less(client_id, first_incomplete, completed):
            entry = self._activate(client_id)
        if entry is not None and not entry.keyed_only:
            entry.tracker.acknowledge(first_incomplete, completed)

    def frees(
        self, client_id: int, first_incomplete: int, completed: Sequence[tuple[int, int]]
    ) -> bool:
        """Whether a record of a client that is not idle goes if this is acknowledged."""
        entry = self._clients.get(client_id)
        return entry is not None and entry.tracker.frees(first_incomplete, completed)

    def settle(
        self, attempt: Attempt, record: CompletionRecord | None, *, keep: bool, now: float = 0.0
    ) -> bool:
        """End an attempt with its record, or with None: then the call is new again.

        From ``now`` the record of a keyed call is kept for its retention. With
        ``keep`` the record itself stays in memory, else only the fact. True if the
        client was dropped and this was its last attempt: its rows may go.
        The caller then calls the attempt's waiters.
        """
        entry, call = attempt.entry, attempt.call
        running = entry.running
        if running.get(call.identity) is not attempt:
            raise InvariantViolated(f"{call.rpc_id} is settled by another attempt")
        del running[call.identity]
        attempt.record = record
        attempt.ended = True
        if attempt.ran and record is None:
            entry.note_run(call.identity)
        if call.key is None:
            seq: int = call.seq  # type: ignore[assignment]
            if record is None:
                entry.tracker.abandon(seq)
            else:
                entry.tracker.finish(seq, (call.fingerprint, record if keep else None, call.seed))
        elif record is None or self._look_up is not None:
            if entry.keyed is not None:
                entry.keyed.abandon(call.key)
            if record is not None:
                keys, size = entry.recorded
                entry.recorded = keys + 1, size + len(call.key) + (attempt.size or record.size)
            self._leave_namespace(entry)
        elif entry.keyed is not None:
            kept: Kept = (call.fingerprint, record if keep else None, 0)
            entry.keyed.finish(call.key, kept, record.size)
            self._retain(call.client_id, call.key, attempt.policy.retention_s, now)
        if entry.dropped and not running:
            self._remove(entry.client_id)
            return True
        return False

    def drop(self, client_ids: Iterable[int]) -> list[int]:
        """Forget clients whose lease or session has ended.

        Returns the ids whose rows may go now; those with a call running follow
        when ``settle`` says so. Ids without state are returned too.
        """
        gone = []
        for client_id in client_ids:
            entry = self._clients.get(client_id)
            if entry is not None and entry.running:
                entry.dropped = True
                continue
            self._remove(client_id)
            gone.append(client_id)
        return gone

    def restore_key(
        self,
        client_id: int,
        key: bytes,
        kept: Kept,
        size: int,
        *,
        retention_s: float | None = None,
        now: float = 0.0,
        age_s: float = 0.0,
    ) -> None:
        """Put back the record of a keyed call that a store recovered.

        ``retention_s`` is its method's, of which ``age_s`` were lived through ``now``.
        """
        keyed = self._keyed(self.entry(client_id))
        keyed.restore(key, kept, size)
        self._retain(client_id, key, retention_s, now, age_s)

    def due_keys(self, now: float, limit: int) -> list[tuple[int, bytes]]:
        """Take the keyed calls whose retention has passed, at most ``limit``.

        They are still known: each goes by ``forget_key`` when nothing of it is
        left in the store, for until then its row would be in a new call's way.
        """
        return self._retention.due(now, limit)

    def lived(self, now: float) -> float:
        """Return how long was lived through ``now``, by which retention counts."""
        return self._retention.lived.at(now)

    def live(self, now: float) -> float:
        """Live on to ``now``: the same. Called every few seconds, by ``due_keys`` or by itself."""
        return self._retention.lived.sweep(now)

    def live_on(self, lived_s: float, *, whole: bool = False) -> None:
        """Count on from there, before anything is restored; ``whole``: see ``LivedTime``."""
        self._retention.lived = LivedTime(lived_s, whole=whole)

    def forget_key(self, client_id: int, key: bytes) -> None:
        """Forget a completed keyed call: the next one with the key is new."""
        entry = self._clients.get(client_id)
        if entry is None or entry.keyed is None or key in entry.running:
            return
        entry.keyed.forget(key)
        self._retention.forget(client_id, key)
        self._leave_namespace(entry)

    def kept_until(self, client_id: int, retention_s: float | None, now: float) -> float | None:
        """Return when a keyed record of ``now`` ends, in time that is lived through.

        ``retention_s`` is its method's. None: with its client.
        """
        retention_s = self._kept_for(client_id, retention_s)
        return None if retention_s is None else self.lived(now) + retention_s

    def leave_namespace(self, client_id: int) -> bool:
        """Forget a namespace of which no key is kept; False while a call of it runs."""
        entry = self.find(client_id)
        if entry is not None and not entry.running:
            self._remove(client_id)
            return True
        return False

    def note_unknown(self, client_id: int, identity: int | bytes, now: float) -> None:
        """Count a call whose record says that the outcome is unknown, until the record goes."""
        self._unknown.setdefault((client_id, identity), now)

    def unknown(self, now: float) -> tuple[int, float]:
        """Return how many such calls there are, and for how many seconds the oldest is known."""
        self._unknown = {
            each: since for each, since in self._unknown.items() if self._is_kept(*each)
        }
        return len(self._unknown), max(0.0, now - min(self._unknown.values(), default=now))

    def running(self) -> list[Attempt]:
        """Return the attempts that are not settled."""
        # Of copies, each made at once: calls go on meanwhile.
        return [attempt for entry in self.active() for attempt in list(entry.running.values())]

    def _is_kept(self, client_id: int, identity: int | bytes) -> bool:
        """Whether the call's record is here."""
        entry = self._clients.get(client_id)
        if entry is None:
            return self._idle.keeps(client_id, identity)
        if not isinstance(identity, bytes):
            return entry.tracker.record(identity) is not None
        return entry.keyed is not None and entry.keyed.record(identity) is not None

    def _known(self, entry: ClientEntry, call: Call) -> Decision | None:
        """Steps 2 and 3: known calls first, then stale ones; None if it is new."""
        attempt = entry.running.get(call.identity)
        if attempt is not None:
            if attempt.sought:
                # Another call may have been recorded under the key than the one that claims it.
                return Decision(Verdict.IN_PROGRESS, attempt, None, False)
            match_seed(call, attempt.call.seed)
            match_payload(call, attempt.call.fingerprint)
            return Decision(Verdict.IN_PROGRESS, attempt)
        kept = entry.kept(call)
        if kept is not None:
            fingerprint, record, seed = kept
            match_seed(call, seed)
            match_payload(call, fingerprint)
            return Decision(Verdict.COMPLETED, None, record, fingerprint is not None)
        if call.key is None and entry.tracker.peek(call.seq) is Verdict.STALE:  # type: ignore[arg-type]
            return _STALE
        return None

    def _seek(self, entry: ClientEntry | None, call: Call, policy: MethodPolicy) -> Decision:
        """Claim a key that does not run, to be looked up."""
        if entry is None:
            entry = self._clients[call.client_id] = self._new_entry(call.client_id)
        entry.token = call.token
        attempt: Attempt = _new(self._attempt_class)
        attempt.entry, attempt.call, attempt.policy, attempt.sought = entry, call, policy, True
        attempt.recorded_before = entry.recorded
        entry.running[call.identity] = attempt
        return Decision(Verdict.IN_PROGRESS, attempt, None, False)

    def _is_new(self, entry: ClientEntry | None, key: bytes, client_id: int) -> bool:
        """Whether a key that does not run is known to be new, and its client to have room."""
        # Asked first: it is told, too.
        if self._may_have(client_id, key) or entry is None or entry.kept_keys is None:
            return False
        (keys, size), (more, bytes_more) = entry.kept_keys, entry.recorded
        return self._keyed(entry).has_room((keys + more, size + bytes_more))

    def _begin(
        self, entry: ClientEntry | None, call: Call, *, alive: bool, kept: tuple[int, int] = (0, 0)
    ) -> ClientEntry:
        """Steps 4 and 5 for a call that is not known: refuse it, or claim it."""
        client_id = call.client_id
        if not alive and not is_namespace(client_id):
            if self._leases.is_session(client_id):
                raise SessionClosed("the session is closed, or its retention is over")
            raise LeaseExpired(f"client id {client_id} is unknown or expired")
        if self.refusing is not None:
            if entry is not None and call.seq is not None:
                entry.tracker.acknowledge(call.first_incomplete, call.completed)
            # A new one for each: an error that is raised again and again keeps the
            # traceback, and so the request, of everyone it was raised to.
            raise type(self.refusing)(*self.refusing.args)
        if entry is None:
            entry = self._new_entry(client_id)
        if call.seq is None or entry.keyed_only:
            self._begin_keyed(entry, call, kept)
        elif not entry.tracker.claim(call.seq, call.first_incomplete, call.completed):
            raise InvariantViolated(f"{call.rpc_id} was unknown and is not new")
        # Only now, since a refusal leaves no state behind.
        self._clients[client_id] = entry
        return entry

    def _begin_keyed(self, entry: ClientEntry, call: Call, kept: tuple[int, int]) -> None:
        if call.key is None:
            raise BadHeader("a named session takes keyed calls only")
        if entry.keyed_only and self.superseded(call):
            raise SessionClosed("the session takes the calls of another writer, and no others")
        verdict = self._keyed(entry).begin(call.key, kept)
        if verdict is not Verdict.NEW:
            raise InvariantViolated(f"{call.rpc_id} was unknown and is {verdict}")

    def superseded(self, call: Call) -> bool:
        """Whether its session takes another writer's calls alone: then a new one is refused."""
        return not self._leases.writes(call.client_id, call.token)

    def _keyed(self, entry: ClientEntry) -> KeyedTracker:
        if entry.keyed is None:
            entry.keyed = KeyedTracker(self._key_bounds.max_keys, self._key_bounds.max_bytes)
        return entry.keyed

    def _retain(
        self,
        client_id: int,
        key: bytes,
        retention_s: float | None,
        now: float,
        age_s: float = 0.0,
    ) -> None:
        retention_s = self._kept_for(client_id, retention_s)
        if retention_s is not None:
            self._retention.note(client_id, key, retention_s - age_s, now)

    def _kept_for(self, client_id: int, retention_s: float | None) -> float | None:
        # A named session's records stay with it: it has a retention of its own.
        if self._leases.is_session(client_id):
            return None
        return self._key_bounds.retained_s(retention_s)

    def _leave_namespace(self, entry: ClientEntry) -> None:
        # No lease of it ever ends: it goes with the last of its calls. Those that ran and are
        # new again are remembered, in a bounded number. Where the store has its row, the store
        # says when.
        if not is_namespace(entry.client_id) or entry.keyed or entry.running or entry.registered:
            return
        if not entry.may_have_run_any():
            self._remove(entry.client_id)

    def _activate(self, client_id: int) -> ClientEntry | None:
        """Give an idle client its entry back; None if no client of that id is idle."""
        idle = self._idle.take(client_id)
        if idle is None:
            return None
        first_incomplete, ranges, calls, registered, recovered = idle
        entry = self._clients[client_id] = self._new_entry(client_id)
        entry.tracker.acknowledge(first_incomplete, ranges)
        for seq, kept in calls:
            entry.tracker.restore(seq, kept)
        entry.registered = registered
        entry.recovered = recovered
        return entry

    def _remove(self, client_id: int) -> None:
        self._idle.take(client_id)
        entry = self._clients.pop(client_id, None)
        if entry is not None and entry.keyed is not None:
            for key in entry.keyed.keys():  # noqa: SIM118 - a tracker, not a mapping
                self._retention.forget(client_id, key)

    def _new_entry(self, client_id: int) -> ClientEntry:
        released = self.released if self._note_released else None
        entry = ClientEntry(client_id, self._window, released=released)
        entry.keyed_only = self._leases.is_session(client_id)
        return entry


def match_payload(call: Call, fingerprint: bytes | None) -> None:
    """Raise ``PayloadMismatch`` where both payloads are known, and differ."""
    if call.fingerprint is None or fingerprint is None or call.fingerprint == fingerprint:
        return
    if fingerprint not in call.others:
        raise PayloadMismatch(f"{call.rpc_id} is the identity of a call with another payload")


def match_seed(call: Call, seed: int) -> None:
    """Raise ``StoreMismatch`` where both seeds are known, and differ: it is another's call.

    A store that was restored from a backup, or a machine that was copied while it ran, may
    grant one id to two clients. Neither is answered with what the other one did.
    """
    if seed and call.seed and seed != call.seed:
        raise StoreMismatch(
            f"{call.rpc_id} is a call of another client that was granted the same id: the store "
            "was restored from a backup, or copied, without `rifl restored`"
        )
