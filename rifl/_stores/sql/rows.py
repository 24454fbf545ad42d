"""The rows of clients and calls, as requests read and write them in one transaction."""

from __future__ import annotations

import secrets as randomness
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from _rifl_ground.texts import hides
from lease_server._storage import Acknowledgements
from rifl._stores.base import Unresolved
from rifl._stores.shared.requests import MOST_LIVED_S
from rifl._stores.sql.session import SqlSession
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._shared.call import Call

Identity = tuple[int, int, bytes]
ALIVE = ("open", "session", "namespace")
_WHERE = "WHERE client_id = %s AND seq = %s AND call_key = %s"
_CLIENT = (
    "state, first_incomplete, acknowledged, term_s, due, full_term_s, n_keys, key_bytes, writer"
)
_CALL = "fingerprint, method, kind, token, owner, record, claimed_at, retention_s"
# A lease is renewed for a term and a quarter, and again when the quarter is used up.
RENEWED = 1.25
# When the record of a key expires that a handler's own transaction wrote: a sweep gives it a date.
UNDATED = -1.0
_AT_ONCE = 500
# In so many rows the leases of one caller are counted.
_SHARDS = 16


class WrongStore(Exception):
    """The database holds another store than the one that was opened."""


class StoredClient(NamedTuple):
    """A client, whose row is locked."""

    state: str
    first_incomplete: int
    acknowledged: list[tuple[int, int]]
    term_s: float
    due: float | None
    full_term_s: float | None
    n_keys: int
    key_bytes: int
    writer: bytes = b""


@hides("token")
class StoredCall(NamedTuple):
    """A call that runs, or has a record."""

    fingerprint: bytes
    method: bytes
    kind: str
    token: bytes
    owner: str
    record: bytes | None
    claimed_at: float
    retention_s: float | None


def identity_of(call: Call) -> Identity:
    """Return what a call is filed under: client id, seq (0 for a key), key."""
    return call.client_id, call.seq or 0, call.key or b""


def lock_client(sql: SqlSession, client_id: int) -> StoredClient | None:
    """Lock a client's row, if there is one, against other decisions about its calls."""
    row = sql.row(f"SELECT {_CLIENT} FROM @.clients WHERE client_id = %s FOR UPDATE", client_id)
    if row is None:
        return None
    state, first, ranges, term_s, due, full_term_s, n_keys, key_bytes, writer = row
    return StoredClient(
        bytes(state).decode(),
        first,
        ranges_of(ranges),
        term_s,
        due,
        full_term_s,
        n_keys,
        key_bytes,
        bytes(writer),
    )


def look(sql: SqlSession, identity: Identity, store_id: str) -> tuple[float, StoredCall | None]:
    """Return the server's clock, and the committed state of the call; raises ``WrongStore``.

    The clock is read after all that the transaction has locked before.
    """
    row = sql.row(
        f"SELECT {sql.dialect.now}, value, token, {_CALL} FROM @.meta LEFT JOIN @.calls "
        "ON client_id = %s AND seq = %s AND call_key = %s WHERE name = %s",
        *(*identity, b"store"),
    )
    if row is None or bytes(row[1]).decode() != store_id:
        raise WrongStore
    return row[0], None if row[2] is None else _call_row(row[3:])


def lock_call(sql: SqlSession, identity: Identity) -> StoredCall | None:
    """Lock a call's row, if it is there. What is read is the newest, whatever was read before."""
    row = sql.row(f"SELECT {_CALL} FROM @.calls {_WHERE} FOR UPDATE", *identity)
    return None if row is None else _call_row(row)


def _call_row(row: Sequence[Any]) -> StoredCall:
    fingerprint, method, kind, token, owner, record, claimed_at, retention_s = row
    return StoredCall(
        bytes(fingerprint),
        bytes(method),
        bytes(kind).decode(),
        bytes(token),
        bytes(owner).decode(),
        None if record is None else bytes(record),
        claimed_at,
        retention_s,
    )


def insert_call(
    sql: SqlSession,
    call: Call,
    kind: str,
    token: bytes,
    owner: str,
    retention_s: float | None,
) -> None:
    """Write that a call runs."""
    sql.run(
        "INSERT INTO @.calls (client_id, seq, call_key, fingerprint, method, kind, token, owner, "
        f"claimed_at, retention_s) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, {sql.dialect.now}, %s)",
        *(*identity_of(call), call.fingerprint or b"", call.method.encode(), kind.encode(), token),
        *(owner.encode(), retention_s),
    )


