"""The authority over a storage: tokens, heartbeats and sessions, however leases are kept."""

from __future__ import annotations

import abc
import secrets as randomness
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import UNHEARD, Events
from _rifl_ground.portions import MAX_CLIENTS
from _rifl_ground.refusals import (
    BadHeader,
    LeaseExpired,
    NotYours,
    RiflError,
    SessionClosed,
    StoreMismatch,
)
from lease_server._authority import TERM_S, Beat, Grant
from lease_server._errors import StorageUnavailable
from lease_server._forked import leases_forked
from lease_server._holders import LeaseBounds
from lease_server._keyring import KeyRing
from lease_server._sessionbook import OpenedSession
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import NOTHING, Acknowledgements, LeaseStorage, Standing
from lease_server._table import BlockExhausted, LeaseTable
from lease_server._tokens import (
    MAX_CLIENT_ID,
    WRITER_BYTES,
    make_token,
    peer_bound,
    verify,
    writer_of,
)

_REFRESHES_PER_TERM = 4


class Signer:
    """The key ring joined to its storage. Any thread.

    ``token``, ``fresh_token`` and ``check`` take no lock and do no I/O; the others
    block on the storage. Raises StorageUnavailable if the secrets cannot be read.
    """

    def __init__(
        self,
        storage: LeaseStorage,
        *,
        term_s: float,
        clock: Callable[[], float],
        events: Events = UNHEARD,
    ) -> None:
        """Read the secrets (blocking)."""
        self._storage = storage
        self._events = events
        self._clock = clock
        self._lock = threading.Lock()
        self._refresh_s = term_s / _REFRESHES_PER_TERM
        self._refresh_at = clock() + self._refresh_s
        self.ring = KeyRing(term_s, self._refresh_s)
        self.ring.update(storage.secrets(), clock())

    def token(self, client_id: int, peer: bytes, writer: bytes = b"") -> bytes:
        """A token for this id, bound to the peer unless that is empty; of a session's writer."""
        return make_token(self.ring.signing, client_id, peer, writer)

    def fresh_token(self, client_id: int, token: bytes, peer: bytes) -> bytes:
        """What replaces a genuine token since the secret was rotated, or b""."""
        if token[2:4] == self.ring.signing.key_id.to_bytes(2, "big"):
            # The same secret makes the same token: no need to compute it.
            return b""
        fresh = self.token(client_id, peer if peer_bound(token) else b"", writer_of(token))
        return b"" if fresh == token else fresh

    def may_be_valid(self, token: bytes) -> bool:
        """Whether the token names a secret that is still valid; says nothing more."""
        return token[2:4] in self.ring.key_ids

    def check(self, client_id: int, token: bytes, peer: bytes) -> None:
        """Raise NotYours, or LeaseExpired for another incarnation's id, unless genuine."""
        if verify(self.ring.valid, client_id, token, peer):
            return
        if 1 <= client_id <= MAX_CLIENT_ID and self._storage.is_foreign(client_id):
            raise LeaseExpired("the server restarted since this client id was granted")
        raise NotYours("the token is not valid for this client id")

    def rotate(self) -> None:
        """Make a new secret, durably."""
        secrets = self._storage.rotate_secret()
        with self._lock:
            self.ring.update(secrets, self._clock())
        self._events.info("secret_rotated", key_id=secrets[0].key_id)

    def refresh(self, now: float) -> None:
        """Let rotations take their course, and look for one by another server."""
        with self._lock:
            self.ring.tick(now)
        if now < self._refresh_at:
            return
        secrets = self._storage.secrets()
        with self._lock:
            self.ring.update(secrets, now)
        self._refresh_at = now + self._refresh_s


class IdBlocks:
    """Takes ids from a table and reserves the next block when one is used up.

    Any thread. The lock that guards the table is not held while the storage works,
    so a slow disk stalls only those who need a new id.
    """

    def __init__(
        self, table: LeaseTable, storage: LeaseStorage, lock: threading.Lock, block_size: int
    ) -> None:
        """``lock`` guards ``table``; ids for ``block_size`` grants are reserved at a time."""
        self._table = table
        self._storage = storage
        self._lock = lock
        self._block_size = block_size << storage.random_bits
        # Lets one thread at a time reserve a block.
        self._reserving = threading.Lock()

    def take(self, take: Callable[[], int]) -> int:
        """``take()`` under the lock, again after each BlockExhausted it raises.

        Raises StorageUnavailable if a block cannot be reserved, or if the storage
        gave one out twice.
        """
        while True:
            with self._lock:
                try:
                    return take()
                except BlockExhausted:
                    pass
            with self._reserving:
                with self._lock:
                    if self._table.ids_left:
                        continue
                first, last = self._storage.reserve_ids(self._block_size)
                with self._lock:
                    try:
                        self._table.use_block(first, last)
                    except ValueError as error:
                        raise StorageUnavailable("the storage gave out ids twice") from error


