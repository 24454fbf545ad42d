"""Inspection of a PostgreSQL store beside its servers: plain reads, which lock nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg

from _rifl_ground.postgres.connections import Pools, connect_as_ours
from lease_server._errors import StorageUnavailable
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import StoreCorrupt, StoreLocked, StoreUnreachable
from rifl._stores.inspection import CallRow, ClientRow, SessionInfo, Summary
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.lease_storage import PostgresLeaseStorage
from rifl._stores.postgres.schema import read_meta
from rifl._stores.postgres.store_address import store_address
from rifl._stores.shared.replicas import LivingReplicas
from rifl.core._serving.policy import Kind
from rifl.core._shared.identity import MAX_SEQ, RpcId
from rifl.core._shared.record import CompletionRecord

_PAGE = 1000
# Counting a large store takes a while; a statement that hangs shall end all the same.
_STATEMENT_MS = 60_000
# A row that is locked longer is being recorded by a handler's transaction.
_LOCK_MS = 1_000
# Stands for the attempt of what an operator has recorded.
_VERDICT = "verdict"
_CALL = """
SELECT client_id, seq, key, method, fingerprint, length(record),
    extract(epoch FROM coalesce(recorded_at, claimed_at))::bigint,
    CASE WHEN record IS NULL THEN owner END
FROM @.calls
"""
_WHERE = "WHERE client_id = %s AND seq = %s AND key = %s"
_CLIENTS = """
SELECT client.client_id, client.first_incomplete, client.acknowledged,
    count(call.client_id) - count(call.record), count(call.record),
    coalesce(sum(length(call.record)), 0)::bigint,
    extract(epoch FROM max(coalesce(call.recorded_at, call.claimed_at)))::bigint,
    extract(epoch FROM CASE WHEN isfinite(client.due) THEN client.due - clock_timestamp()
                            WHEN client.due IS NOT NULL THEN interval '0' END)::float8,
    session.name, session.peer, session.state, session.retention_s, session.changed_at_unix_s
