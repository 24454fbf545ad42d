"""The lease server's storage in the group's log (DESIGN §5, §7)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from curp._core.entries import (
    Entry,
    IdsReserved,
    SecretsPut,
    SessionForgotten,
    SessionPut,
    SessionsRekeyed,
)
from curp._core.state import GroupState
from curp._replica.group_store import GroupStore
from lease_server._errors import StorageUnavailable
from lease_server._sessions import SessionRow, SessionState, standing_row
from lease_server._storage import RANDOM_BITS, Acknowledgements
from lease_server._tokens import Secret, rotated
from rifl._stores.pending import Pending
from rifl.core._shared.errors import RiflError


class LogLeaseStorage:
    """``lease_server._storage.LeaseStorage`` of one leadership, over its log.

    A write is an entry, and in the log before its method returns. It goes with the
    leadership: after that every write raises StorageUnavailable, and the next
    leader's storage says what the log says. Any thread.
    """

    random_bits = RANDOM_BITS

    def __init__(self, store: GroupStore, state: GroupState, store_id: int) -> None:
        """``store_id``: the log's own, see ``curp.log._creation``."""
        self._store_id = store_id
        self._store = store
        self._state = state
        # One writer at a time: what it read must still hold when it writes.
        self._writing = threading.Lock()

    def store_id(self) -> int:
        """The log's: the same under every leader."""
        return self._store_id

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ``count`` ids above all earlier ones; first and last."""
        if count < 1:
            raise ValueError("a block holds at least one id")
        with self._writing:
            known = self._state.known_ids()
            first = max(self._state.last_id, known[-1] if known else 0) + 1
            self._write(IdsReserved(first + count - 1))
            return first, first + count - 1

    def secrets(self) -> list[Secret]:
        """The secrets, newest first; the group's first leader makes one."""
        with self._writing:
            if not self._state.secrets:
                self._add_secret()
            return [Secret(key_id, value) for key_id, value in self._state.secrets]

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        with self._writing:
            self._add_secret()
            return [Secret(key_id, value) for key_id, value in self._state.secrets]

    def load_sessions(self) -> list[SessionRow]:
        """Every session that the log knows."""
        return [_row(entry) for entry in list(self._state.sessions.values())]

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert or update a session; the row that stands."""
        with self._writing:
            held = (
                _row(entry)
                for entry in list(self._state.sessions.values())
                if entry.client_id == row.client_id
                or (entry.peer, entry.name) == (row.peer, row.name)
            )
            if (standing := standing_row(held, row)) is not None:
                return standing
            self._write(
                SessionPut(
                    row.client_id,
                    row.name,
                    row.peer,
                    row.state.value,
                    row.retention_s,
                    row.changed_at_unix_s,
                    row.secret,
                    row.source,
                    row.writer,
                )
            )
            return row

    def rekey_sessions(self, client_ids: Sequence[int], secret: bytes) -> None:
        """Have sessions open by another secret."""
        with self._writing:
            self._write(SessionsRekeyed(tuple(client_ids), secret))

    def forget_session(self, client_id: int) -> None:
        """Delete a session."""
        with self._writing:
            if client_id in self._state.sessions:
                self._write(SessionForgotten(client_id))

    def known_clients(self) -> list[int]:
        """Ids with a registration in the log that were not removed."""
        return self._state.known_ids()

    def holders(self) -> dict[int, bytes]:
        """Whom the leases of clients count for, as the log says."""
        return self._state.holders

    def register(self, client_id: int, holder: bytes = b"") -> None:
        """Have the client's registration in the log, in an append that many may share."""
        try:
            self._await(self._store.registered(client_id, holder))
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Have what a client acknowledged logged, if records go by it."""
        self._store.acknowledge(client_id, acknowledged)

    def is_foreign(self, client_id: int) -> bool:
        """Ids outlive every process."""
        return False

    def _add_secret(self) -> None:
        held = [Secret(key_id, value) for key_id, value in self._state.secrets]
        self._write(SecretsPut(tuple((each.key_id, each.value) for each in rotated(held))))

    def _write(self, entry: Entry) -> None:
        try:
            self._await(self._store.log(entry))
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error

    def _await(self, pending: Pending | None) -> None:
        if pending is not None:
            pending.wait()


def _row(entry: SessionPut) -> SessionRow:
    return SessionRow(
        entry.client_id,
        entry.name,
        entry.peer,
        SessionState(entry.state),
        entry.retention_s,
        entry.changed_at_unix_s,
        entry.secret,
        entry.source,
        entry.writer,
    )
