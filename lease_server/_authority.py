"""The lease authority: leases, tokens, id blocks and sessions behind one object.

What a server asks before it runs a call, and what the gRPC service answers from
(RIFL §3.3; DESIGN §4, §5).
"""

from __future__ import annotations

import secrets as randomness
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from lease_server._blocks import IdBlocks
from lease_server._errors import (
    BadRequest,
    LeaseExpired,
    SessionClosed,
    StorageUnavailable,
    StoreMismatch,
    TooManyClients,
)
from lease_server._events import UNHEARD, Events
from lease_server._forks import leases_forked, refuse_in_children
from lease_server._keyring import KeyRing
from lease_server._sessionbook import OpenedSession, SessionBook
from lease_server._sessions import SessionPolicy
from lease_server._signer import Signer
from lease_server._storage import LeaseStorage
from lease_server._table import LeaseTable


class Grant(NamedTuple):
    """A client id, its capability, and the length of its lease in seconds."""

    client_id: int
    token: bytes
    term_s: float


def mismatch_text(client_id: int) -> str:
    """Return what is said of a client id that another store granted."""
    return (
        f"client id {client_id} was granted by another store: two stores are behind one address, "
        "or the store was replaced"
    )


class LeaseAuthority:
    """Who is alive, on this server. Every method may be called from any thread.

    ``check``, ``renew``, ``alive``, ``is_session``, ``session_refused`` and
    ``release`` never wait for the storage: the lock they take is never held
    during I/O. ``grant`` waits for it once per id block; sessions and ``expire``
    wait for it. What a crash leaves: reserved ids that are never granted, the
    secrets and the sessions; every known client gets a full new term. In a forked
    child every method raises ForkedProcess: ids are reserved for one process.

    Invariants:

    1. No id outside a durably reserved block is granted, and none twice.
    2. A renewal that returned True keeps its id out of ``expire`` for a term.
    3. Every id is returned by ``expire`` at most once in a lifetime of the object,
       and a session's only after its end is durable.

    ``store``: which records its ids belong to (see ``LeaseStorage.store_id``).

    Raises StorageUnavailable if the storage cannot be read at start.
    """

    # Heartbeats and releases never wait for the storage.
    blocks = False

    def __init__(
        self,
        storage: LeaseStorage,
        *,
        term_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        id_block: int = 1024,
        max_clients: int = 1_000_000,
        session_policy: SessionPolicy | None = None,
        randbits: Callable[[int], int] = randomness.randbits,
        events: Events = UNHEARD,
    ) -> None:
        """Read the storage and recover (blocking).

        ``clock`` gives seconds, monotonic; all ``now`` arguments are of it.
        ``wall_clock`` gives Unix seconds. ``max_clients`` bounds the leases held;
        known clients are recovered beyond it. ``events`` hears what is decided.
        """
        if id_block < 1 or max_clients < 1:
            raise ValueError("id_block and max_clients must be at least 1")
        self._storage = storage
        self._events = events
        self._clock = clock
        self._max_clients = max_clients
        # Guards everything that is decided; never held during I/O.
        self._lock = threading.Lock()
        self._table = LeaseTable(
            term_s, first_id=1, last_id=0, random_bits=storage.random_bits, randbits=randbits
        )
        self._blocks = IdBlocks(self._table, storage, self._lock, id_block)
        self.store = storage.store_id()
        self._signer = Signer(storage, term_s=term_s, clock=clock, events=events)
        self._drops: list[int] = []
        self._book = SessionBook(
            storage,
            session_policy or SessionPolicy(),
            lock=self._lock,
            clock=clock,
            wall_clock=wall_clock,
            new_id=lambda: self._blocks.take(self._table.take_id),
            unused_s=term_s,
            events=events,
        )
        self.recover()
        refuse_in_children(self, leases_forked)

    @property
    def term_s(self) -> float:
        """Length of every lease, seconds."""
        return self._table.term_s

    def now(self) -> float:
        """The authority's clock, seconds."""
        return self._clock()

    def __len__(self) -> int:
        """Leases held, without sessions."""
        return len(self._table)

    def recover(self) -> None:
        """Load the sessions, and give every known client a full term.

        The constructor has done this; calling again before anyone is served is
        harmless. Sessions are not clients: they keep their own retention, and the
        ids of ended ones that still have a row come out of the next ``expire``, so
        a crash between closing and dropping leaves nothing behind.
        """
        # Negative ids are the server's own (namespaces of keys): they have no lease.
        known = {client_id for client_id in self._storage.known_clients() if client_id > 0}
        ended = self._book.load(known)
        with self._lock:
            now = self._clock()
            self._drops = sorted(known & ended)
            clients = {client_id for client_id in known if not self._book.holds(client_id)}
            self._table.recover(clients, now)
        self._events.info("recovered", clients=len(clients), sessions=len(self._book))

    def extend(self) -> None:
        """Give every lease and session that ``expire`` has not returned a full new term.

        After a time in which nobody could be served, so that nobody could renew: late is
        safe. Never waits for the storage.
        """
        with self._lock:
            now = self._clock()
            self._table.extend(now)
            self._book.extend(now)

    def grant(self, peer: bytes = b"") -> Grant:
        """A new client, bound to the peer's identity unless that is empty.

        Raises TooManyClients; StorageUnavailable if a new id block was needed.
        """
        client_id = self._blocks.take(self._grant_id)
        return Grant(client_id, self._signer.token(client_id, peer), self.term_s)

    def check(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """Raise NotYours unless the token is genuine for this id and peer.

        For a storage that forgets, the id of an incarnation that is gone raises
        LeaseExpired. Says nothing about the lease. Takes no lock, and costs one
        HMAC; ``peer`` is used only if ``peer_bound(token)``.
        """
        self._signer.check(client_id, token, peer)

    def check_store(self, client_id: int, store: int) -> None:
        """Raise StoreMismatch for an id of another store; 0 where nobody said of which.

        Records in memory go with their process: an id of another one is LeaseExpired.
        """
        if store in (0, self.store):
            return
        if self._storage.is_foreign(client_id):
            raise LeaseExpired(
                f"client id {client_id} is not of this server's memory: it restarted, or two "
                "servers with memory: are behind one address"
            )
        raise StoreMismatch(mismatch_text(client_id))

    def fresh_token(self, client_id: int, token: bytes, peer: bytes) -> bytes:
        """What replaces a genuine token since the secret was rotated, or b""."""
        return self._signer.fresh_token(client_id, token, peer)

    @property
    def key_ring(self) -> KeyRing:
        """The secrets that tokens are checked with; its ``key_ids`` identifies them."""
        return self._signer.ring

    def still_signed(self, token: bytes) -> bool:
        """Whether a token that was genuine once names a secret that is still valid.

        For callers that remember what they checked. No lock, no HMAC.
        """
        return self._signer.may_be_valid(token)

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """Extend a lease by a term, or restart a session's retention; True if alive.

        To be asked for every accepted call, in place of ``alive``: an ``alive``
        that was true may be followed by an ``expire`` at once.
        """
        lock = self._lock
        # Not ``with``, which costs more than the lock: this is asked for every call.
        lock.acquire()
        try:
            at = self._clock() if now is None else now
            return self._table.renew(client_id, at) or self._book.renew(client_id, at)
        finally:
            lock.release()

    def alive(self, client_id: int, now: float | None = None) -> bool:
        """Whether the id's lease runs, or it is an open session."""
        with self._lock:
            at = self._clock() if now is None else now
            return self._table.alive(client_id, at) or self._book.alive(client_id, at)

    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's: keyed identities only. Also if it ended."""
        return self._book.holds(client_id)

    def session_refused(self, client_id: int, now: float | None = None) -> bool:
        """Whether the id is that of a session which is closed or past its retention."""
        with self._lock:
            at = self._clock() if now is None else now
            return self._book.holds(client_id) and not self._book.alive(client_id, at)

    def heartbeat(self, client_id: int, token: bytes, peer: bytes = b"") -> bytes:
        """Check and renew; the token to use from now on if the secret was rotated, or b"".

        Raises NotYours, LeaseExpired or SessionClosed.
        """
        self.check(client_id, token, peer)
        with self._lock:
            now = self._clock()
            # It keeps a session that no call was made in for one more term, and no longer.
            alive = self._table.renew(client_id, now) or self._book.renew(
                client_id, now, used=False
            )
        if not alive:
            if self.is_session(client_id):
                raise SessionClosed("the session is closed or past its retention")
            raise LeaseExpired("the lease is over; ask for a new client id")
        return self._signer.fresh_token(client_id, token, peer)

    def release(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """End a lease now; the next ``expire`` returns its id. Twice is the same as once.

        Raises NotYours or LeaseExpired as ``check`` does, BadRequest for a session.
        """
        self.check(client_id, token, peer)
        if self.is_session(client_id):
            raise BadRequest("a session is closed by its name")
        with self._lock:
            if self._table.remove(client_id):
                self._drops.append(client_id)

    def open_session(
        self,
        name: str,
        peer: bytes = b"",
        retention_s: float = 0.0,
        secret: bytes = b"",
        *,
        adopting: bool = False,
        source: str = "",
    ) -> OpenedSession:
        """The session of that name and peer, made durable if it is new.

        ``retention_s`` 0 asks for the default; an opener that asks for more than
        the session has extends it. ``secret`` is the verifier (see ``session_secret``) of
        what the caller shows, and has to be the session's; ``adopting``: one that has none
        takes it. Whether a caller may do without is asked before. ``source``: where one is
        whom nobody authenticated. Raises BadRequest,
        NotYours, SessionClosed, TooManySessions, StorageUnavailable.
        """
        row, created = self._book.open(
            name, peer, retention_s, secret, adopting=adopting, source=source
        )
        token = self._signer.token(row.client_id, peer)
        term_s = min(self.term_s, row.retention_s)
        return OpenedSession(row.client_id, token, row.retention_s, created, term_s)

    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, adopting: bool = False
    ) -> int:
        """Close for ever, durably; the id, which the next ``expire`` returns.

        A numbered session (see ``SessionTable``) closes with all below it. Closing an
        ended session again returns its id. ``secret`` and ``adopting`` as in
        ``open_session``. Raises BadRequest, NotYours, SessionClosed for a name never
        opened, StorageUnavailable.
        """
        client_id, ended_now = self._book.close(name, peer, secret, adopting=adopting)
        with self._lock:
            self._drops += ended_now
        return client_id

    def rotate_secret(self) -> None:
        """Make a new secret, durably. It signs after half a term.

        Tokens of the old one stay valid for at least a term after that, and every
        heartbeat answers with a new one. Rotate at most once in three terms. Raises
        StorageUnavailable.
        """
        self._signer.rotate()

    def expire(self, now: float | None = None) -> list[int]:
        """The ids whose records must be dropped now, ascending, each once.

        Expired and released clients, and sessions whose end is durable. To be
        called every few seconds, from one thread at a time, not from a call's: it
        writes the ends of sessions and looks for a rotated secret. Trouble with
        the storage is logged and tried again next time. The caller drops each id
        after its running calls, and repeats that until it succeeds; a crash before
        then is safe, since the id is known and gets a new term.
        """
        at = self._clock() if now is None else now
        try:
            self._signer.refresh(at)
            self._book.sweep(at)
        except StorageUnavailable as error:
            self._events.warning("storage_unavailable", error=str(error))
        with self._lock:
            ids = self._drops + self._book.take_ended() + self._table.expire(at)
            self._drops = []
        return sorted(ids)

    def _grant_id(self) -> int:
        """One grant, under the lock."""
        now = self._clock()
        if len(self._table) >= self._max_clients:
            # Nobody may have swept for a while: do not count the dead.
            self._drops += self._table.expire(now)
            if len(self._table) >= self._max_clients:
                raise TooManyClients(f"this server holds {self._max_clients} leases already")
        return self._table.grant(now)