_Storage = TypeVar("_Storage", bound=LeaseStorage)


class StorageAuthority(abc.ABC, Generic[_Storage]):
    """The rules of tokens, heartbeats and sessions that every storage's authority has.

    What a lease is, and who keeps it, is a subclass's. In a forked child every method
    raises ForkedProcess: ids are reserved for one process. Raises StorageUnavailable if
    the storage cannot be read at start.
    """

    def __init__(
        self,
        storage: _Storage,
        *,
        term_s: float = TERM_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        id_block: int = 1024,
        max_clients: int = MAX_CLIENTS,
        max_clients_per_caller: int | None = None,
        session_policy: SessionPolicy | None = None,
        randbits: Callable[[int], int] = randomness.randbits,
        events: Events = UNHEARD,
    ) -> None:
        """Read the storage and recover (blocking).

        ``clock`` gives seconds, monotonic; all ``now`` arguments are of it.
        ``wall_clock`` gives Unix seconds. ``max_clients`` bounds the leases held, and
        ``max_clients_per_caller`` those that were granted to one peer, or to one address of
        callers without a peer (None: a quarter of them; 0: no such bound); known clients are
        recovered beyond both. ``events`` hears what is decided.
        """
        if id_block < 1:
            raise ValueError("id_block must be at least 1")
        self._storage = storage
        self._events = events
        self._clock = clock
        self._wall_clock = wall_clock
        self._bounds = LeaseBounds.of(max_clients, max_clients_per_caller)
        self._policy = session_policy or SessionPolicy()
        # Guards everything that is decided; never held during I/O.
        self._lock = threading.Lock()
        self._table = LeaseTable(
            term_s, first_id=1, last_id=0, random_bits=storage.random_bits, randbits=randbits
        )
        self._blocks = IdBlocks(self._table, storage, self._lock, id_block)
        self.store = storage.store_id()
        self._signer = Signer(storage, term_s=term_s, clock=clock, events=events)
        self._begin()
        refuse_in_children(self, leases_forked)

    def _begin(self) -> None:
        """Take over what the storage knows, once everything else is made."""

    @property
    def term_s(self) -> float:
        """Length of every lease, seconds."""
        return self._table.term_s

    @property
    def key_ring(self) -> KeyRing:
        """The secrets that tokens are checked with; its ``key_ids`` identifies them."""
        return self._signer.ring

    def now(self) -> float:
        """The authority's clock, seconds."""
        return self._clock()

    # -- tokens ---------------------------------------------------------------------------

    def check(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """Raise NotYours unless the token is genuine; see ``Authority``."""
        self._signer.check(client_id, token, peer)

    def check_store(self, client_id: int, store: int) -> None:
        """Raise StoreMismatch, or LeaseExpired, for an id of another store."""
        if store in (0, self.store):
            return
        if self._storage.is_foreign(client_id):
            raise LeaseExpired(
                f"client id {client_id} is not of this server's memory: it restarted, or two "
                "servers with memory: are behind one address"
            )
        raise StoreMismatch(
            f"client id {client_id} was granted by another store: two stores are behind one "
            "address, or the store was replaced"
        )

    def still_signed(self, token: bytes) -> bool:
        """Whether a token that was genuine once names a secret that is still valid."""
        return self._signer.may_be_valid(token)

    def end_session(self, name: str) -> list[int]:
        """Close all open sessions of a name; see ``Authority``."""
        return [
            self.close_session(row.name, row.peer, row.secret)
            for row in self._storage.load_sessions()
            if row.name == name and row.state is SessionState.OPEN
        ]

    @abc.abstractmethod
    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, older: Sequence[bytes] = ()
    ) -> int:
        """Close permanently and durably; return the id; see ``Authority``."""

    def rotate_secret(self) -> None:
        """Make a new secret, durably. It signs after half a term; see ``Authority``."""
        self._signer.rotate()

    # -- leases ---------------------------------------------------------------------------

    @abc.abstractmethod
    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's: keyed identities only. Also if it ended."""

    def holder(self, client_id: int) -> bytes:
        """Whom a lease counts for, of those that the table holds."""
        with self._lock:
            return self._table.holder(client_id)

    @abc.abstractmethod
    def _beat(self, client_id: int, acknowledged: Acknowledgements) -> Standing:
        """Renew a lease, or a session that was not used; what the id was found to be."""

    def _beats(self, beats: Sequence[tuple[int, Acknowledgements]]) -> list[Standing]:
        """Renew several; fewer if the storage was lost after some of them."""
        found: list[Standing] = []
        for beat in beats:
            try:
                found.append(self._beat(*beat))
            except StorageUnavailable:
                if not found:
                    raise
                break
        return found

    @abc.abstractmethod
    def _release(self, client_id: int) -> None:
        """End a lease."""

    def heartbeat(
        self,
        client_id: int,
        token: bytes,
        peer: bytes = b"",
        acknowledged: Acknowledgements = NOTHING,
    ) -> bytes:
        """Check and renew; the token to use from now on if the secret was rotated, or b""."""
        self.check(client_id, token, peer)
        return self._beaten(client_id, token, peer, self._beat(client_id, acknowledged))

    def heartbeats(self, beats: Sequence[Beat], peer: bytes = b"") -> list[bytes | RiflError]:
        """Check and renew each; see ``Authority``."""
        refused = [self._refusal(beat, peer) for beat in beats]
        good = [
            (beat.client_id, beat.acknowledged)
            for beat, error in zip(beats, refused, strict=True)
            if error is None
        ]
        standings = iter(self._beats(good))
        answers: list[bytes | RiflError] = []
        for beat, error in zip(beats, refused, strict=True):
            if error is not None:
                answers.append(error)
                continue
            standing = next(standings, None)
            if standing is None:
                break
            try:
                answers.append(self._beaten(beat.client_id, beat.token, peer, standing))
            except (LeaseExpired, SessionClosed) as over:
                answers.append(over)
        return answers

    def _refusal(self, beat: Beat, peer: bytes) -> RiflError | None:
        try:
            self.check_store(beat.client_id, beat.store)
            self.check(beat.client_id, beat.token, peer)
        except (LeaseExpired, NotYours, StoreMismatch) as error:
            return error
        return None

    def _beaten(self, client_id: int, token: bytes, peer: bytes, standing: Standing) -> bytes:
        """Return the token to use from now on, or b""; raises what is over."""
        if standing is Standing.CLOSED:
            raise SessionClosed("the session is closed or past its retention")
        if standing is Standing.UNKNOWN:
            raise LeaseExpired("the lease is over; ask for a new client id")
        return self._signer.fresh_token(client_id, token, peer)

    def release(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """End a lease now; see ``Authority``."""
        self.check(client_id, token, peer)
        if self.is_session(client_id):
            raise BadHeader("a session is closed by its name")
        self._release(client_id)

    def _granted(self, client_id: int, peer: bytes) -> Grant:
        return Grant(client_id, self._signer.token(client_id, peer), self.term_s)

    # -- sessions -------------------------------------------------------------------------

    @abc.abstractmethod
    def _open(
        self,
        name: str,
        peer: bytes,
        retention_s: float,
        secret: bytes,
        older: Sequence[bytes],
        source: str,
    ) -> tuple[SessionRow, bool]:
        """The open session of that name, and whether this call created it."""

    def open_session(
        self,
        name: str,
        peer: bytes = b"",
        retention_s: float = 0.0,
        secret: bytes = b"",
        *,
        older: Sequence[bytes] = (),
        source: str = "",
        writer: bytes = b"",
        follows: bytes = b"",
    ) -> OpenedSession:
        """The session of that name and peer, made durable if it is new; see ``Authority``."""
        if any(len(each) not in (0, WRITER_BYTES) for each in (writer, follows)):
            raise BadHeader(f"the writer of a session has {WRITER_BYTES} bytes")
        row, created = self._open(name, peer, retention_s, secret, older, source)
        client_id, writes = row.client_id, b""
        if writer:
            writes = self._write(client_id, writer, follows)
        token = b"" if writes != writer else self._signer.token(client_id, peer, writer)
        term_s = min(self.term_s, row.retention_s)
        return OpenedSession(client_id, token, row.retention_s, created, term_s, writes)

    @abc.abstractmethod
    def _write(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it took those of ``follows``: whose."""
