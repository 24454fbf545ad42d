"""The state that a log makes: clients, their calls and their leases (DESIGN §7)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from _rifl_ground.refusals import Outcome
from _rifl_ground.texts import hides
from curp._core.entries import (
    ApplicationVersion,
    CallsAcknowledged,
    ClientRegistered,
    ClientRemoved,
    Entry,
    IdsReserved,
    LeaderStarted,
    Operation,
    SecretsPut,
    SessionForgotten,
    SessionPut,
    SessionsRekeyed,
)
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.leases import Leases
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.identity import DEFAULT_WINDOW, RpcId
from rifl.core._shared.invariant import invariant
from rifl.core._shared.record import CompletionRecord


class Witnessed(enum.Enum):
    """What becomes of a request that a witness held (invariants 6 and 12)."""

    # No leader ran it: run it now.
    FRESH = "fresh"
    # The leader has it, and it is not in the log yet.
    RUNNING = "running"
    # It is in the log, or was acknowledged there.
    KNOWN = "known"
    # Its client is not in the log: nothing of it was ever answered.
    CLIENT_GONE = "client-gone"


class KeptCall(NamedTuple):
    """A completed call that its client has not acknowledged."""

    seq: int | None
    key: bytes | None
    fingerprint: bytes | None
    record: CompletionRecord
    seed: int = 0


@hides("secrets")
class StateHead(NamedTuple):
    """What a snapshot begins with: the position it stands for, and what is of no client.

    ``version``: the active application version, and that of who wrote it.
    """

    lsn: int
    last_id: int
    secrets: tuple[tuple[int, bytes], ...]
    version: int = 0


class ClientKept(NamedTuple):
    """One client in a snapshot: acknowledgements, and the calls not acknowledged."""

    client_id: int
    registered: bool
    first_incomplete: int
    completed: tuple[tuple[int, int], ...]
    calls: tuple[KeptCall, ...]
    holder: bytes = b""


class _StateLeases:
    """Whom the log knows; on a leader, who is alive is for its lease server to say."""

    def __init__(self, sessions: dict[int, SessionPut], holders: dict[int, bytes]) -> None:
        self._sessions = sessions
        self._holders = holders
        self.leader: Leases | None = None

    def renew(self, client_id: int, now: float) -> bool:
        return self.leader is not None and self.leader.renew(client_id, now)

    def is_session(self, client_id: int) -> bool:
        if self.leader is not None:
            return self.leader.is_session(client_id)
        return client_id in self._sessions

    def writes(self, client_id: int, token: bytes) -> bool:
        # What runs without a lease server was taken before, and is run again.
        return self.leader is None or self.leader.writes(client_id, token)

    def holder(self, client_id: int) -> bytes:
        return self._holders.get(client_id, b"")


class GroupState:
    """Clients, calls, leases and sessions, as a function of the log up to ``applied``.

    The same object is warm on a standby, is what a leader decides with (``table``), and
    is rebuilt by recovery: ``commit`` is the one place where an entry takes effect.

    Invariants:

    1. (Invariant 8 of DESIGN §7) But for attempts that run, it is a function of the
       entries up to ``applied``: acknowledgements, too, take effect with the entry
       that carries them, and not when their header arrives.
    2. Entries are committed in order, each once.
    3. (Invariant 7) No operation of a client follows its removal.

    Lease times are no part of it. Not thread-safe. ``now``: seconds of the clock that
    the table's keyed records are kept by.
    """

    def __init__(
        self, *, window: int = DEFAULT_WINDOW, key_bounds: KeyBounds | None = None
    ) -> None:
        self.sessions: dict[int, SessionPut] = {}
        # Whom the leases of clients count for.
        self.holders: dict[int, bytes] = {}
        self.leases = _StateLeases(self.sessions, self.holders)
        self.table = ClientTable(self.leases, window=window, key_bounds=key_bounds)
        self.applied = 0
        self.last_id = 0
        # The active application version.
        self.version = 0
        self.secrets: tuple[tuple[int, bytes], ...] = ()
        # Clients and sessions with operations in the log.
        self.clients: set[int] = set()
        # LSNs of which entries behind the last snapshot say that they are left out.
        self.left_out: set[int] = set()

    def lead(self, leases: Leases | None) -> None:
        """Let a lease server say from now on which clients are alive; None: no server says."""
        self.leases.leader = leases

    def commit(
        self,
        lsn: int,
        entry: Entry,
        now: float,
        *,
        attempt: Attempt | None = None,
        retention_s: float | None = None,
    ) -> bool:
        """Take an entry that is in the log.

        ``attempt``: the leader's own, settled by it; its waiters are for the caller to
        wake. ``retention_s``: its method's own. True if that was the last attempt of a
        client that was dropped: its removal may follow.
        """
        invariant(lsn == self.applied + 1, f"LSN {lsn} is committed after {self.applied}")
        self.applied = lsn
        gone = False
        if isinstance(entry, Operation):
            gone = self._operation(entry, now, attempt, retention_s)
        elif isinstance(entry, ClientRegistered):
            self._register(entry.client_id, entry.holder)
        elif isinstance(entry, ClientRemoved):
            self.clients.discard(entry.client_id)
            self.holders.pop(entry.client_id, None)
            self.table.drop([entry.client_id])
        elif isinstance(entry, CallsAcknowledged):
            # It may have been placed as its client was removed.
            if entry.client_id in self.clients:
                tracker = self.table.entry(entry.client_id).tracker
                tracker.acknowledge(entry.first_incomplete, entry.completed)
        elif isinstance(entry, SessionPut):
            self.sessions[entry.client_id] = entry
        elif isinstance(entry, SessionForgotten):
            self.sessions.pop(entry.client_id, None)
        elif isinstance(entry, SessionsRekeyed):
            for client_id in entry.client_ids:
                if client_id in self.sessions:
                    session = self.sessions[client_id]
                    self.sessions[client_id] = session._replace(secret=entry.secret)
        elif isinstance(entry, IdsReserved):
            self.last_id = max(self.last_id, entry.last_id)
        elif isinstance(entry, SecretsPut):
            self.secrets = entry.secrets
        elif isinstance(entry, ApplicationVersion):
            self.version = max(self.version, entry.version)
        else:
            invariant(isinstance(entry, LeaderStarted), f"{entry!r} is no entry")
        return gone

    def witnessed(self, call: Call) -> Witnessed:
        """Filter a request that a witness held; changes nothing (invariants 6 and 12).

        The lease's time is not looked at, and neither are the call's own
        acknowledgements: the requests of one witness come in no order.
        """
        client_id = call.client_id
        if client_id not in self.clients:
            return Witnessed.CLIENT_GONE
        entry = self.table.find(client_id)
        if entry is None:
            return Witnessed.FRESH
        if call.identity in entry.running:
            return Witnessed.RUNNING
        return Witnessed.KNOWN if self.logged(call.rpc_id) else Witnessed.FRESH

    def logged(self, rpc_id: RpcId) -> bool:
        """Whether a call that does not run is in the log, or was acknowledged there."""
        entry = self.table.find(rpc_id.client_id)
        if entry is None:
            return False
        if rpc_id.key is not None:
            return entry.keyed is not None and entry.keyed.peek(rpc_id.key) is not Verdict.NEW
        return entry.tracker.peek(rpc_id.seq) is not Verdict.NEW  # type: ignore[arg-type]

    def known_ids(self) -> list[int]:
        """Return whom a new leader's lease server gives a full term: clients and sessions."""
        return sorted(self.clients)

    # -- snapshots (invariant 8) -------------------------------------------------------

    def may_save(self, application_version: int) -> bool:
        """Whether a replica of that version may save a snapshot.

        Until an upgrade is finalized replicas of the version before may come back, which could
        not read what a newer one writes.
        """
        return application_version == self.version

    def dump(self) -> Iterator[StateHead | SessionPut | ClientKept]:
        """Return all of it, for a snapshot; to be consumed before anything changes."""
        yield StateHead(self.applied, self.last_id, self.secrets, self.version)
        yield from self.sessions.values()
        # Others have nothing but calls that run.
        ids = self.clients | {
            entry.client_id for entry in self.table.entries() if is_namespace(entry.client_id)
        }
        for client_id in sorted(ids):
            yield self._dump_client(client_id)

    def load(self, items: Iterable[StateHead | SessionPut | ClientKept], now: float) -> None:
        """Take a snapshot into an object that is new."""
        invariant(self.applied == 0, "a snapshot is loaded into a state that has begun")
        for item in items:
            if isinstance(item, StateHead):
                self.applied, self.last_id, self.secrets, self.version = item
            elif isinstance(item, SessionPut):
                self.sessions[item.client_id] = item
            else:
                self._load_client(item, now)

    def _dump_client(self, client_id: int) -> ClientKept:
        entry = self.table.find(client_id)
        registered = client_id in self.clients
        holder = self.holders.get(client_id, b"")
        if entry is None:
            return ClientKept(client_id, registered, 1, (), (), holder)
        calls = [
            KeptCall(seq, None, fingerprint, record, seed)
            for seq, (fingerprint, record, seed) in entry.tracker.completed()
        ]
        for key in () if entry.keyed is None else entry.keyed.keys():
            kept = entry.keyed.record(key)  # type: ignore[union-attr]
            if kept is not None:
                calls.append(KeptCall(None, key, *kept[:2]))
        return ClientKept(
            client_id,
            registered,
            entry.tracker.first_incomplete,
            tuple(entry.tracker.completed_ranges()),
            tuple(calls),
            holder,
        )

    def _register(self, client_id: int, holder: bytes) -> None:
        self.clients.add(client_id)
        if holder:
            self.holders[client_id] = holder

    def _load_client(self, client: ClientKept, now: float) -> None:
        if client.registered:
            self._register(client.client_id, client.holder)
        tracker = self.table.entry(client.client_id).tracker
        tracker.acknowledge(client.first_incomplete, client.completed)
        for seq, key, fingerprint, record, seed in client.calls:
            if key is None:
                tracker.restore(seq, (fingerprint, record, seed))  # type: ignore[arg-type]
            else:
                self._restore_key(client.client_id, key, (fingerprint, record, 0), None, now)
            if record.outcome is Outcome.UNKNOWN:
                identity: int | bytes = seq if key is None else key  # type: ignore[assignment]
                self.table.note_unknown(client.client_id, identity, now)

    def _operation(
        self, entry: Operation, now: float, attempt: Attempt | None, retention_s: float | None
    ) -> bool:
        client_id = entry.client_id
        invariant(
            client_id in self.clients or is_namespace(client_id),
            f"an operation of client {client_id}, which is not registered",
        )
        if attempt is None:
            kept = (entry.fingerprint, entry.answer, entry.stamp[1] if entry.key is None else 0)
            tracker = self.table.entry(client_id).tracker
            if entry.key is not None:
                self._restore_key(client_id, entry.key, kept, retention_s, now)
            else:
                tracker.restore(entry.seq, kept)  # type: ignore[arg-type]
            gone = False
        else:
            tracker = attempt.entry.tracker
            gone = self.table.settle(attempt, entry.answer, keep=True, now=now)
        if entry.answer.outcome is Outcome.UNKNOWN:
            self.table.note_unknown(client_id, entry.identity, now)
        if entry.first_incomplete > 1 or entry.completed:
            tracker.acknowledge(entry.first_incomplete, entry.completed)
        if entry.set_aside is not None and entry.set_aside.lsn:
            self.left_out.add(entry.set_aside.lsn)
        return gone

    def _restore_key(
        self,
        client_id: int,
        key: bytes,
        kept: tuple[bytes | None, CompletionRecord, int],
        retention_s: float | None,
        now: float,
    ) -> None:
        # Late is safe: a standby counts the retention from when it read the entry.
        self.table.restore_key(
            client_id,
            key,
            kept,
            kept[1].size,
            retention_s=retention_s,
            now=now,
        )
