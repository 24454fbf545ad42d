"""Inspection of a SQLite store, owned or not (WAL: readers never block its writer)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from _rifl_ground.files import others_rights
from _rifl_ground.sqlite.opening import reading
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import (
    StoreCorrupt,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
    WrongDatabase,
)
from rifl._stores.inspection import (
    NOTES_KEPT,
    VERDICTS_KEPT_S,
    CallRow,
    ClientRow,
    SessionInfo,
    Summary,
)
from rifl._stores.sqlite.address import path_of
from rifl._stores.sqlite.database import unpack_ranges
from rifl._stores.sqlite.file_guard import COMMITS, RAISE_COMMITS
from rifl._stores.sqlite.lease_storage import SqliteLeaseStorage
from rifl._stores.sqlite.ownership import Ownership, owner_of
from rifl._stores.sqlite.restored import restored
from rifl._stores.sqlite.schema import SCHEMA_VERSION, connect, get_meta
from rifl._stores.sqlite.statements import FORGET_UNKNOWN, REMEMBER_UNKNOWN
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

_PAGE = 1000
_CALL = (
    "SELECT client_id, identity, method, fingerprint, length(record), changed_at_unix_s "
    "FROM rifl_call"
)
_CLIENTS = """
SELECT client.client_id, first_incomplete, completed,
    count(call.client_id) - count(call.record), count(call.record),
    coalesce(sum(length(call.record)), 0), registered_at_unix_s,
    max(call.changed_at_unix_s),
    session.name, session.peer, session.state, session.retention_s, session.changed_at_unix_s
