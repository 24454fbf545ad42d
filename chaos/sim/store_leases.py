"""Model of the world: a shared store's leases, held against Redis and PostgreSQL by a test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from chaos.sim.loop import Process
from chaos.sim.shared_data import Client, SharedData
from chaos.sim.store_server import SECRET_BYTES, StoreBackend, StoreServer
from lease_server._errors import StorageUnavailable
from lease_server._holders import LeaseBounds, Room
from lease_server._session_secret import require_owner
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import NOTHING, RANDOM_BITS, Acknowledgements, Standing
from lease_server._tokens import Secret
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.lease_watch import LeaseWatch
from rifl.core._shared.errors import SessionClosed

__all__ = ["StoreLeases"]

# When a client whose calls still run is looked at again.
_BUSY_S = 1.0


class StoreLeases:
    """``SharedLeaseStorage`` over the store."""

    random_bits = RANDOM_BITS

    def __init__(self, process: Process, store: StoreServer, backend: StoreBackend) -> None:
        self._store = store
        self._backend = backend
        self._watch = LeaseWatch(process.clock)
        self.held = 0

    def count(self) -> None:
        """Count the clients that have a row."""
        self.held = len(self._reach().clients)

    def _reach(self) -> SharedData:
        try:
            self._backend.reach()
        except BackendError as error:
            raise StorageUnavailable(str(error)) from error
        return self._store.data

    def grant(
        self, client_id: int, term_s: float, bounds: LeaseBounds, holder: bytes = b""
    ) -> Room:
        """Make the id known on every server."""
        data = self._reach()
        data.clients[client_id] = Client(term_s, self._store.clock() + term_s)
        return Room.FREE

    def renew(self, client_id: int, acknowledged: Acknowledgements = NOTHING) -> Standing:
        """Give the lease its full length again."""
        data = self._reach()
        standing = self.standing(client_id)
        if standing in (Standing.ALIVE, Standing.SESSION):
            data.renew(data.clients[client_id])
        if standing is Standing.ALIVE:
            data.acknowledge(data.clients[client_id], acknowledged)
        return standing

    def standing(self, client_id: int) -> Standing:
        """How the id stands."""
        client = self._reach().clients.get(client_id)
        if client is None or client.state == "over":
            return Standing.UNKNOWN
        if client.state == "closed":
            return Standing.CLOSED
        return Standing.SESSION if client.state == "session" else Standing.ALIVE

    def identity(self) -> str:
        """Whose ids these are: the one store's."""
        return "simulated"

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep."""
        client = self._reach().clients.get(client_id)
        if client is not None:
            client.due = 0.0

    def open_session(
        self,
        row: SessionRow,
        policy: SessionPolicy,
        older: Sequence[bytes] = (),
        *,
        unused_s: float = math.inf,
    ) -> SessionRow:
        """Insert the session, or the row that stands."""
        data = self._reach()
        standing = self._owned(row.peer, row.name, row.secret, older)
        if standing is None:
            length_s = min(unused_s, row.retention_s)
            client = Client(length_s, self._store.clock() + length_s, "session")
            client.full_s = row.retention_s
            data.clients[row.client_id] = client
            self._store.sessions[row.peer, row.name] = row
            return row
        if standing.state is not SessionState.OPEN:
            return standing
        if self.renew(standing.client_id) is not Standing.SESSION:
            # Its retention ended while a call of it ran.
            return replace(standing, state=SessionState.EXPIRED)
        if row.retention_s > standing.retention_s:
            standing = replace(standing, retention_s=row.retention_s)
            self._store.sessions[row.peer, row.name] = standing
            client = data.clients[standing.client_id]
            if client.full_s:
                client.full_s = row.retention_s
            else:
                client.length_s = row.retention_s
            data.renew(client)
        return standing

    def write_session(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows``."""
        client = self._reach().clients.get(client_id)
        if client is None or client.state != "session":
            raise SessionClosed("the session is closed or past its retention")
        if client.writer == follows:
            client.writer = writer
        return client.writer

    def close_session(
        self,
        name: str,
        peer: bytes,
        unix_s: float,
        secret: bytes = b"",
        older: Sequence[bytes] = (),
    ) -> tuple[SessionRow, bool]:
        """Close permanently."""
        data = self._reach()
        row = self._owned(peer, name, secret, older)
        if row is None:
            raise SessionClosed(f"no session {name!r} is known here")
        if row.state is not SessionState.OPEN:
            return row, False
        row = replace(row, state=SessionState.CLOSED, changed_at_unix_s=unix_s)
        self._store.sessions[peer, name] = row
        client = data.clients.get(row.client_id)
        if client is not None:
            client.state, client.due, client.full_s = "closed", 0.0, 0.0
        return row, True

    def _owned(
        self, peer: bytes, name: str, secret: bytes, older: Sequence[bytes]
    ) -> SessionRow | None:
        """Return the row of a name, which opens by that secret from now on; raises ``NotYours``."""
        row = self._store.sessions.get((peer, name))
        if row is not None:
            require_owner(row.secret, secret, older)
            row = self._store.sessions[peer, name] = replace(row, secret=secret)
        return row

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due, if the store was watched for a full term."""
        try:
            data = self._reach()
        except StorageUnavailable:
            self._watch.lost()
            raise
        watched = self._watch.saw(b"%d" % self._store.lives, term_s)
        limit = self._store.clock() if watched else 0.0
        dropped = 0
        for client_id, client in list(data.clients.items()):
            if client.due > limit:
                continue
            if client.full_s:
                # No call was made in it: its name goes, too.
                data.drop(client_id)
                self._forget_session(client_id)
                dropped += 1
                continue
            session = client.state in ("session", "closed")
            client.state = "closed" if session else "over"
            if any(attempt.owner in data.beats for attempt in client.running.values()):
                client.due = self._store.clock() + _BUSY_S
                continue
            data.drop(client_id)
            if session:
                self._end_session(client_id, client.length_s, unix_s)
            dropped += 1
        return dropped

    def _forget_session(self, client_id: int) -> None:
        for place, row in list(self._store.sessions.items()):
            if row.client_id == client_id:
                del self._store.sessions[place]

    def _end_session(self, client_id: int, length_s: float, unix_s: float) -> None:
        """Keep a session that ended as what its calls are refused by."""
        self._store.data.clients[client_id] = Client(length_s, math.inf, "closed")
        for place, row in self._store.sessions.items():
            if row.client_id == client_id and row.state is SessionState.OPEN:
                self._store.sessions[place] = replace(
                    row, state=SessionState.EXPIRED, changed_at_unix_s=unix_s
                )

    def store_id(self) -> int:
        """The store's, until it is wiped."""
        return self._store.ids.store_id()

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ids above all earlier ones."""
        self._reach()
        first = self._store.next_id
        self._store.next_id += count
        return first, first + count - 1

    def secrets(self) -> list[Secret]:
        """The secrets, newest first."""
        self._reach()
        return list(self._store.secrets)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        self._reach()
        fresh = Secret(
            self._store.secrets[0].key_id + 1, self._store.random.randbytes(SECRET_BYTES)
        )
        self._store.secrets = [fresh, self._store.secrets[0]]
        return list(self._store.secrets)

    def load_sessions(self) -> list[SessionRow]:
        """Every session row."""
        return list(self._store.sessions.values())

    def put_session(self, row: SessionRow) -> SessionRow:
        """Not asked for by an authority over a shared storage."""
        raise NotImplementedError

    def forget_session(self, client_id: int) -> None:
        """Not asked for by an authority over a shared storage."""
        raise NotImplementedError

    def known_clients(self) -> list[int]:
        """Ids with a row, namespaces and ended sessions left out."""
        clients = self._store.data.clients.items()
        return [client_id for client_id, client in clients if client.due < math.inf]

    def drop_client(self, client_id: int) -> None:
        """Remove a client's row and records now, even while a call of it runs."""
        self._reach().drop(client_id)

    def is_foreign(self, client_id: int) -> bool:
        """Never: ids outlive every process."""
        return False