def write_record(
    sql: SqlSession,
    identity: Identity,
    row: StoredCall,
    record: bytes,
    fingerprint: bytes,
    owner: str,
    *,
    holder: int | None = None,
) -> None:
    """Give a call that runs, and is locked, its record.

    ``holder``: the session whose own transaction this is, which may last, and may not see how
    much was lived through by now.
    """
    expires = None
    if identity[2] and row.retention_s is not None:
        expires = UNDATED if holder is not None else kept_until(sql, row.retention_s)
    sql.run(
        f"UPDATE @.calls SET record = %s, recorded_at = {sql.dialect.now}, expires_at = %s, "
        f"fingerprint = %s, owner = %s, holder = %s {_WHERE}",
        *(record, expires, fingerprint or row.fingerprint, owner.encode(), holder, *identity),
    )
    count_key(sql, identity, 0, len(record))


def kept_until(sql: SqlSession, retention_s: float) -> float:
    """Return when a retention ends that begins now; the counter may be so much behind."""
    return lived(sql) + MOST_LIVED_S + retention_s


def run_under(sql: SqlSession, identity: Identity, token: bytes, owner: str, kind: str) -> None:
    """Have another attempt run a call that is locked."""
    sql.run(
        "UPDATE @.calls SET token = %s, owner = %s, kind = %s, "
        f"claimed_at = {sql.dialect.now} {_WHERE}",
        *(token, owner.encode(), kind.encode(), *identity),
    )


def disown(sql: SqlSession, identity: Identity) -> None:
    """Note of a recorded call that its attempt has ended."""
    sql.run(f"UPDATE @.calls SET owner = %s {_WHERE}", b"", *identity)


def delete_call(sql: SqlSession, identity: Identity) -> None:
    """Have a call that is locked be new again."""
    sql.run(f"DELETE FROM @.calls {_WHERE}", *identity)


def count_key(sql: SqlSession, identity: Identity, n_keys: int, n_bytes: int) -> None:
    """Note what counts towards a client's bounds of keys; nothing for a seq."""
    if identity[2] and (n_keys or n_bytes):
        sql.run(
            "INSERT INTO @.key_changes VALUES (%s, %s, %s, %s)",
            *(identity[0], randomness.token_bytes(16), n_keys, n_bytes),
        )


def fold_keys(sql: SqlSession, client_id: int, client: StoredClient) -> tuple[int, int]:
    """Return how many keys and bytes a locked client has: what is counted, and what was noted.

    What another transaction has noted and not committed counts later.
    """
    noted = sql.rows(
        "SELECT change_id, n_keys, n_bytes FROM @.key_changes WHERE client_id = %s "
        "FOR UPDATE SKIP LOCKED",
        client_id,
    )
    for at in range(0, len(noted), _AT_ONCE):
        some = [bytes(row[0]) for row in noted[at : at + _AT_ONCE]]
        sql.run(
            "DELETE FROM @.key_changes WHERE client_id = %s AND change_id IN "
            f"({', '.join(['%s'] * len(some))})",
            *(client_id, *some),
        )
    keys = client.n_keys + sum(row[1] for row in noted)
    return keys, client.key_bytes + sum(row[2] for row in noted)


def set_keys(sql: SqlSession, client_id: int, n_keys: int, key_bytes: int) -> None:
    """Note how many keys and bytes a locked client has."""
    sql.run(
        "UPDATE @.clients SET n_keys = %s, key_bytes = %s WHERE client_id = %s",
        *(n_keys, key_bytes, client_id),
    )


def insert_client(
    sql: SqlSession,
    client_id: int,
    state: str,
    term_s: float,
    due: str,
    full_term_s: float | None,
    holder: bytes = b"",
) -> None:
    """Make a client known; ``due`` is SQL. ``holder``: whom its lease counts for."""
    sql.run(
        "INSERT INTO @.clients (client_id, state, first_incomplete, acknowledged, term_s, due, "
        "full_term_s, n_keys, key_bytes, holder, writer) "
        f"VALUES (%s, %s, 1, %s, %s, {due}, %s, 0, 0, %s, %s)",
        *(client_id, state.encode(), b"", term_s, full_term_s, holder, b""),
    )
    if holder:
        _count_lease(sql, client_id, holder, 1)


