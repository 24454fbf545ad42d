"""Inspection of a store in any SQL database, beside its servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeVar

from lease_server._errors import StorageUnavailable
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import StoreCorrupt, StoreLocked, StoreUnreachable, WrongDatabase
from rifl._stores.inspection import CallRow, ClientRow, SessionInfo, Summary
from rifl._stores.shared.backend import BackendError, NotCarriedOut
from rifl._stores.shared.replicas import LivingReplicas
from rifl._stores.sql.backend import SqlBackend, failed
from rifl._stores.sql.dialect import Dialect
from rifl._stores.sql.lease_storage import SqlLeaseStorage
from rifl._stores.sql.rows import (
    Identity,
    WrongStore,
    count_key,
    delete_call,
    end_client,
    lock_call,
    lock_client,
    ranges_of,
    remember,
    replicas,
    write_record,
)
from rifl._stores.sql.schema import LAYOUT, TABLES, StoreNotes, accept_loss, checked, read_meta
from rifl._stores.sql.session import SqlSession, discard
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

_T = TypeVar("_T")
_PAGE = 1000
_WHERE = "WHERE client_id = %s AND seq = %s AND call_key = %s"
_CALL = (
    "SELECT client_id, seq, call_key, method, fingerprint, LENGTH(record), "
    "COALESCE(recorded_at, claimed_at), CASE WHEN record IS NULL THEN owner END FROM @.calls"
)
_CLIENTS = """
SELECT c.client_id, c.first_incomplete, c.acknowledged,
    COUNT(calls.client_id) - COUNT(calls.record), COUNT(calls.record),
    SUM(LENGTH(calls.record)), MAX(COALESCE(calls.recorded_at, calls.claimed_at)),
    c.due - {now}, s.name, s.peer, s.state, s.retention_s, s.changed_at
FROM @.clients AS c
LEFT JOIN @.calls AS calls ON calls.client_id = c.client_id
LEFT JOIN @.sessions AS s ON s.client_id = c.client_id
{where} GROUP BY c.client_id, c.first_incomplete, c.acknowledged, c.due,
    s.name, s.peer, s.state, s.retention_s, s.changed_at
