"""The end of keyed calls' retentions, and what else goes by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from rifl._stores.inspection import NOTES_KEPT, VERDICTS_KEPT_S
from rifl._stores.sql.rows import (
    WrongStore,
    count_key,
    delete_call,
    drop_client,
    kept_until,
    lived,
    lock_call,
    lock_client,
    remember,
    replicas,
    write_record,
)
from rifl._stores.sql.session import SqlSession

# Carries out a transaction.
Transact = Callable[[Callable[[SqlSession], Any]], Any]
# A transaction's worth: others wait for the rows that it locks.
_AT_ONCE = 500
# How old a claim is before its replica, if unknown, counts as gone.
_GONE_S = 60.0
# No transaction of a handler's lasts so long.
_MARKS_KEPT_S = 7 * 86_400.0


def expire_keys(transact: Transact, store_id: str, lost: bytes, limit: int) -> int:
    """Delete what is due, one replica at a time: the others would only wait; return how many."""
    gone = 0
    while gone < limit:
        most = min(_AT_ONCE, limit - gone)
        expired = transact(partial(_expire, store_id=store_id, limit=most))
        gone += max(0, expired)
        if expired < most:
            break
    if expired >= 0:
        for call in transact(_left_behind):
            transact(partial(_end, call=call, lost=lost))
        for client_id in transact(_empty):
            transact(partial(_drop, client_id=client_id))
        transact(_forget)
    return gone


def _expire(sql: SqlSession, store_id: str, limit: int) -> int:
    """Expire some; -1 where another replica does so just now."""
    if not sql.rows("SELECT name FROM @.meta WHERE name = %s FOR UPDATE SKIP LOCKED", b"expire"):
        return -1
    row = sql.row("SELECT value FROM @.meta WHERE name = %s", b"store")
    if row is None or bytes(row[0]).decode() != store_id:
        raise WrongStore
    for client_id, key, retention_s in sql.rows(
        "SELECT client_id, call_key, retention_s FROM @.calls WHERE expires_at < 0 "
        f"LIMIT {limit} FOR UPDATE SKIP LOCKED"
    ):
        sql.run(
            "UPDATE @.calls SET expires_at = %s WHERE client_id = %s AND seq = 0 AND call_key = %s",
            *(kept_until(sql, retention_s), client_id, bytes(key)),
        )
    due = sql.rows(
        "SELECT client_id, call_key, LENGTH(record) FROM @.calls WHERE expires_at >= 0 AND "
        f"expires_at <= %s LIMIT {limit} FOR UPDATE SKIP LOCKED",
        lived(sql),
    )
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for client_id, key, size in due:
        delete_call(sql, (client_id, 0, bytes(key)))
        counts[client_id][0] -= 1
        counts[client_id][1] -= len(key) + size
    for client_id, (n_keys, n_bytes) in counts.items():
        count_key(sql, (client_id, 0, b"*"), n_keys, n_bytes)
    return len(due)


def _left_behind(sql: SqlSession) -> list[Any]:
    """Return calls in namespaces whose replica is gone: no lease ends them."""
    living = replicas(sql)
    found = sql.rows(
        "SELECT client_id, seq, call_key, token, owner FROM @.calls WHERE client_id < 0 AND "
        f"record IS NULL AND claimed_at < {sql.dialect.now} - {_GONE_S} LIMIT {_AT_ONCE}"
    )
    return [
        ((client_id, seq, bytes(key)), bytes(token))
        for client_id, seq, key, token, owner in found
        if bytes(owner).decode() not in living
    ]


def _end(sql: SqlSession, call: Any, lost: bytes) -> None:
    identity, token = call
    row = lock_call(sql, identity)
    if row is None or row.token != token or row.record is not None:
        return
    if row.kind == "plain":
        write_record(sql, identity, row, lost, b"", row.owner)
        remember(sql, identity, row.method, row.claimed_at)
    else:
        delete_call(sql, identity)
        count_key(sql, identity, -1, -len(identity[2]))


def _empty(sql: SqlSession) -> list[int]:
    """Return namespaces without a call."""
    return [
        client_id
        for (client_id,) in sql.rows(
            "SELECT client_id FROM @.clients WHERE client_id < 0 AND NOT EXISTS (SELECT 1 FROM "
            f"@.calls WHERE @.calls.client_id = @.clients.client_id) LIMIT {_AT_ONCE}"
        )
    ]


def _drop(sql: SqlSession, client_id: int) -> None:
    # Looked at anew, now that no request can claim there.
    if lock_client(sql, client_id) is not None and not sql.rows(
        "SELECT seq FROM @.calls WHERE client_id = %s LIMIT 1", client_id
    ):
        drop_client(sql, client_id)


def _forget(sql: SqlSession) -> None:
    """Forget old verdicts and notes, and marks of transactions that ended long ago."""
    kept = lived(sql) - VERDICTS_KEPT_S
    newest = sql.row(
        f"SELECT lived FROM @.unknown_calls ORDER BY lived DESC LIMIT 1 OFFSET {NOTES_KEPT}"
    )
    sql.run("DELETE FROM @.unknown_calls WHERE lived < %s", kept)
    if newest is not None:
        sql.run("DELETE FROM @.unknown_calls WHERE lived <= %s", newest[0])
    sql.run(f"DELETE FROM @.marks WHERE marked_at < {sql.dialect.now} - {_MARKS_KEPT_S}")