FROM @.clients AS client
LEFT JOIN @.calls AS call USING (client_id)
LEFT JOIN @.sessions AS session USING (client_id)
{where} GROUP BY client.client_id, session.client_id
ORDER BY count(call.client_id) DESC, client.client_id LIMIT %s
"""


class PostgresInspection:
    """See ``rifl._stores.inspection.Inspection``.

    A role that may only read can do all but ``release`` and ``rotate_secret``, on a
    standby too.
    """

    def __init__(self, url: str) -> None:
        self._address = store_address(url)
        with self._errors():
            self._connection = connect_as_ours(self._address)
        address = self._address
        self._living = LivingReplicas(
            self._beats, beat_s=address.beat_s, dead_after_s=address.dead_after_s
        )
        try:
            with self._errors():
                self._connection.execute(
                    f"SET statement_timeout = {_STATEMENT_MS}; SET lock_timeout = {_LOCK_MS}"
                )
                self._met = read_meta(self._connection, self._address)
        except BaseException:
            self._connection.close()
            raise

    def summary(self) -> Summary:
        """See ``Inspection``."""
        intents, records, record_bytes, oldest = self._rows(
            "SELECT count(*) - count(record), count(record), "
            "coalesce(sum(length(record)), 0)::bigint, "
            "extract(epoch FROM min(coalesce(recorded_at, claimed_at)))::bigint FROM @.calls"
        )[0]
        clients, sessions, size_bytes = self._rows(
            "SELECT (SELECT count(*) FROM @.clients), "
            "(SELECT count(*) FROM @.sessions WHERE state = 'open'), "
            "(SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = %s::regnamespace AND relkind = 'r')",
            self._address.schema,
        )[0]
        return Summary(
            url=str(self._address),
            schema_version=self._met.layout,
            incarnation=None,
            owner=self._living.told(),
            size_bytes=size_bytes,
            clients=clients,
            open_sessions=sessions,
            intents=intents,
            records=records,
            record_bytes=record_bytes,
            oldest_unix_s=oldest,
            stopped=bool(self._met.stopped),
        )

    def restored(self) -> str:
        """See ``Inspection``."""
        if told := self._living.told():
            raise StoreLocked(f"{self._address} is in use by {told}: stop the servers first")
        with self._errors(), self._connection.transaction():
            (fresh,) = self._rows(
                "SELECT @.accept_loss_1(%s, %s)", "rifl restored", "restored from a backup"
            )[0]
            self._rows(
                "WITH closed AS (UPDATE @.sessions SET state = 'closed', "
                "changed_at_unix_s = %s WHERE state = 'open' RETURNING client_id) "
                "UPDATE @.clients SET state = 'closed', due = '-infinity' "
                "WHERE client_id IN (SELECT client_id FROM closed) RETURNING client_id",
                time.time(),
            )
        return str(fresh)

    def accept_loss(self, who: str, why: str) -> str:
        """See ``Inspection``."""
        return str(self._rows("SELECT @.accept_loss_1(%s, %s)", who, why)[0][0])

    def clients(self, limit: int | None = None) -> list[ClientRow]:
        """See ``Inspection``."""
        return [_client_row(row) for row in self._rows(_CLIENTS.format(where=""), limit)]

    def client(self, client_id: int) -> ClientRow | None:
        """See ``Inspection``."""
        statement = _CLIENTS.format(where="WHERE client.client_id = %s")
        rows = self._rows(statement, client_id, 1)
        return _client_row(rows[0]) if rows else None

    def calls(
        self, client_id: int | None = None, *, only_intents: bool = False
    ) -> Iterator[CallRow]:
        """Read a page at a time: a long read would delay vacuuming."""
        only = "" if client_id is None else "AND client_id = %s"
        only += " AND record IS NULL" if only_intents else ""
        given = () if client_id is None else (client_id,)
        after: tuple[Any, ...] = (-(2**63), -1, b"")
        while True:
            rows = self._rows(
                f"{_CALL} WHERE (client_id, seq, key) > (%s, %s, %s) {only} "
                "ORDER BY client_id, seq, key LIMIT %s",
                *(*after, *given, _PAGE),
            )
            if not rows:
                return
            yield from map(_call_row, rows)
            after = rows[-1][:3]

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
        return rows[0][0] if rows else None

    def replace(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``."""
        key = _key(rpc_id)
        try:
            with self._errors(), self._connection.transaction():
                if seen is None:
                    tokens = self._rows(f"SELECT token FROM @.calls {_WHERE}", *key)
                    done = bool(tokens) and self._finish(rpc_id, tokens[0][0], data)
                else:
                    done = bool(
                        self._rows(
                            f"UPDATE @.calls SET record = %s {_WHERE} AND record = %s RETURNING 1",
                            *(data, *key, seen),
                        )
                    )
                    if done and rpc_id.key is not None:
                        self._count(rpc_id, 0, len(data) - len(seen))
                if done:
                    self._remember(rpc_id, note)
                return done
        except psycopg.errors.LockNotAvailable as error:
            raise StoreLocked(f"{rpc_id} is being recorded just now; look again") from error

    def refuse(self, rpc_id: RpcId, seen: bytes | None, data: bytes, note: str) -> bool:
        """See ``Inspection``."""
        if rpc_id.key is not None:
            return False
        kinds = self._rows(f"SELECT kind FROM @.calls {_WHERE}", *_key(rpc_id))
        if kinds and kinds[0][0] != Kind.ATOMIC.value:
            return False
        if kinds:
            if not self.replace(rpc_id, seen, data, note):
                raise StoreLocked(f"{rpc_id} was recorded or taken over just now; look again")
            return True
        with self._errors(), self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # As the call's own transaction would.
            (found,) = self._rows(
                "SELECT @.record_unclaimed_1(%s, %s, %s, %s, '', %s, '', '', 1, '{}', %s, true)",
                *(self._met.store_id, rpc_id.client_id, rpc_id.seq, _VERDICT, data, MAX_SEQ),
            )[0]
            if found == "done":
                self._remember(rpc_id, note)
                return True
            over = found == "gone" or self._is_acknowledged(rpc_id)
            raise psycopg.Rollback
        if not over:
            raise StoreLocked(f"{rpc_id} was recorded or begun just now; look again")
        return False

    def remember(self, rpc_id: RpcId, note: str) -> None:
        """See ``Inspection``."""
        with self._errors(), self._connection.transaction():
            self._remember(rpc_id, note)

    def remembered(self) -> Iterator[tuple[RpcId, str, int | None, str | None]]:
        """See ``Inspection``."""
        holds = cache(self._living.holds)
        for client_id, seq, key, method, since, note, owner in self._rows(
            "SELECT client_id, seq, key, method, extract(epoch FROM since)::bigint, note, owner "
            "FROM @.unknown ORDER BY lived"
        ):
            if owner and holds(owner):
                # Its caller gave it up, and it runs.
                continue
            rpc_id = RpcId(client_id, seq) if seq else RpcId(client_id, None, key)
            yield rpc_id, method, since, note

    def holder(self, rpc_id: RpcId) -> str | None:
        """See ``Inspection``."""
        rows = self._rows(f"SELECT owner, record FROM @.calls {_WHERE}", *_key(rpc_id))
        if not rows:
            return None
        owner, record = rows[0]
        # What is recorded has ended, but for what was taken for lost.
        if record is not None and not RecordCodec.is_unknown(record):
            return None
        return f"replica {owner}" if owner and self._living.holds(owner) else None

    def release(self, rpc_id: RpcId) -> bool:
        """See ``Inspection``."""
        key = _key(rpc_id)
        call = self.call(rpc_id)
        tokens = self._rows(f"SELECT token FROM @.calls {_WHERE}", *key)
        if call is None or not tokens:
            return False
        if holder := self.holder(rpc_id):
            raise StoreLocked(f"{rpc_id} is run by {holder}, which lives")
        try:
            with self._errors(), self._connection.transaction():
                return self._release(rpc_id, tokens[0][0], running=call.record_bytes is None)
        except psycopg.errors.LockNotAvailable as error:
            raise StoreLocked(f"{rpc_id} is being recorded just now; look again") from error

    def rotate_secret(self) -> int:
        """See ``Inspection``."""
        pools = Pools(self._address)
        backend = PostgresBackend(self._address, pools, self._met.store_id, history="")
        try:
            with self._errors():
                pools.blocking.open()
            return PostgresLeaseStorage(backend).rotate_secret()[0].key_id
        except StorageUnavailable as error:
            raise StoreUnreachable(f"{self._address} cannot be written: {error}") from error
        finally:
            pools.close()

    def close(self) -> None:
        """See ``Inspection``."""
        self._connection.close()

    def _remember(self, rpc_id: RpcId, note: str) -> None:
        call = self.call(rpc_id)
        self._rows(
            "SELECT @.remember_1(%s, %s, %s, %s, to_timestamp(%s), %s)",
            *_key(rpc_id),
            "" if call is None else call.method,
            None if call is None else call.changed_at_unix_s,
            note,
        )

    def _is_acknowledged(self, rpc_id: RpcId) -> bool:
        return bool(
            self._rows(
                "SELECT FROM @.clients WHERE client_id = %s "
                "AND (%s < first_incomplete OR %s::int8 <@ acknowledged)",
                *(rpc_id.client_id, rpc_id.seq, rpc_id.seq),
            )
        )

    def _finish(self, rpc_id: RpcId, token: str, data: bytes) -> bool:
        ending = self._rows(
            "SELECT ending FROM @.finish_1(%s, %s, %s, %s, %s, %s, 'finish', '')",
            *(self._met.store_id, *_key(rpc_id), token, data),
        )
        return bool(ending[0][0] == "done")

    def _count(self, rpc_id: RpcId, keys: int, size: int) -> None:
        self._rows(
            "SELECT @.count_key_1(%s::int8, %s::bytea, %s, %s::int8)",
            *(rpc_id.client_id, rpc_id.key, keys, size),
        )

    def _release(self, rpc_id: RpcId, token: str, *, running: bool) -> bool:
        if not self._rows("SELECT @.same_store_1(%s)", self._met.store_id)[0][0]:
            raise StoreCorrupt(f"{self._address} is another store than it was")
        key = _key(rpc_id)
        # With the row goes the attempt's token: nothing can be recorded under it any more.
        rows = self._rows(
            f"DELETE FROM @.calls {_WHERE} AND token = %s AND (record IS NULL) = %s "
            "RETURNING waiters, coalesce(length(record), 0)",
            *(*key, token, running),
        )
        if not rows:
            raise StoreLocked(f"{rpc_id} was recorded or taken over just now; look again")
        waiters, size = rows[0]
        if rpc_id.key is not None:
            self._count(rpc_id, -1, -len(rpc_id.key) - size)
        if running:
            self._rows("SELECT @.wake_1(%s::text, %s::text[])", token, waiters)
            self._rows("SELECT @.end_1(%s::int8)", rpc_id.client_id)
        return True

    def _beats(self) -> dict[str, int]:
        return dict(self._rows("SELECT owner, beats FROM @.replicas"))

    def _rows(self, statement: str, *arguments: Any) -> list[Any]:
        text = statement.replace("@.", f"{self._address.schema}.").encode()
        with self._errors():
            return self._connection.execute(text, arguments, binary=True).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.LockNotAvailable:
            raise
        except (psycopg.Error, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise StoreUnreachable(f"{self._address} cannot be used: {reason}") from error


def _key(rpc_id: RpcId) -> tuple[int, int, bytes]:
    return rpc_id.client_id, rpc_id.seq or 0, rpc_id.key or b""


def _call_row(row: tuple[Any, ...]) -> CallRow:
    client_id, seq, key, method, fingerprint, size, changed_at, owner = row
    rpc_id = RpcId(client_id, seq) if seq else RpcId(client_id, None, key)
    return CallRow(rpc_id, method, fingerprint or None, size, changed_at, owner)


def _client_row(row: tuple[Any, ...]) -> ClientRow:
    return ClientRow(
        client_id=row[0],
        first_incomplete=row[1],
        # psycopg reads half-open ranges; the last seq of all has no successor.
        completed=[(found.lower, (found.upper or 2**63) - 1) for found in row[2]],
        intents=row[3],
        records=row[4],
        record_bytes=row[5],
        registered_at_unix_s=None,
        changed_at_unix_s=row[6],
        session=None if row[8] is None else SessionInfo(*row[8:13]),
        lease_left_s=row[7],
    )