FROM (
    SELECT client_id, first_incomplete, completed, registered_at_unix_s FROM rifl_client
    UNION ALL
    SELECT client_id, 1, X'', NULL FROM rifl_session
    WHERE client_id NOT IN (SELECT client_id FROM rifl_client)
) AS client
LEFT JOIN rifl_call AS call USING (client_id)
LEFT JOIN rifl_session AS session USING (client_id)
{where} GROUP BY client.client_id
ORDER BY count(call.client_id) DESC, client.client_id LIMIT ?
"""


class SqliteInspection:
    """See ``rifl._stores.inspection.Inspection``.

    The file is opened read-only; beside it SQLite may make its ``-shm`` file.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._path = path_of(url)
        if not self._path.is_file():
            raise StoreUnreachable(f"there is no file {self._path}")
        self._connection = _open(self._path)
        try:
            with self._reading():
                self._check()
        except BaseException:
            self._connection.close()
            raise

    def summary(self) -> Summary:
        """See ``Inspection``."""
        with self._reading() as connection:
            intents, records, record_bytes, oldest = connection.execute(
                "SELECT count(*) - count(record), count(record), "
                "coalesce(sum(length(record)), 0), min(changed_at_unix_s) FROM rifl_call"
            ).fetchone()
            (clients,) = connection.execute("SELECT count(*) FROM rifl_client").fetchone()
            (sessions,) = connection.execute(
                "SELECT count(*) FROM rifl_session WHERE state='open'"
            ).fetchone()
            incarnation = int(get_meta(connection, "incarnation") or 0)
        return Summary(
            url=self._url,
            schema_version=self._version,
            incarnation=incarnation,
            owner=owner_of(self._path),
            size_bytes=sum(file.stat().st_size for file in self._files()),
            clients=clients,
            open_sessions=sessions,
            intents=intents,
            records=records,
            record_bytes=record_bytes,
            oldest_unix_s=oldest,
            open_to=others_rights(self._path),
        )

    def clients(self, limit: int | None = None) -> list[ClientRow]:
        """See ``Inspection``."""
        return self._clients("", (-1 if limit is None else limit,))

    def client(self, client_id: int) -> ClientRow | None:
        """See ``Inspection``."""
        rows = self._clients("WHERE client.client_id=?", (client_id, 1))
        return rows[0] if rows else None

    def calls(
        self, client_id: int | None = None, *, only_intents: bool = False
    ) -> Iterator[CallRow]:
        """See ``Inspection``.

        Read a page at a time: a long read would keep the WAL from being emptied.
        """
        only = "" if client_id is None else "AND client_id=?"
        only += " AND record IS NULL" if only_intents else ""
        given = () if client_id is None else (client_id,)
        # Ids of namespaces are negative.
        after: tuple[Any, Any] = (-(2**63), -1)
        while True:
            with self._reading() as connection:
                rows = connection.execute(
                    f"{_CALL} WHERE (client_id, identity) > (?, ?) {only} "
                    "ORDER BY client_id, identity LIMIT ?",
                    (*after, *given, _PAGE),
                ).fetchall()
            if not rows:
                return
            yield from map(_call_row, rows)
            after = rows[-1][:2]

    def call(self, rpc_id: RpcId) -> CallRow | None:
        """See ``Inspection``."""
        with self._reading() as connection:
            row = connection.execute(
                f"{_CALL} WHERE client_id=? AND identity=?", _key(rpc_id)
            ).fetchone()
        return None if row is None else _call_row(row)

    def record(self, rpc_id: RpcId) -> CompletionRecord | None:
        """See ``Inspection``."""
        return RecordCodec.inspected(self.stored(rpc_id), rpc_id)

    def stored(self, rpc_id: RpcId) -> bytes | None:
        """See ``Inspection``."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT record FROM rifl_call WHERE client_id=? AND identity=?", _key(rpc_id)
            ).fetchone()
        return None if row is None else row[0]

    def replace(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``.

        Beside the owner, which reads a record whenever it is asked for one; but not of a call
        that it may run.
        """
        if seen is None:
            with self._owning():
                return self._replace(rpc_id, seen, data, note)
        return self._replace(rpc_id, seen, data, note)

    def refuse(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``: no handler runs here without a claim."""
        return False

    def remember(self, rpc_id: RpcId, note: str) -> None:
        """See ``Inspection``."""
        with self._writing() as connection:
            self._remember(connection, rpc_id, note)

    def remembered(self) -> Iterator[tuple[RpcId, str, int | None, str | None]]:
        """See ``Inspection``."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT client_id, identity, method, since_unix_s, note FROM rifl_unknown "
                "ORDER BY since_unix_s"
            ).fetchall()
        for client_id, identity, method, since, note in rows:
            yield _rpc_id(client_id, identity), method, since, note

    def holder(self, rpc_id: RpcId) -> str | None:
        """See ``Inspection``."""
        return owner_of(self._path)

    def release(self, rpc_id: RpcId) -> bool:
        """See ``Inspection``."""
        with self._owning(), self._writing() as connection:
            # The row may be the one that tells how much was committed.
            connection.execute(RAISE_COMMITS, connection.execute(COMMITS).fetchone())
            deleted = connection.execute(
                "DELETE FROM rifl_call WHERE client_id=? AND identity=?", _key(rpc_id)
            )
            return deleted.rowcount > 0

    def rotate_secret(self) -> int:
        """See ``Inspection``."""
        with self._reading():
            storage = SqliteLeaseStorage(self._path)
        with closing(storage):
            return storage.rotate_secret()[0].key_id

    def restored(self) -> str:
        """See ``Inspection``."""
        with self._reading():
            return restored(self._path)

    def accept_loss(self, who: str, why: str) -> str:
        """See ``Inspection``."""
        raise UnsupportedStore("for a restored file use: rifl restored URL")

    def close(self) -> None:
        """See ``Inspection``."""
        self._connection.close()

    def _replace(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        with self._writing() as connection:
            changed = connection.execute(
                "UPDATE rifl_call SET record=? WHERE client_id=? AND identity=? AND record IS ?",
                (data, *_key(rpc_id), seen),
            ).rowcount
            if changed:
                self._remember(connection, rpc_id, note)
            return bool(changed)

    def _remember(self, connection: sqlite3.Connection, rpc_id: RpcId, note: str) -> None:
        known = connection.execute(
            "SELECT method, since_unix_s FROM rifl_unknown WHERE client_id=? AND identity=? "
            "UNION ALL SELECT method, changed_at_unix_s FROM rifl_call "
            "WHERE client_id=? AND identity=?",
            (*_key(rpc_id), *_key(rpc_id)),
        ).fetchone()
        method, since = known or ("", int(time.time()))
        connection.execute(REMEMBER_UNKNOWN, (*_key(rpc_id), method, since, note))
        connection.execute(FORGET_UNKNOWN, (VERDICTS_KEPT_S, NOTES_KEPT))

    @contextmanager
    def _owning(self) -> Iterator[None]:
        """Keep every server away; raises ``StoreLocked`` if one is there."""
        ownership = Ownership(self._path, 0.0)
        try:
            yield
        finally:
            ownership.release()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, beside a server or without one."""
        with self._reading(), closing(connect(self._path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def _check(self) -> None:
        known = self._connection.execute(
            "SELECT 1 FROM sqlite_master WHERE name='rifl_meta'"
        ).fetchone()
        if not known:
            raise WrongDatabase(f"{self._path} is a database, but holds no rifl store")
        self._version = int(get_meta(self._connection, "schema_version") or 0)
        if self._version > SCHEMA_VERSION:
            raise StoreSchemaTooNew(
                f"{self._path} has schema {self._version}; this release knows up to "
                f"{SCHEMA_VERSION}"
            )

    def _clients(self, where: str, parameters: tuple[int, ...]) -> list[ClientRow]:
        with self._reading() as connection:
            rows = connection.execute(_CLIENTS.format(where=where), parameters).fetchall()
            return [
                ClientRow(
                    client_id=row[0],
                    first_incomplete=row[1],
                    completed=unpack_ranges(row[2]),
                    intents=row[3],
                    records=row[4],
                    record_bytes=row[5],
                    registered_at_unix_s=row[6],
                    changed_at_unix_s=row[7],
                    session=None if row[8] is None else SessionInfo(*row[8:13]),
                )
                for row in rows
            ]

    def _files(self) -> list[Path]:
        names = (self._path.name, self._path.name + "-wal")
        return [file for name in names if (file := self._path.with_name(name)).is_file()]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection
        except sqlite3.OperationalError as error:
            raise StoreUnreachable(f"cannot read {self._path}: {error}") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StoreCorrupt(f"{self._path} is damaged, or no database: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    # A store that no process has open, in a directory we may not write to, can be read
    # only as a file that does not change.
    for alone in (False, True):
        connection = reading(path, alone=alone)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError as error:
            connection.close()
            if alone or path.with_name(path.name + "-wal").exists():
                raise StoreUnreachable(f"cannot read {path}: {error}") from error
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StoreCorrupt(f"{path} is damaged, or no database: {error}") from error
        else:
            return connection
    raise StoreUnreachable(f"cannot read {path}")


def _key(rpc_id: RpcId) -> tuple[int, int | bytes | None]:
    return rpc_id.client_id, rpc_id.seq if rpc_id.key is None else rpc_id.key


def _call_row(row: tuple[Any, ...]) -> CallRow:
    client_id, identity, method, fingerprint, size, changed_at = row
    return CallRow(_rpc_id(client_id, identity), method, fingerprint, size, changed_at)


def _rpc_id(client_id: int, identity: int | bytes) -> RpcId:
    if isinstance(identity, bytes):
        return RpcId(client_id, None, identity)
    return RpcId(client_id, identity)