ORDER BY COUNT(calls.client_id) DESC, c.client_id
"""


class SqlInspection:
    """See ``rifl._stores.inspection.Inspection``.

    ``dialect``: of any durability, in the sense of ``warn``. A user who may only read can do all
    but what changes calls or the secret.
    """

    def __init__(self, dialect: Dialect, *, beat_s: float, dead_after_s: float) -> None:
        self._dialect = dialect
        self._met = _met(dialect)
        # It compares no history: it looks at what there is.
        self._backend = SqlBackend(dialect, StoreNotes(self._met.store_id, ""))
        self._living = LivingReplicas(self._beats, beat_s=beat_s, dead_after_s=dead_after_s)

    def summary(self) -> Summary:
        """See ``Inspection``."""

        def reading(sql: SqlSession) -> Summary:
            intents, records, record_bytes, oldest = sql.rows(
                "SELECT COUNT(*) - COUNT(record), COUNT(record), SUM(LENGTH(record)), "
                "MIN(COALESCE(recorded_at, claimed_at)) FROM @.calls"
            )[0]
            (clients,) = sql.rows("SELECT COUNT(*) FROM @.clients")[0]
            (opened,) = sql.rows("SELECT COUNT(*) FROM @.sessions WHERE state = %s", b"open")[0]
            return Summary(
                url=self._dialect.place,
                schema_version=LAYOUT,
                incarnation=None,
                owner=owner,
                size_bytes=self._dialect.size_bytes(sql.connection, TABLES),
                clients=clients,
                open_sessions=opened,
                intents=intents,
                records=records,
                record_bytes=int(record_bytes or 0),
                oldest_unix_s=None if oldest is None else int(oldest),
                stopped=bool(self._met.stopped),
            )

        owner = self._living.told()
        return self._transact(reading)

    def restored(self) -> str:
        """See ``Inspection``."""
        if told := self._living.told():
            raise StoreLocked(f"{self._dialect.place} is in use by {told}: stop the servers first")

        def restoring(sql: SqlSession) -> str:
            fresh = accept_loss(sql, "rifl restored", "restored from a backup")
            for (client_id,) in sql.rows(
                "SELECT client_id FROM @.sessions WHERE state = %s", b"open"
            ):
                sql.run(
                    "UPDATE @.sessions SET state = %s, changed_at = %s WHERE client_id = %s",
                    *(b"closed", time.time(), client_id),
                )
                sql.run(
                    "UPDATE @.clients SET state = %s, due = 0 WHERE client_id = %s",
                    *(b"closed", client_id),
                )
            return fresh

        return self._transact(restoring)

    def accept_loss(self, who: str, why: str) -> str:
        """See ``Inspection``."""
        return self._transact(lambda sql: accept_loss(sql, who, why))

    def clients(self, limit: int | None = None) -> list[ClientRow]:
        """See ``Inspection``."""
        most = "" if limit is None else f" LIMIT {int(limit)}"
        return [self._client_row(row) for row in self._rows(self._clients("") + most)]

    def client(self, client_id: int) -> ClientRow | None:
        """See ``Inspection``."""
        rows = self._rows(self._clients("WHERE c.client_id = %s"), client_id)
        return self._client_row(rows[0]) if rows else None

    def _clients(self, where: str) -> str:
        return _CLIENTS.format(where=where, now=self._dialect.now)

    @staticmethod
    def _client_row(row: Any) -> ClientRow:
        session = None
        if row[8] is not None:
            name, peer, state = (bytes(each) for each in row[8:11])
            session = SessionInfo(name.decode(), peer, state.decode(), row[11], row[12])
        return ClientRow(
            client_id=row[0],
            first_incomplete=row[1],
            completed=ranges_of(row[2]),
            intents=row[3],
            records=row[4],
            record_bytes=int(row[5] or 0),
            registered_at_unix_s=None,
            changed_at_unix_s=None if row[6] is None else int(row[6]),
            session=session,
            lease_left_s=row[7],
        )

    def calls(
        self, client_id: int | None = None, *, only_intents: bool = False
    ) -> Iterator[CallRow]:
        """See ``Inspection``. A page at a time."""
        only = "" if client_id is None else f" AND client_id = {int(client_id)}"
        only += " AND record IS NULL" if only_intents else ""
        after: Identity = (-(2**63), -1, b"")
        while True:
            rows = self._rows(
                f"{_CALL} WHERE (client_id > %s OR (client_id = %s AND (seq > %s OR (seq = %s AND "
                f"call_key > %s)))){only} ORDER BY client_id, seq, call_key LIMIT {_PAGE}",
                *(after[0], after[0], after[1], after[1], after[2]),
            )
            if not rows:
                return
            yield from map(_call_row, rows)
            after = (rows[-1][0], rows[-1][1], bytes(rows[-1][2]))

    def call(self, rpc_id: RpcId) -> CallRow | None:
        """See ``Inspection``."""
        rows = self._rows(f"{_CALL} {_WHERE}", *_key(rpc_id))
        return _call_row(rows[0]) if rows else None

    def record(self, rpc_id: RpcId) -> CompletionRecord | None:
        """See ``Inspection``."""
        return RecordCodec.inspected(self.stored(rpc_id), rpc_id)

    def stored(self, rpc_id: RpcId) -> bytes | None:
        """See ``Inspection``."""
        rows = self._rows(f"SELECT record FROM @.calls {_WHERE}", *_key(rpc_id))
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    def holder(self, rpc_id: RpcId) -> str | None:
        """See ``Inspection``."""
        rows = self._rows(f"SELECT owner, record FROM @.calls {_WHERE}", *_key(rpc_id))
        if not rows:
            return None
        owner, record = bytes(rows[0][0]).decode(), rows[0][1]
        # What is recorded has ended, but for what was taken for lost.
        if record is not None and not RecordCodec.is_unknown(bytes(record)):
            return None
        return f"replica {owner}" if owner and self._living.holds(owner) else None

    def replace(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``."""
        key = _key(rpc_id)

        def replacing(sql: SqlSession) -> bool:
            row = lock_call(sql, key)
            if row is None or row.record != seen:
                return False
            if seen is None:
                write_record(sql, key, row, data, b"", row.owner)
            else:
                sql.run(f"UPDATE @.calls SET record = %s {_WHERE}", data, *key)
                count_key(sql, key, 0, len(data) - len(seen))
            self._remember(sql, rpc_id, note)
            return True

        done = self._locking(rpc_id, replacing)
        if done and seen is None:
            self._transact(lambda sql: end_client(sql, rpc_id.client_id))
        return done

    def refuse(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``: every call is claimed here."""
        return False

    def remember(self, rpc_id: RpcId, note: str) -> None:
        """See ``Inspection``."""
        self._transact(lambda sql: self._remember(sql, rpc_id, note))

    @staticmethod
    def _remember(sql: SqlSession, rpc_id: RpcId, note: str) -> None:
        row = lock_call(sql, _key(rpc_id))
        method, since = (b"", None) if row is None else (row.method, row.claimed_at)
        remember(sql, _key(rpc_id), method, since, note.encode())

    def remembered(self) -> Iterator[tuple[RpcId, str, int | None, str | None]]:
        """See ``Inspection``."""
        holds = cache(self._living.holds)
        for client_id, seq, key, method, since, note, owner in self._rows(
            "SELECT client_id, seq, call_key, method, since, note, owner FROM @.unknown_calls "
            "ORDER BY lived"
        ):
            if owner and holds(bytes(owner).decode()):
                # Its caller gave it up, and it runs.
                continue
            yield (
                _rpc_id(client_id, seq, key),
                bytes(method).decode(),
                None if since is None else int(since),
                None if note is None else bytes(note).decode(),
            )

    def release(self, rpc_id: RpcId) -> bool:
        """See ``Inspection``."""
        key = _key(rpc_id)
        seen = self._rows(f"SELECT token, record IS NULL FROM @.calls {_WHERE}", *key)
        if not seen:
            return False
        if holder := self.holder(rpc_id):
            raise StoreLocked(f"{rpc_id} is run by {holder}, which lives")

        def releasing(sql: SqlSession) -> bool:
            meta = read_meta(sql)
            if meta.get(b"store") != self._met.store_id:
                raise StoreCorrupt(f"{self._dialect.place} is another store than it was")
            lock_client(sql, rpc_id.client_id)
            row = lock_call(sql, key)
            if row is None or row.token != bytes(seen[0][0]) or (row.record is None) != seen[0][1]:
                raise StoreLocked(f"{rpc_id} was recorded or taken over just now; look again")
            # With the row goes the attempt's token: nothing can be recorded under it any more.
            delete_call(sql, key)
            count_key(sql, key, -1, -len(key[2]) - len(row.record or b""))
            return row.record is None

        if self._locking(rpc_id, releasing):
            self._transact(lambda sql: end_client(sql, rpc_id.client_id))
        return True

    def rotate_secret(self) -> int:
        """See ``Inspection``."""
        try:
            return SqlLeaseStorage(self._backend).rotate_secret()[0].key_id
        except StorageUnavailable as error:
            raise StoreUnreachable(f"{self._dialect.place} cannot be written: {error}") from error

    def close(self) -> None:
        """See ``Inspection``."""
        self._backend.close()

    def _beats(self) -> dict[str, int]:
        return self._transact(replicas)

    def _rows(self, statement: str, *arguments: Any) -> Any:
        return self._transact(lambda sql: sql.rows(statement, *arguments))

    def _locking(self, rpc_id: RpcId, work: Callable[[SqlSession], _T]) -> _T:
        try:
            return self._backend.transact(work)
        except NotCarriedOut as error:
            raise StoreLocked(f"{rpc_id} is being recorded just now; look again") from error
        except BackendError as error:
            raise StoreUnreachable(f"{self._dialect.place} cannot be used: {error}") from error

    def _transact(self, work: Callable[[SqlSession], _T]) -> _T:
        try:
            return self._backend.transact(work)
        except (BackendError, WrongStore) as error:
            raise StoreUnreachable(f"{self._dialect.place} cannot be used: {error}") from error


def _met(dialect: Dialect) -> StoreNotes:
    """Look at the store that is there, also one that has stopped; makes nothing."""
    session = None
    try:
        session = SqlSession(dialect, dialect.connect())
        if not dialect.is_there(session.connection, "meta"):
            raise WrongDatabase(f"{dialect.place} holds no rifl store")
        return checked(read_meta(session), dialect)
    except dialect.errors as error:
        raise StoreUnreachable(f"{dialect.place} cannot be used: {failed(error)}") from error
    finally:
        if session is not None:
            discard(session)


def _rpc_id(client_id: int, seq: int, key: Any) -> RpcId:
    return RpcId(client_id, seq) if seq else RpcId(client_id, None, bytes(key))


def _key(rpc_id: RpcId) -> Identity:
    return rpc_id.client_id, rpc_id.seq or 0, rpc_id.key or b""


def _call_row(row: Any) -> CallRow:
    client_id, seq, key, method, fingerprint, size, changed_at, owner = row
    return CallRow(
        _rpc_id(client_id, seq, key),
        bytes(method).decode(),
        bytes(fingerprint) or None,
        size,
        int(changed_at),
        None if owner is None else bytes(owner).decode(),
    )