def leases_of(sql: SqlSession, holder: bytes) -> int:
    """Return how many leases count for one caller."""
    (leases,) = sql.rows("SELECT SUM(leases) FROM @.lease_counts WHERE holder = %s", holder)[0]
    return int(leases or 0)


def _count_lease(sql: SqlSession, client_id: int, holder: bytes, more: int) -> None:
    where = "WHERE holder = %s AND shard = %s"
    shard = client_id % _SHARDS
    row = sql.row(f"SELECT leases FROM @.lease_counts {where} FOR UPDATE", holder, shard)
    leases = more + (row[0] if row else 0)
    if row is None:
        # Of two transactions at once that insert it one begins anew.
        sql.run("INSERT INTO @.lease_counts VALUES (%s, %s, %s)", holder, shard, leases)
    elif leases > 0:
        sql.run(f"UPDATE @.lease_counts SET leases = %s {where}", leases, holder, shard)
    else:
        sql.run(f"DELETE FROM @.lease_counts {where}", holder, shard)


def lived(sql: SqlSession) -> float:
    """Return the time that was lived through."""
    (found,) = sql.row("SELECT lived FROM @.age") or (0.0,)
    return float(found)


def replicas(sql: SqlSession) -> dict[str, int]:
    """Return the beats of the replicas that are there."""
    return {
        bytes(owner).decode(): beats
        for owner, beats in sql.rows("SELECT owner, beats FROM @.replicas")
    }


def remember(
    sql: SqlSession,
    identity: Identity,
    method: bytes,
    since: float | None,
    note: bytes | None = None,
    *,
    owner: bytes = b"",
    token: bytes = b"",
) -> None:
    """Remember a call whose outcome is unknown, and what an operator said of it.

    ``owner``, ``token``: of the attempt, where a caller gave up a call that runs. Then its replica
    says what becomes of it (``resolve``), or is gone.
    """
    known = sql.row(f"SELECT method, since FROM @.unknown_calls {_WHERE} FOR UPDATE", *identity)
    at = lived(sql)
    if known is None:
        sql.run(
            "INSERT INTO @.unknown_calls VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            *(*identity, method, since, note, at, owner, token),
        )
    else:
        sql.run(
            "UPDATE @.unknown_calls SET method = %s, since = %s, note = %s, lived = %s, "
            f"owner = %s, token = %s {_WHERE}",
            *(method or bytes(known[0]), known[1] if since is None else since, note, at),
            *(owner, token, *identity),
        )


def resolve(sql: SqlSession, identity: Identity, token: bytes, *, unknown: bool) -> None:
    """Note the end of an attempt whose caller gave it up, if this is one."""
    where = f"{_WHERE} AND token = %s"
    if unknown:
        changed = f"UPDATE @.unknown_calls SET owner = %s, token = %s {where}"
        sql.run(changed, b"", b"", *identity, token)
    else:
        sql.run(f"DELETE FROM @.unknown_calls {where}", *identity, token)


def unresolved(sql: SqlSession) -> Unresolved:
    """Count what no operator has settled, also calls that a replica left which is gone.

    In one statement: meanwhile a call may be given up, or a replica come.
    """
    gone = "owner NOT IN (SELECT owner FROM @.replicas)"
    calls, since, now = sql.rows(
        f"SELECT COUNT(*), MIN(since), {sql.dialect.now} FROM ("
        f"SELECT since FROM @.unknown_calls WHERE note IS NULL AND {gone} UNION ALL "
        "SELECT claimed_at FROM @.calls WHERE recorded_at IS NULL AND kind = %s "
        f"AND {gone}) AS those",
        b"plain",
    )[0]
    return Unresolved(calls, 0.0 if since is None else max(0.0, now - since))


