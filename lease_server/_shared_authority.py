"""The lease authority of several servers over one storage, which decides itself (DESIGN §5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lease_server._authority import Authority, Grant
from lease_server._errors import StorageUnavailable
from lease_server._holders import holder_of
from lease_server._lease_authority import LeaseAuthority
from lease_server._session_table import SessionTable
from lease_server._sessionbook import opened_row
from lease_server._sessions import SessionRow, SessionState
from lease_server._storage import Acknowledgements, SharedLeaseStorage, SoleLeaseStorage, Standing
from lease_server._storage_authority import StorageAuthority


class SharedAuthority(StorageAuthority[SharedLeaseStorage]):
    """``Authority`` over a storage that several servers share.

    All state is in the storage, so a client granted here is known everywhere at once,
    and everything but ``check`` waits for the storage: see ``blocks``. A grant is one small
    write, a heartbeat too. In its table no lease is held: it only gives out ids.
    """

    # Heartbeats and releases wait for the storage: not for an event loop's thread.
    blocks = True

    def __len__(self) -> int:
        """Leases and sessions in the storage, on whichever server, when last counted."""
        return self._storage.held

    def grant(self, peer: bytes = b"", *, source: str = "") -> Grant:
        """A new client, known on every server when this returns."""
        client_id = self._blocks.take(self._table.take_id)
        holder = holder_of(peer, source)
        room = self._storage.grant(client_id, self.term_s, self._bounds, holder)
        self._bounds.require(room, source)
        return self._granted(client_id, peer)

    def renew(self, client_id: int, now: float | None = None) -> bool:
        """Extend a lease or a session's retention; True if it is alive."""
        return self._storage.renew(client_id) in (Standing.ALIVE, Standing.SESSION)

    def alive(self, client_id: int, now: float | None = None) -> bool:
        """Whether the id is alive; asking renews it."""
        return self.renew(client_id)

    def is_session(self, client_id: int) -> bool:
        """Whether the id is a named session's; asking renews it."""
        return self._storage.renew(client_id) in (Standing.SESSION, Standing.CLOSED)

    def writes(self, client_id: int, token: bytes) -> bool:
        """The storage says so as it decides about a call."""
        return True

    def close_session(
        self, name: str, peer: bytes = b"", secret: bytes = b"", *, older: Sequence[bytes] = ()
    ) -> int:
        """Close permanently and durably, on every server; return the id."""
        SessionTable.check_name(name)
        row, now = self._storage.close_session(name, peer, self._wall_clock(), secret, older)
        if now:
            self._events.info("session_closed", client_id=row.client_id, name=name)
        return row.client_id

    def expire(self, now: float | None = None) -> list[int]:
        """Sweep. Nothing is left to the caller: the storage has dropped the rows."""
        try:
            self._signer.refresh(self._clock() if now is None else now)
            ended = self._storage.sweep(self.term_s, self._policy.refuse_for_s, self._wall_clock())
            if ended:
                self._events.info("clients_ended", clients=ended)
        except StorageUnavailable as error:
            self._events.warning("storage_unavailable", error=str(error))
        return []

    def _beat(self, client_id: int, acknowledged: Acknowledgements) -> Standing:
        return self._storage.renew(client_id, acknowledged)

    def _release(self, client_id: int) -> None:
        self._storage.release(client_id)

    def _open(
        self,
        name: str,
        peer: bytes,
        retention_s: float,
        secret: bytes,
        older: Sequence[bytes],
        source: str,
    ) -> tuple[SessionRow, bool]:
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
        row = self._storage.open_session(wanted, self._policy, older, unused_s=self.term_s)
        return opened_row(row, wanted, secret, older, self._events)

    def _write(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        return self._storage.write_session(client_id, writer, follows)


def open_authority(storage: SoleLeaseStorage | SharedLeaseStorage, **options: Any) -> Authority:
    """Return the authority that fits the storage, with options of ``LeaseAuthority``."""
    if isinstance(storage, SharedLeaseStorage):
        return SharedAuthority(storage, **options)
    return LeaseAuthority(storage, **options)
