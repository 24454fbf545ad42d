"""Inspection of a store from outside its server: rows read, calls settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

# What is remembered of calls whose outcome was unknown: so many, and for a week.
NOTES_KEPT = 10_000
VERDICTS_KEPT_S = 7 * 86_400


class Summary(NamedTuple):
    """A store at a glance.

    ``owner`` names the process that has it open, or the server replicas that live,
    None if there is none. ``intents`` are calls begun and not known to have ended:
    running, if there is an owner. On SQLite calls that need no intent do not show
    while they run; on Redis and PostgreSQL all do. ``incarnation`` counts openings,
    None where replicas share the store. ``stopped``: it has lost what it had
    acknowledged, and no server takes calls. ``url`` has no credentials. ``open_to``: the
    users beside its owner who may open the store's file, empty if there are none, or no file.
    """

    url: str
    schema_version: int
    incarnation: int | None
    owner: str | None
    size_bytes: int
    clients: int
    open_sessions: int
    intents: int
    records: int
    record_bytes: int
    oldest_unix_s: int | None
    stopped: bool = False
    open_to: str = ""


class SessionInfo(NamedTuple):
    """A named session; ``peer`` is empty for unauthenticated callers."""

    name: str
    peer: bytes
    state: str
    retention_s: float
    changed_at_unix_s: float


class ClientRow(NamedTuple):
    """A client or a session with what is kept for it.

    ``completed`` are the acknowledged ranges above ``first_incomplete``,
    inclusive. Times are Unix seconds; ``registered_at_unix_s`` is None if replicas share
    the store, or if no call was made in the session yet, and ``changed_at_unix_s`` is None
    if no call is kept.
    ``lease_left_s``: after how many seconds the lease, or the session's retention,
    ends if it is not renewed, below zero if it is due to be swept; None if its server
    alone knows (SQLite), and for a namespace of a peer's keys, which has a negative id
    and no lease.
    """

    client_id: int
    first_incomplete: int
    completed: list[tuple[int, int]]
    intents: int
    records: int
    record_bytes: int
    registered_at_unix_s: int | None
    changed_at_unix_s: int | None
    session: SessionInfo | None
    lease_left_s: float | None = None


class CallRow(NamedTuple):
    """One call: an intent if ``record_bytes`` is None, else recorded.

    ``changed_at_unix_s`` is when it became that. ``method`` is empty if the call never
    arrived, and only its outcome was asked for, or settled. ``owner`` is the incarnation of
    the replica that runs an intent, if replicas share the store.
    """

    rpc_id: RpcId
    method: str
    fingerprint: bytes | None
    record_bytes: int | None
    changed_at_unix_s: int
    owner: str | None = None


class Inspection(Protocol):
    """A view of a store, beside the process that owns it. One thread at a time.

    Reading takes no lock that its server would wait for. Rows are read as they
    are when asked for, so two answers may differ. Raises a ``StoreError`` for a
    store that cannot be read; closed by ``close``.
    """

    def summary(self) -> Summary:
        """Count everything."""

    def clients(self, limit: int | None = None) -> list[ClientRow]:
        """Return clients and sessions, those that keep the most calls first."""

    def client(self, client_id: int) -> ClientRow | None:
        """Return one client, None if it is unknown."""

    def calls(
        self, client_id: int | None = None, *, only_intents: bool = False
    ) -> Iterator[CallRow]:
        """Return the calls kept, of one client or of all, by identity."""

    def call(self, rpc_id: RpcId) -> CallRow | None:
        """Return one call, None if nothing is kept of it."""

    def record(self, rpc_id: RpcId) -> CompletionRecord | None:
        """Return what a call was answered; raises ``StoreCorrupt`` if unreadable."""

    def holder(self, rpc_id: RpcId) -> str | None:
        """Return which process must be gone before the call may be released; None for none.

        SQLite: the store's owner, which would not notice. Redis, PostgreSQL: the
        replica that began the call and has not ended it, though others may have recorded
        that its outcome is unknown; if it lives, or is a process of this machine, suspended
        or not. Blocks for as long as a replica may be silent before it is taken for dead.
        """

    def stored(self, rpc_id: RpcId) -> bytes | None:
        """Return the bytes of a call's record, None if it has none."""

    def replace(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """Give a call another record, if it still has the one that was seen; remember the note.

        ``seen`` None: it was begun, and no process runs it. One atomic step: an attempt that
        runs though its replica was taken for dead can record nothing any more. False if it has
        changed.
        """

    def refuse(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """Record that a call is not executed, where its handler may run without a claim.

        The store does not know of such a run (DESIGN §4, step 6), and could not keep it from
        committing later. False where none can be, or commit: then nothing was done. As
        ``replace`` else; ``seen`` is None, too, where nothing is known of the call. Raises
        ``StoreLocked`` where it has changed, or is being recorded just now.
        """

    def remember(self, rpc_id: RpcId, note: str) -> None:
        """Keep a note of a call, the newest of each, and ``NOTES_KEPT`` in all."""

    def remembered(self) -> Iterator[tuple[RpcId, str, int | None, str | None]]:
        """Return what is remembered: the method, since when, and the note.

        A store remembers verdicts by itself, for ``VERDICTS_KEPT_S``: then without a note.
        """

    def release(self, rpc_id: RpcId) -> bool:
        """Forget a call by hand: a retry of it runs again. False if it is not kept.

        One atomic step. An attempt that still runs, though its replica was taken for
        dead, can record nothing any more. Refused with ``StoreLocked`` while there is
        a ``holder``.
        """

    def rotate_secret(self) -> int:
        """Make a new secret for tokens; its key id.

        Allowed while a server owns the store: it looks for one four times a term.
        """

    def restored(self) -> str:
        """Take what was restored from a backup for the store; its new id.

        A new incarnation, whose ids are none that were granted before: every client and
        session ends, and calls of theirs are refused, since what was recorded after the
        backup is not known any more. Keys of namespaces stay. Done again it is harmless.
        Refused with ``StoreLocked`` while a server uses the store.
        """

    def accept_loss(self, who: str, why: str) -> str:
        """Serve again from what is there; the store's new id.

        For a store that stopped, since it has lost what it had acknowledged, or that was
        failed over or restored on purpose. Earlier clients end: their calls are refused, but
        for calls whose records are there. Running processes must be started anew. Kept with
        the store: who, why, and when. Raises ``UnsupportedStore`` if ``rifl restored`` does
        that for this kind of store.
        """

    def close(self) -> None:
        """Close the view."""
