"""A lease authority for several servers over one storage (DESIGN §5)."""

from __future__ import annotations

import enum
import math
import secrets as randomness
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from lease_server._authority import Grant, LeaseAuthority, mismatch_text
from lease_server._blocks import IdBlocks
from lease_server._errors import (
    BadRequest,
    LeaseExpired,
    SessionClosed,
    StorageUnavailable,
    StoreMismatch,
)
from lease_server._events import UNHEARD, Events
from lease_server._forks import leases_forked, refuse_in_children
from lease_server._keyring import KeyRing
from lease_server._session_secret import require_owner
from lease_server._sessionbook import OpenedSession
from lease_server._sessions import SessionPolicy, SessionRow, SessionState, SessionTable
from lease_server._signer import Signer
from lease_server._storage import LeaseStorage
from lease_server._table import LeaseTable


class Standing(enum.Enum):
    """What an id is, as its row in the storage says."""

    ALIVE = "alive"
    SESSION = "session"
    CLOSED = "closed"
    UNKNOWN = "unknown"


@runtime_checkable
class SharedLeaseStorage(LeaseStorage, Protocol):
    """A storage that decides about leases and sessions itself, for many servers.

    The row of a client is its lease. Every method is one or few atomic steps, and
    blocks. Raises StorageUnavailable.

    ``held``: how many clients and sessions had a row when they were last counted.
    """

    held: int

    def count(self) -> None:
        """Bring ``held`` up to date; costs no more with many rows than with few."""

    def grant(self, client_id: int, term_s: float, max_clients: int) -> None:
        """Make the id known, with a lease of ``term_s``. Raises TooManyClients."""

    def renew(self, client_id: int) -> Standing:
        """Give a lease, or a session's retention, its full length again."""

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep. Unknown ids are fine."""

    def open_session(
        self,
        row: SessionRow,
        policy: SessionPolicy,
        *,
        adopting: bool = False,
        unused_s: float = math.inf,
    ) -> SessionRow:
        """Insert the session and its client row, or return the row that stands.

        Until a call is made in it, it has a lease of ``unused_s`` in place of its retention,
        and is forgotten with its name when that ends.

        A longer retention extends the standing one's; ``adopting``: one without a secret
        takes the row's. Raises TooManySessions, and NotYours where the row's secret is not
        that of the standing one, or of its series.
        """

    def close_session(
        self, name: str, peer: bytes, unix_s: float, secret: bytes = b"", *, adopting: bool = False
    ) -> tuple[SessionRow, bool]:
        """Close for ever; the row, and whether it was open until now.

        Raises SessionClosed for a name never opened, NotYours as ``open_session``.
        """

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due, drop the rows and records of what ended; how many.

        Nothing is ended before this process watched the storage for a full
        ``term_s`` without a gap. A client with a call running on a living replica
        stays until a later sweep, refused meanwhile.
        """