def acknowledge(
    sql: SqlSession,
    client_id: int,
    told: Acknowledgements,
    client: StoredClient,
    now: float,
    window: int,
    *,
    begins: bool,
) -> ResultTracker:
    """Apply what a client acknowledges, delete what that frees, and renew the lease.

    Returns the tracker of the client's calls by the core's rules, which has those that are known.
    ``begins``: a call is new, so that a session's retention begins.
    """
    released: list[tuple[int, int]] = []
    tracker = ResultTracker(window, client_id=client_id, released=released)
    tracker.acknowledge(client.first_incomplete, client.acknowledged)
    found = sql.rows("SELECT seq FROM @.calls WHERE client_id = %s AND seq > 0", client_id)
    # Of an acknowledged call a handler's transaction may have held the row.
    freed = []
    for (seq,) in found:
        if tracker.is_stale(seq):
            freed.append(seq)
        else:
            tracker.restore(seq, None)
    tracker.acknowledge(*told)
    _release(sql, client_id, [*freed, *[seq for _, seq in released]])
    term_s, due, full_s = client.term_s, client.due, client.full_term_s
    if begins and full_s is not None:
        term_s, due, full_s = full_s, now, None
    if due is not None and due < now + term_s:
        due = now + RENEWED * term_s
    first, ranges = tracker.first_incomplete, tracker.completed_ranges()
    after = client._replace(
        first_incomplete=first, acknowledged=ranges, term_s=term_s, due=due, full_term_s=full_s
    )
    if after != client:
        sql.run(
            "UPDATE @.clients SET first_incomplete = %s, acknowledged = %s, term_s = %s, due = %s, "
            "full_term_s = %s WHERE client_id = %s",
            *(first, _ranges_as(ranges), term_s, due, full_s, client_id),
        )
    return tracker


def _release(sql: SqlSession, client_id: int, seqs: Iterable[int]) -> None:
    """Delete the rows of acknowledged calls.

    One that is locked is being recorded just now; the next acknowledgement takes it.
    """
    if not (wanted := ", ".join(map(str, seqs))):
        return
    rows = sql.rows(
        "SELECT seq, kind, owner, method, claimed_at, record IS NULL, token FROM @.calls "
        f"WHERE client_id = %s AND seq IN ({wanted}) AND call_key = %s FOR UPDATE SKIP LOCKED",
        *(client_id, b""),
    )
    if not rows:
        return
    for seq, kind, owner, method, claimed_at, runs, token in rows:
        if runs and bytes(kind) == b"plain":
            # Its caller gave it up.
            whose = {"owner": bytes(owner), "token": bytes(token)}
            remember(sql, (client_id, seq, b""), bytes(method), claimed_at, **whose)
    sql.run(
        "DELETE FROM @.calls WHERE client_id = %s AND call_key = %s AND seq IN "
        f"({', '.join(str(row[0]) for row in rows)})",
        *(client_id, b""),
    )


def drop_client(sql: SqlSession, client_id: int) -> None:
    """Remove a client's row, which is locked, with its records and counts."""
    for seq, key, method, claimed_at, runs in sql.rows(
        "SELECT seq, call_key, method, claimed_at, record IS NULL AND kind = %s FROM @.calls "
        "WHERE client_id = %s FOR UPDATE",
        *(b"plain", client_id),
    ):
        if runs:
            # The replica that began it is gone.
            remember(sql, (client_id, seq, bytes(key)), bytes(method), claimed_at)
    row = sql.row("SELECT holder FROM @.clients WHERE client_id = %s", client_id)
    for table in ("calls", "key_changes", "clients"):
        sql.run(f"DELETE FROM @.{table} WHERE client_id = %s", client_id)
    if row and row[0]:
        _count_lease(sql, client_id, bytes(row[0]), -1)


def end_client(sql: SqlSession, client_id: int) -> None:
    """Drop a client whose lease ended while it ran calls, if none is left.

    A session's row stays: it is what its calls are refused by.
    """
    client = lock_client(sql, client_id)
    if client is None or client.state not in ("over", "closed"):
        return
    if sql.rows(
        "SELECT seq FROM @.calls WHERE client_id = %s AND record IS NULL LIMIT 1", client_id
    ):
        return
    if client.state == "over":
        drop_client(sql, client_id)
        return
    for table in ("calls", "key_changes"):
        sql.run(f"DELETE FROM @.{table} WHERE client_id = %s", client_id)
    set_keys(sql, client_id, 0, 0)


def ranges_of(text: Any) -> list[tuple[int, int]]:
    """Return the acknowledged ranges that a row holds, inclusive."""
    if not text:
        return []
    pairs = [each.split(b"-") for each in bytes(text).split(b",")]
    return [(int(first), int(last)) for first, last in pairs]


def _ranges_as(ranges: Iterable[tuple[int, int]]) -> bytes:
    return b",".join(b"%d-%d" % each for each in ranges)
