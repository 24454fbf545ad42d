"""What the lease server needs kept, in the group's log (DESIGN §5, §7)."""

from __future__ import annotations

import secrets as randomness
import threading

from curp._core.entries import Entry, IdsReserved, SecretsPut, SessionForgotten, SessionPut
from curp._core.state import GroupState
from curp._replica.group_store import GroupStore
from lease_server._errors import StorageUnavailable
from lease_server._sessions import SessionRow, SessionState
from lease_server._storage import RANDOM_BITS
from lease_server._tokens import Secret
from rifl.core._shared.errors import RiflError

_SECRET_BYTES = 32
_SECRETS_KEPT = 2


class LogLeaseStorage:
    """``lease_server._storage.LeaseStorage`` of one leadership, over its log.

    A write is an entry, and in the log before its method returns. It goes with the
    leadership: after that every write raises StorageUnavailable, and the next
    leader's storage says what the log says. Any thread.
    """

    random_bits = RANDOM_BITS

    def __init__(self, store: GroupStore, state: GroupState, store_id: int) -> None:
        """``store_id``: the log's own, see ``read_store_id``."""
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
            for entry in list(self._state.sessions.values()):
                same_name = (entry.peer, entry.name) == (row.peer, row.name)
                if same_name and entry.client_id != row.client_id:
                    return _row(entry)
            standing = self._state.sessions.get(row.client_id)
            if standing is not None and standing.state != SessionState.OPEN.value:
                return _row(standing)
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
                )
            )
            return row

    def forget_session(self, client_id: int) -> None:
        """Delete a session."""
        with self._writing:
            if client_id in self._state.sessions:
                self._write(SessionForgotten(client_id))

    def known_clients(self) -> list[int]:
        """Ids with operations in the log that were not removed."""
        return self._state.known_ids()

    def is_foreign(self, client_id: int) -> bool:
        """Ids outlive every process."""
        return False

    def _add_secret(self) -> None:
        held = self._state.secrets
        key_id = (held[0][0] + 1) % 2**16 if held else 0
        fresh = (key_id, randomness.token_bytes(_SECRET_BYTES))
        self._write(SecretsPut((fresh, *held)[:_SECRETS_KEPT]))

    def _write(self, entry: Entry) -> None:
        try:
            self._store.log(entry).wait()
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error


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
    )
