"""What servers with stores of their own ask about clients (DESIGN §5)."""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable

from lease_server.authority import LeaseAuthority
from lease_server.errors import (
    LeaseError,
    LeaseExpired,
    NotYours,
    SessionClosed,
    StorageUnavailable,
)
from lease_server.sessions import SessionState
from lease_server.shared import Authority, SharedAuthority, SharedLeaseStorage, Standing
from lease_server.storage import LeaseStorage
from lease_server.v1 import lease_server_pb2 as pb

__all__ = ["MAX_CHECKED", "CheckedStorage", "Checks", "SharedChecks", "open_checks"]

MAX_CHECKED = 1000


@runtime_checkable
class CheckedStorage(LeaseStorage, Protocol):
    """A storage that can answer for clients whose records are elsewhere."""

    def identity(self) -> str:
        """Whose ids these are; the same for as long as an id could be granted twice."""

    def keep_client(self, client_id: int) -> None:
        """Make the id one of ``known_clients``, durably, until ``drop_client``."""


class Checks:
    """Answers Check for a lease server that stands alone. Any thread; blocks.

    Invariants:

    1. A client is said to be alive and renewed only after its row is durable: it
       then outlives a crash, with a full new term.
    2. It is said to be over only when nothing durable is left of it: no restart
       brings it back, so records elsewhere may go and a late call finds it gone.
    """

    def __init__(self, authority: LeaseAuthority, storage: CheckedStorage) -> None:
        """Read what the storage knows (blocking); both are the same server's."""
        self._authority = authority
        self._storage = storage
        self.identity = storage.identity()
        self._lock = threading.Lock()
        # Ids whose row may be in the storage.
        self._kept = set(storage.known_clients())

    def standing(self, held: pb.HeldClient, *, renew: bool) -> pb.ClientStanding:
        """Check one client. Raises StorageUnavailable."""
        client_id, authority = held.client_id, self._authority
        standing = pb.ClientStanding(client_id=client_id)
        if held.token or renew:
            try:
                authority.check(client_id, held.token, held.peer)
            except (NotYours, LeaseExpired) as error:
                standing.refused = error.reason
                return standing
            standing.genuine = True
        standing.session = authority.is_session(client_id)
        if renew:
            alive = authority.renew(client_id)
            if alive and not standing.session:
                alive = self._keep(client_id)
            if alive:
                standing.token = authority.fresh_token(client_id, held.token, held.peer)
        else:
            alive = authority.alive(client_id)
        if not alive:
            standing.refused = self._ended(client_id, session=standing.session).reason
        return standing

    def dropped(self, client_id: int) -> None:
        """Note that an id's row is gone."""
        with self._lock:
            self._kept.discard(client_id)

    def _keep(self, client_id: int) -> bool:
        with self._lock:
            if client_id in self._kept:
                return True
            self._kept.add(client_id)
        self._storage.keep_client(client_id)
        if self._authority.renew(client_id):
            return True
        # It ended meanwhile, and may have been swept already.
        self._storage.drop_client(client_id)
        self.dropped(client_id)
        return False

    def _ended(self, client_id: int, *, session: bool) -> type[LeaseError]:
        if session:
            # Past its retention in memory, it may be open yet in the storage.
            rows = self._storage.load_sessions()
            is_open = any(
                row.client_id == client_id and row.state is SessionState.OPEN for row in rows
            )
            return StorageUnavailable if is_open else SessionClosed
        with self._lock:
            return StorageUnavailable if client_id in self._kept else LeaseExpired


class SharedChecks:
    """The same over a storage that decides about leases itself, for many lease servers.

    A client's row is its lease, durable from its grant until nothing is left of it, so
    the invariants of ``Checks`` are the storage's. Any thread; blocks.
    """

    def __init__(self, authority: SharedAuthority, storage: SharedLeaseStorage) -> None:
        """Both are over the same store."""
        self._authority = authority
        self._storage = storage
        self.identity = storage.identity()

    def standing(self, held: pb.HeldClient, *, renew: bool) -> pb.ClientStanding:
        """Check one client. Raises StorageUnavailable."""
        client_id, authority = held.client_id, self._authority
        standing = pb.ClientStanding(client_id=client_id)
        if held.token or renew:
            try:
                authority.check(client_id, held.token, held.peer)
            except NotYours as error:
                standing.refused = error.reason
                return standing
            standing.genuine = True
        found = self._storage.renew(client_id) if renew else self._storage.standing(client_id)
        standing.session = found in (Standing.SESSION, Standing.CLOSED)
        if found is Standing.CLOSED:
            standing.refused = SessionClosed.reason
        elif found is Standing.UNKNOWN:
            standing.refused = LeaseExpired.reason
        elif renew:
            standing.token = authority.fresh_token(client_id, held.token, held.peer)
        return standing

    def dropped(self, client_id: int) -> None:
        """Nothing to note: what is gone is gone in the storage."""


def open_checks(authority: Authority, storage: LeaseStorage) -> Checks | SharedChecks | None:
    """Return what answers Check, None over a storage that cannot."""
    if isinstance(authority, SharedAuthority) and isinstance(storage, SharedLeaseStorage):
        return SharedChecks(authority, storage)
    if isinstance(authority, LeaseAuthority) and isinstance(storage, CheckedStorage):
        return Checks(authority, storage)
    return None