class SharedAuthority:
    """What ``LeaseAuthority`` is, for a storage that several servers share.

    Same methods, same errors; but all state is in the storage, so a client granted
    here is known everywhere at once, and everything but ``check`` waits for the
    storage: see ``blocks``. A grant is one small write, a heartbeat too. Any thread.

    Raises StorageUnavailable if the storage cannot be read at start.
    """

    # Heartbeats and releases wait for the storage: not for an event loop's thread.
    blocks = True

    def __init__(
        self,
        storage: SharedLeaseStorage,
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
        """Read the secrets (blocking); see ``LeaseAuthority`` for the parameters."""
        if id_block < 1 or max_clients < 1:
            raise ValueError("id_block and max_clients must be at least 1")
        self._storage = storage
        self._events = events
        self._clock = clock
        self._wall_clock = wall_clock
        self._max_clients = max_clients
        self._policy = session_policy or SessionPolicy()
        # Only gives out ids: no lease is held in it.
        self._table = LeaseTable(
            term_s, first_id=1, last_id=0, random_bits=storage.random_bits, randbits=randbits
        )
        self._blocks = IdBlocks(self._table, storage, threading.Lock(), id_block)
        self.store = storage.store_id()
        self._signer = Signer(storage, term_s=term_s, clock=clock, events=events)
        refuse_in_children(self, leases_forked)

    @property
    def term_s(self) -> float:
        """Length of every lease, seconds."""
        return self._table.term_s

    def now(self) -> float:
        """The authority's clock, seconds."""
        return self._clock()

    def grant(self, peer: bytes = b"") -> Grant:
        """A new client, known on every server when this returns."""
        client_id = self._blocks.take(self._table.take_id)
        self._storage.grant(client_id, self.term_s, self._max_clients)
        return Grant(client_id, self._signer.token(client_id, peer), self.term_s)

    def __len__(self) -> int:
        """Leases and sessions in the storage, on whichever server, when last counted."""
        return self._storage.held

    @property
    def key_ring(self) -> KeyRing:
        """The secrets that tokens are checked with; its ``key_ids`` identifies them."""
        return self._signer.ring

    def still_signed(self, token: bytes) -> bool:
        """Whether a token that was genuine once names a secret that is still valid."""
        return self._signer.may_be_valid(token)

    def check(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """Raise NotYours unless the token is genuine for this id and peer. Never blocks."""
        self._signer.check(client_id, token, peer)

    def check_store(self, client_id: int, store: int) -> None:
        """Raise StoreMismatch for an id of another store; 0 where nobody said of which."""
        if store not in (0, self.store):
            raise StoreMismatch(mismatch_text(client_id))

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """Extend a lease or a session's retention; True if it is alive."""
        return self._storage.renew(client_id) in (Standing.ALIVE, Standing.SESSION)

    def alive(self, client_id: int, now: float | None = None) -> bool:
        """Whether the id is alive; asking renews it."""
        return self.renew(client_id)

    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's; asking renews it."""
        return self._storage.renew(client_id) in (Standing.SESSION, Standing.CLOSED)

    def fresh_token(self, client_id: int, token: bytes, peer: bytes = b"") -> bytes:
        """The token to use from now on if the secret was rotated, or b""."""
        return self._signer.fresh_token(client_id, token, peer)

    def heartbeat(self, client_id: int, token: bytes, peer: bytes = b"") -> bytes:
        """Check and renew; the token to use from now on if the secret was rotated, or b""."""
        self.check(client_id, token, peer)
        standing = self._storage.renew(client_id)
        if standing is Standing.CLOSED:
            raise SessionClosed("the session is closed or past its retention")
        if standing is Standing.UNKNOWN:
            raise LeaseExpired("the lease is over; ask for a new client id")
        return self._signer.fresh_token(client_id, token, peer)

    def release(self, client_id: int, token: bytes, peer: bytes = b"") -> None:
        """End a lease; its rows go with the next sweep."""
        self.check(client_id, token, peer)
        if self.is_session(client_id):
            raise BadRequest("a session is closed by its name")
        self._storage.release(client_id)

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
        """The session of that name and peer, made durable if it is new."""
        SessionTable.check_name(name)
        wanted = SessionRow(
            self._blocks.take(self._table.take_id),
            name,
            peer,
            SessionState.OPEN,
            self._policy.retention_s(retention_s),
            self._wall_clock(),
            secret,
            source,
        )
        row = self._storage.open_session(
            wanted, self._policy, adopting=adopting, unused_s=self.term_s
        )
        require_owner(row.secret, secret, adopting=adopting)
        if row.state is not SessionState.OPEN:
            raise SessionClosed(f"session {name!r} is closed or past its retention")
        created = row.client_id == wanted.client_id
        if created:
            self._events.info("session_opened", client_id=row.client_id, name=name)
        token = self._signer.token(row.client_id, peer)
        term_s = min(self.term_s, row.retention_s)
        return OpenedSession(row.client_id, token, row.retention_s, created, term_s)

    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, adopting: bool = False
    ) -> int:
        """Close for ever, durably, on every server; the id."""
        SessionTable.check_name(name)
        row, now = self._storage.close_session(
            name, peer, self._wall_clock(), secret, adopting=adopting
        )
        if now:
            self._events.info("session_closed", client_id=row.client_id, name=name)
        return row.client_id

    def rotate_secret(self) -> None:
        """Make a new secret, durably; see ``LeaseAuthority.rotate_secret``."""
        self._signer.rotate()

    def expire(self, now: float | None = None) -> list[int]:
        """Sweep. Nothing is left to the caller: the storage has dropped the rows."""
        try:
            self._signer.refresh(self._clock() if now is None else now)
            ended = self._storage.sweep(self.term_s, self._policy.refuse_for_s, self._wall_clock())
            if ended:
                self._events.info("dropped", clients=ended)
        except StorageUnavailable as error:
            self._events.warning("storage_unavailable", error=str(error))
        return []


# What a server asks about leases, whichever storage they are in.
Authority = LeaseAuthority | SharedAuthority


def open_authority(storage: LeaseStorage, **options: Any) -> Authority:
    """Return the authority that fits the storage, with options of ``LeaseAuthority``."""
    if isinstance(storage, SharedLeaseStorage):
        return SharedAuthority(storage, **options)
    return LeaseAuthority(storage, **options)
