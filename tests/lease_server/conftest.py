"""A clock that moves when told, and a durable storage small enough to read."""

import secrets as randomness
import sqlite3
import threading

import pytest

from lease_server import MemoryLeaseStorage, Secret, SessionRow, SessionState, StorageUnavailable


class FakeClock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


class SqliteLeaseStorage:
    """LeaseStorage over one SQLite file, shared by any number of these objects.

    ``fail`` makes every access unavailable; ``gate`` holds reservations back.
    """

    random_bits = 0

    def __init__(self, path):
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._lock = threading.Lock()
        self.fail = False
        self.gate = threading.Event()
        self.gate.set()
        self.reserving = threading.Event()
        with self._transaction() as db:
            for table in (
                "counter(id INTEGER PRIMARY KEY CHECK (id = 0), last INTEGER)",
                "secret(key_id INTEGER, value BLOB, at INTEGER PRIMARY KEY AUTOINCREMENT)",
                "session(client_id INTEGER PRIMARY KEY, name, peer, state, retention, changed,"
                " secret, source, UNIQUE (peer, name))",
                "client(client_id INTEGER PRIMARY KEY, holder BLOB)",
            ):
                db.execute("CREATE TABLE IF NOT EXISTS " + table)
            db.execute("INSERT OR IGNORE INTO counter VALUES (0, 0)")

    def _transaction(self):
        return _Transaction(self)

    def store_id(self):
        return 7

    def reserve_ids(self, count):
        self.reserving.set()
        self.gate.wait(30)
        with self._transaction() as db:
            (last,) = db.execute(
                "UPDATE counter SET last = last + ? RETURNING last", (count,)
            ).fetchone()
        return last - count + 1, last

    def secrets(self):
        with self._transaction() as db:
            found = self._secrets(db)
            return found or self._add_secret(db, 0)

    def rotate_secret(self):
        with self._transaction() as db:
            self._add_secret(db, (self._secrets(db)[0].key_id + 1) % 2**16)
            db.execute(
                "DELETE FROM secret WHERE at NOT IN"
                " (SELECT at FROM secret ORDER BY at DESC LIMIT 2)"
            )
            return self._secrets(db)

    def _secrets(self, db):
        return [
            Secret(*row) for row in db.execute("SELECT key_id, value FROM secret ORDER BY at DESC")
        ]

    def _add_secret(self, db, key_id):
        value = randomness.token_bytes(32)
        db.execute("INSERT INTO secret (key_id, value) VALUES (?, ?)", (key_id, value))
        return [Secret(key_id, value)]

    def load_sessions(self):
        with self._transaction() as db:
            return [_row(found) for found in db.execute("SELECT * FROM session")]

    def put_session(self, row):
        with self._transaction() as db:
            db.execute(
                "INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (client_id) DO UPDATE SET"
                " state = excluded.state, retention = excluded.retention,"
                " changed = excluded.changed, secret = excluded.secret WHERE state = 'open'"
                " ON CONFLICT (peer, name) DO NOTHING",
                (
                    row.client_id,
                    row.name,
                    row.peer,
                    row.state.value,
                    row.retention_s,
                    row.changed_at_unix_s,
                    row.secret,
                    row.source,
                ),
            )
            return _row(
                db.execute(
                    "SELECT * FROM session WHERE peer = ? AND name = ?", (row.peer, row.name)
                ).fetchone()
            )

    def rekey_sessions(self, client_ids, secret):
        with self._transaction() as db:
            for client_id in client_ids:
                db.execute("UPDATE session SET secret = ? WHERE client_id = ?", (secret, client_id))

    def forget_session(self, client_id):
        with self._transaction() as db:
            db.execute("DELETE FROM session WHERE client_id = ?", (client_id,))

    def known_clients(self):
        with self._transaction() as db:
            return [client_id for (client_id,) in db.execute("SELECT client_id FROM client")]

    def holders(self):
        with self._transaction() as db:
            return dict(db.execute("SELECT client_id, holder FROM client WHERE holder <> x''"))

    def register(self, client_id, holder=b""):
        """What a grant does before its id is told: the client's row becomes durable."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO client VALUES (?, ?)", (client_id, holder))

    def drop(self, client_id):
        """What a server does of a client that is over."""
        with self._transaction() as db:
            db.execute("DELETE FROM client WHERE client_id = ?", (client_id,))

    def is_foreign(self, client_id):
        return False

    def close(self):
        self._db.close()


class _Transaction:
    def __init__(self, storage):
        self._storage = storage

    def __enter__(self):
        if self._storage.fail:
            raise StorageUnavailable("switched off")
        self._storage._lock.acquire()
        self._storage._db.execute("BEGIN IMMEDIATE")
        return self._storage._db

    def __exit__(self, kind, error, trace):
        self._storage._db.execute("ROLLBACK" if kind else "COMMIT")
        self._storage._lock.release()


def _row(found):
    client_id, name, peer, state, retention, changed, *rest = found
    return SessionRow(client_id, name, peer, SessionState(state), retention, changed, *rest)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def open_storage(tmp_path):
    """Opens the test's one durable storage again and again, as restarts do."""
    opened = []

    def reopen():
        opened.append(SqliteLeaseStorage(tmp_path / "leases.sqlite"))
        return opened[-1]

    yield reopen
    for storage in opened:
        storage.close()


@pytest.fixture(params=["memory", "durable"])
def storage(request, open_storage):
    """Each kind of storage in turn."""
    return MemoryLeaseStorage() if request.param == "memory" else open_storage()
