"""The authority over a storage: tokens, heartbeats and sessions, whoever keeps the leases."""

from __future__ import annotations

import abc
import secrets as randomness
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import UNHEARD, Events
from lease_server._authority import TERM_S, Beat, Grant
from lease_server._blocks import IdBlocks
from lease_server._errors import (
    BadRequest,
    LeaseError,
    LeaseExpired,
    NotYours,
    SessionClosed,
    StorageUnavailable,
    StoreMismatch,
)
from lease_server._forked import leases_forked
from lease_server._keyring import KeyRing
from lease_server._sessionbook import OpenedSession
from lease_server._sessions import SessionPolicy, SessionRow
from lease_server._signer import Signer
from lease_server._storage import LeaseStorage, Standing
from lease_server._table import LeaseTable

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
        self._wall_clock = wall_clock
        self._max_clients = max_clients
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

    def fresh_token(self, client_id: int, token: bytes, peer: bytes = b"") -> bytes:
        """What replaces a genuine token since the secret was rotated, or b""."""
        return self._signer.fresh_token(client_id, token, peer)

    def rotate_secret(self) -> None:
        """Make a new secret, durably. It signs after half a term; see ``Authority``."""
        self._signer.rotate()

    # -- leases ---------------------------------------------------------------------------

    @abc.abstractmethod
    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's: keyed identities only. Also if it ended."""

    @abc.abstractmethod
    def _beat(self, client_id: int) -> Standing:
        """Renew a lease, or a session that was not used; what the id was found to be."""

    def _beats(self, client_ids: Sequence[int]) -> list[Standing]:
        """Renew several; fewer where the storage was lost after some of them."""
        found: list[Standing] = []
        for client_id in client_ids:
            try:
                found.append(self._beat(client_id))
            except StorageUnavailable:
                if not found:
                    raise
                break
        return found

    @abc.abstractmethod
    def _release(self, client_id: int) -> None:
        """End a lease."""

    def heartbeat(self, client_id: int, token: bytes, peer: bytes = b"") -> bytes:
        """Check and renew; the token to use from now on if the secret was rotated, or b""."""
        self.check(client_id, token, peer)
        return self._beaten(client_id, token, peer, self._beat(client_id))

    def heartbeats(self, beats: Sequence[Beat], peer: bytes = b"") -> list[bytes | LeaseError]:
        """Check and renew each; see ``Authority``."""
        refused = [self._refusal(beat, peer) for beat in beats]
        good = [beat.client_id for beat, error in zip(beats, refused, strict=True) if error is None]
        standings = iter(self._beats(good))
        answers: list[bytes | LeaseError] = []
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

    def _refusal(self, beat: Beat, peer: bytes) -> LeaseError | None:
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
            raise BadRequest("a session is closed by its name")
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
        source: str = "",
    ) -> OpenedSession:
        """The session of that name and peer, made durable if it is new; see ``Authority``."""
        row, created = self._open(name, peer, retention_s, secret, source)
        token = self._signer.token(row.client_id, peer)
        term_s = min(self.term_s, row.retention_s)
        return OpenedSession(row.client_id, token, row.retention_s, created, term_s)
