"""The lease server's storage in the SQLite store's file (DESIGN §5)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from _rifl_ground.forks import refuse_in_children
from lease_server._errors import StorageUnavailable
from lease_server._forked import leases_forked
from lease_server._sessions import SessionRow, SessionState, standing_row
from lease_server._storage import RANDOM_BITS, Acknowledgements, short_store_id
from lease_server._tokens import Secret, rotated
from rifl._stores.errors import StoreCorrupt
from rifl._stores.pending import Pending
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.schema import connect, get_meta, set_meta
from rifl._stores.sqlite.statements import CLIENT_IDS
from rifl.core._shared.errors import RiflError

_PATIENCE_S = 2.0
_SESSION = (
    "SELECT client_id, name, peer, state, retention_s, changed_at_unix_s, secret, "
    "source, writer FROM rifl_session"
)


class SqliteLeaseStorage:
    """``lease_server._storage.LeaseStorage`` over a connection of its own.

    Every write is one transaction, fsynced before its method returns, in turn with the store's
    commits; reads wait for no writer. Clients are registered by the store,
    with what else it commits.
    """

    random_bits = RANDOM_BITS

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection] = connect,
        guard: Guard | None = None,
        register: Callable[[int, bytes], Pending] | None = None,
        turn: Callable[[float], AbstractContextManager[None]] = lambda limit_s: nullcontext(),
        acknowledge: Callable[[int, Acknowledgements], None] = lambda client_id, acknowledged: None,
    ) -> None:
        """``register``: has the store write a client's row; None: nothing is granted.

        ``acknowledge``: has it forget answers.

        ``turn``: waits until the store commits nothing, for so many seconds at most.
        """
        self._turn = turn
        self._register = register
        self._acknowledge = acknowledge
        self._connection = connect(path)
        # A caller's thread waits here: it comes again where the file is another's for longer.
        self._connection.execute(f"PRAGMA busy_timeout={int(_PATIENCE_S * 1000)}")
        self._guard = guard
        self._lock = threading.Lock()
        self._stopped: sqlite3.Error | None = None
        refuse_in_children(self, leases_forked)

    def store_id(self) -> int:
        """The file's, whatever it is called and wherever it is."""
        with self._reading() as connection:
            return short_store_id(f"sqlite:{get_meta(connection, 'store_id')}")

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ``count`` ids above all earlier ones; first and last."""
        if count < 1:
            raise ValueError("a block holds at least one id")
        with self._transaction() as connection:
            first = int(get_meta(connection, "next_client_id"))  # type: ignore[arg-type]
            set_meta(connection, "next_client_id", first + count)
        return first, first + count - 1

    def secrets(self) -> list[Secret]:
        """The secrets, newest first; the first call ever makes one."""
        with self._reading() as connection:
            found = _secrets(connection)
        if found:
            return found
        with self._transaction() as connection:
            return _secrets(connection) or _rotate(connection)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        with self._transaction() as connection:
            return _rotate(connection)

    def load_sessions(self) -> list[SessionRow]:
        """Every session row."""
        with self._reading() as connection:
            return [_session(row) for row in connection.execute(_SESSION)]

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert or update a session; the row that stands."""
        with self._transaction() as connection:
            held = connection.execute(
                f"{_SESSION} WHERE (peer=? AND name=?) OR client_id=?",
                (row.peer, row.name, row.client_id),
            )
            if (standing := standing_row(map(_session, held), row)) is not None:
                return standing
            connection.execute(
                "INSERT OR REPLACE INTO rifl_session VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.client_id,
                    row.name,
                    row.peer,
                    row.state.value,
                    row.retention_s,
                    row.changed_at_unix_s,
                    row.secret,
                    row.source,
                    row.writer,
                ),
            )
            return row

    def rekey_sessions(self, client_ids: Sequence[int], secret: bytes) -> None:
        """Have sessions open by another secret."""
        with self._transaction() as connection:
            connection.executemany(
                "UPDATE rifl_session SET secret=? WHERE client_id=?",
                [(secret, client_id) for client_id in client_ids],
            )

    def forget_session(self, client_id: int) -> None:
        """Delete a session's row."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM rifl_session WHERE client_id=?", (client_id,))

    def known_clients(self) -> list[int]:
        """Ids of clients and sessions that have a row, or records."""
        with self._reading() as connection:
            return [row[0] for row in connection.execute(CLIENT_IDS)]

    def holders(self) -> dict[int, bytes]:
        """Whom the leases of clients count for."""
        with self._reading() as connection:
            return dict(connection.execute("SELECT client_id, holder FROM rifl_lease"))

    def acknowledge(self, client_id: int, acknowledged: Acknowledgements) -> None:
        """Have the store forget answers, and delete their rows with one of its next commits."""
        self._acknowledge(client_id, acknowledged)

    def register(self, client_id: int, holder: bytes = b"") -> None:
        """Have the client's row written, in a commit that many may share."""
        if self._register is None:
            raise StorageUnavailable("the file was opened to be looked at")
        until_s = time.monotonic() + _PATIENCE_S
        try:
            self._register(client_id, holder).wait_for_call(lambda: until_s - time.monotonic())
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error

    def is_foreign(self, client_id: int) -> bool:
        """Never: ids outlive the process."""
        return False

    def close(self) -> None:
        """Let the file go."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._at_work(), self._begun("BEGIN") as connection:
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._at_work(), self._my_turn(), self._begun("BEGIN IMMEDIATE") as connection:
            before = connection.total_changes
            yield connection
            self._commit(written=connection.total_changes > before)

    @contextmanager
    def _begun(self, begin: str) -> Iterator[sqlite3.Connection]:
        self._connection.execute(begin)
        try:
            yield self._connection
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        try:
            with self._turn(_PATIENCE_S):
                yield
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            if self._stopped is not None:
                raise StorageUnavailable(f"the store has stopped: {self._stopped}")
            try:
                yield
            except sqlite3.Error as error:
                if self._guard is not None:
                    self._stopped = self._guard.met(error)
                raise StorageUnavailable(f"the store cannot be written: {error}") from error
            except (ValueError, TypeError) as error:
                raise StoreCorrupt(f"the store is damaged: {error}") from error

    def _commit(self, *, written: bool) -> None:
        guard = self._guard if written else None
        if guard is None:
            self._connection.execute("COMMIT")
            return
        number = guard.number()
        raised = guard.raise_commits(self._connection, number)
        self._connection.execute("COMMIT")
        guard.committed(number, raised)


def _rotate(connection: sqlite3.Connection) -> list[Secret]:
    kept = rotated(_secrets(connection))
    connection.execute("DELETE FROM rifl_secret WHERE key_id < ?", (kept[-1].key_id,))
    connection.execute("INSERT INTO rifl_secret VALUES (?, ?)", (kept[0].key_id, kept[0].value))
    return kept


def _secrets(connection: sqlite3.Connection) -> list[Secret]:
    rows = connection.execute("SELECT key_id, value FROM rifl_secret ORDER BY key_id DESC")
    return [Secret(key_id, value) for key_id, value in rows]


def _session(row: tuple[int, str, bytes, str, float, float, bytes, str, bytes]) -> SessionRow:
    client_id, name, peer, state, retention_s, changed_at_unix_s, secret, source, writer = row
    if not isinstance(secret, bytes) or not isinstance(writer, bytes):
        raise ValueError(f"the secret or the writer of session {client_id} is no bytes")
    if not isinstance(name, str) or not isinstance(peer, bytes):
        raise ValueError(f"session {client_id} has the name {name!r} and the peer {peer!r}")
    return SessionRow(
        client_id=client_id,
        name=name,
        peer=peer,
        state=SessionState(state),
        retention_s=float(retention_s),
        changed_at_unix_s=float(changed_at_unix_s),
        secret=secret,
        source=source,
        writer=writer,
    )
