"""The requests of a shared store, each decided in Python within a transaction that locks.

A request about a client's calls locks the client's row first, then the call's: what is read
afterwards is what is committed, and stays so. A record needs the call's row alone, which a
handler's own transaction locks, too.
"""

from __future__ import annotations

from hashlib import sha256

from lease_server._storage import NOTHING, Acknowledgements
from lease_server._tokens import writer_of
from rifl._stores.shared.requests import (
    MOST_LIVED_S,
    Abandon,
    Beats,
    Claim,
    Claimed,
    CountBeat,
    Ending,
    Finish,
    Finished,
    Found,
    GetRows,
    Look,
    LookAtClient,
    MoveRows,
    SeenClient,
    TakeBack,
)
from rifl._stores.sql.dialect import Failure
from rifl._stores.sql.rows import (
    ALIVE,
    Identity,
    StoredCall,
    StoredClient,
    WrongStore,
    acknowledge,
    count_key,
    delete_call,
    disown,
    fold_keys,
    identity_of,
    insert_call,
    insert_client,
    lock_call,
    lock_client,
    look,
    ranges_of,
    remember,
    replicas,
    resolve,
    run_under,
    set_keys,
    write_record,
)
from rifl._stores.sql.session import SqlSession
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.errors import WindowExceeded


class HeldByHandler(Exception):
    """A handler's transaction holds the row of a call that must be taken over."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.identity = identity


class Changed(Exception):
    """What was read is not so any more: the transaction begins anew."""


def claim(sql: SqlSession, request: Claim, store_id: str) -> Claimed:
    """Decide about a call, and claim it if it is new (DESIGN §4, steps 2 to 6)."""
    call, identity = request.call, identity_of(request.call)
    client = _client(sql, call)
    # Only now: a request that takes the claim back locks the same row, and may have been first.
    now, known = look(sql, identity, store_id)
    if request.until_s is not None and now > request.until_s:
        return Claimed(Found.LATE)
    if client is None and call.client_id < 0 and known is None:
        insert_client(sql, call.client_id, "namespace", 0.0, "NULL", None)
        client = StoredClient("namespace", 1, [], 0.0, None, None, 0, 0)
    alive = client is not None and client.state in ALIVE
    if known is not None:
        return _known(sql, request, client if alive else None, known, now)
    if client is None or not alive:
        closed = client is not None and client.state == "closed"
        return Claimed(Found.CLOSED if closed else Found.UNKNOWN_CLIENT)
    if call.seq is not None:
        if client.state == "session":
            return Claimed(Found.NEEDS_KEY)
        if call.seq < client.first_incomplete or any(
            first <= call.seq <= last for first, last in client.acknowledged
        ):
            return Claimed(Found.STALE)
    tracker = None
    if call.seq is not None or _is_due(client, now):
        tracker = acknowledge(
            sql, call.client_id, _told(call), client, now, request.window, begins=True
        )
    if request.refusing:
        return Claimed(Found.REFUSING)
    if call.seq is None:
        n_keys, n_bytes = fold_keys(sql, call.client_id, client)
        if n_keys >= request.max_keys or n_bytes >= request.max_key_bytes:
            set_keys(sql, call.client_id, n_keys, n_bytes)
            return Claimed(Found.WINDOW)
        set_keys(sql, call.client_id, n_keys + 1, n_bytes + len(identity[2]))
    elif tracker is not None:
        try:
            tracker.claim(call.seq, call.first_incomplete, call.completed)
        except WindowExceeded:
            return Claimed(Found.WINDOW)
    # What a session keeps, it keeps as long as it lives.
    retention_s = None if client.state == "session" else request.retention_s
    insert_call(sql, call, request.kind.value, request.token, request.owner, retention_s)
    return Claimed(Found.NEW)


def _client(sql: SqlSession, call: Call) -> StoredClient | None:
    """Lock a call's client; a session that takes another writer's calls is closed to this one."""
    client = lock_client(sql, call.client_id)
    if client is None or client.state != "session" or client.writer == writer_of(call.token):
        return client
    return client._replace(state="closed")


def _is_due(client: StoredClient, now: float) -> bool:
    if client.full_term_s is not None:
        return True
    return client.due is not None and client.due < now + client.term_s


def _known(
    sql: SqlSession, request: Claim, client: StoredClient | None, known: StoredCall, now: float
) -> Claimed:
    """Answer a claim of a call that is known; ``client`` is alive, or None."""
    call = request.call
    fingerprint = call.fingerprint or b""
    if fingerprint and known.fingerprint and fingerprint != known.fingerprint:
        return Claimed(Found.MISMATCH)
    if client is not None and (_acknowledges(call, client) or _is_due(client, now)):
        told = _told(call)
        acknowledge(sql, call.client_id, told, client, now, request.window, begins=False)
    if known.record is not None:
        return Claimed(Found.COMPLETED, record=known.record, verified=known.fingerprint != b"")
    if known.token == request.token:
        return Claimed(Found.NEW)
    if known.token == request.take_over:
        return _take_over(sql, request, client)
    return Claimed(Found.RUNNING, known.token, known.owner, Kind(known.kind))


def _told(call: Call) -> Acknowledgements:
    # The header of a call with a key acknowledges nothing.
    return (
        NOTHING if call.key is not None else Acknowledgements(call.first_incomplete, call.completed)
    )


def _acknowledges(call: Call, client: StoredClient) -> bool:
    return call.first_incomplete > client.first_incomplete or bool(call.completed)


def _take_over(sql: SqlSession, request: Claim, client: StoredClient | None) -> Claimed:
    identity = identity_of(request.call)
    if not request.lost:
        if client is None:
            ended = _client(sql, request.call)
            closed = ended is not None and ended.state == "closed"
            return Claimed(Found.CLOSED if closed else Found.UNKNOWN_CLIENT)
        if request.refusing:
            return Claimed(Found.REFUSING)
    try:
        row = lock_call(sql, identity)
    except sql.dialect.errors as error:
        if sql.dialect.failure(error) is Failure.LOCKED:
            raise HeldByHandler(identity) from error
        raise
    if row is None or row.record is not None or row.token != request.take_over:
        raise Changed
    if request.lost:
        write_record(sql, identity, row, request.lost, b"", row.owner)
        remember(sql, identity, row.method, row.claimed_at)
        return Claimed(Found.COMPLETED, record=request.lost, verified=row.fingerprint != b"")
    run_under(sql, identity, request.token, request.owner, request.kind.value)
    return Claimed(Found.NEW)


def finish(sql: SqlSession, request: Finish, store_id: str) -> Finished:
    """Record an answer if the attempt is current."""
    identity = identity_of(request.call)
    row = lock_call(sql, identity)
    _check_store(sql, store_id)
    if row is None:
        resolve(sql, identity, request.token, unknown=request.unknown or request.left)
        return Finished(_ending(sql, request.call))
    if row.record is not None:
        # Mostly the same attempt's, by a request whose reply was lost.
        if row.record == request.record:
            return Finished(Ending.DONE)
        if row.token == request.token and not request.left:
            # Taken for lost, it has ended after all.
            disown(sql, identity)
        return Finished(Ending.STANDS, row.record)
    if row.token != request.token:
        return Finished(Ending.FENCED)
    owner = "" if request.how == "unknown" else row.owner
    fingerprint = request.call.fingerprint or b""
    write_record(sql, identity, row, request.record, fingerprint, owner)
    if request.unknown or request.left:
        remember(sql, identity, row.method, row.claimed_at)
    return Finished(Ending.DONE)


def _ending(sql: SqlSession, call: Call) -> Ending:
    """Return what became of a call whose row is gone."""
    # A namespace is alive, and its row goes with its last key.
    if call.client_id < 0:
        return Ending.FENCED
    client = lock_client(sql, call.client_id)
    if client is None or client.state not in ALIVE:
        return Ending.GONE
    seq = call.seq or 0
    if seq and (
        seq < client.first_incomplete
        or any(first <= seq <= last for first, last in client.acknowledged)
    ):
        return Ending.ACKNOWLEDGED
    return Ending.FENCED


def is_over(sql: SqlSession, request: Finish | Abandon | TakeBack) -> bool:
    """Whether the call's client may be waiting for its last call to end."""
    row = sql.row("SELECT state FROM @.clients WHERE client_id = %s", request.call.client_id)
    return row is not None and bytes(row[0]) in (b"over", b"closed")


def abandon(sql: SqlSession, request: Abandon | TakeBack, store_id: str) -> Finished:
    """Make a call new again if the attempt is current."""
    identity = identity_of(request.call)
    # A claim of this token that has begun and not committed would not show.
    lock_client(sql, request.call.client_id)
    row = lock_call(sql, identity)
    _check_store(sql, store_id)
    if row is None:
        resolve(sql, identity, request.token, unknown=False)
        return Finished(Ending.DONE)
    if row.record is not None:
        return Finished(Ending.STANDS, row.record)
    if row.token != request.token:
        return Finished(Ending.FENCED)
    delete_call(sql, identity)
    count_key(sql, identity, -1, -len(identity[2]))
    return Finished(Ending.DONE)


def look_at(sql: SqlSession, request: Look, store_id: str) -> Finished:
    """Read the record that stands; waits for a handler's transaction that may still commit."""
    identity = identity_of(request.call)
    _, row = look(sql, identity, store_id)
    if row is not None and row.record is None:
        row = lock_call(sql, identity)
    if row is None:
        return Finished(Ending.DONE)
    if row.record is not None:
        return Finished(Ending.STANDS, row.record)
    return Finished(Ending.DONE if row.token == request.token else Ending.FENCED)


def beat(sql: SqlSession, request: CountBeat, store_id: str, known: int) -> Beats | None:
    """Count a beat, remove dead replicas, and return all; None where the store lost beats."""
    owner = request.owner.encode()
    if request.leaving:
        sql.run("DELETE FROM @.replicas WHERE owner = %s", owner)
        return Beats({}, 0.0)
    _check_store(sql, store_id)
    row = sql.row("SELECT beats FROM @.replicas WHERE owner = %s FOR UPDATE", owner)
    if row is None:
        # Others took it for dead, or it begins.
        sql.run("INSERT INTO @.replicas VALUES (%s, %s)", owner, known + 1)
    elif row[0] < known:
        return None
    else:
        sql.run("UPDATE @.replicas SET beats = %s WHERE owner = %s", row[0] + 1, owner)
    # A replica that was suspended in its own beat holds its row and the age: no other one waits.
    for dead, count in request.dead:
        found = sql.row(
            "SELECT beats FROM @.replicas WHERE owner = %s FOR UPDATE SKIP LOCKED", dead.encode()
        )
        if found is not None and found[0] == count:
            sql.run("DELETE FROM @.replicas WHERE owner = %s", dead.encode())
    beats = replicas(sql)
    age = sql.row("SELECT lived, sweeper, reading FROM @.age FOR UPDATE SKIP LOCKED")
    if age is not None:
        _grow_older(sql, request, beats, *age)
    (now,) = sql.row(f"SELECT {sql.dialect.now}") or (0.0,)
    return Beats(beats, now)


def _grow_older(
    sql: SqlSession,
    request: CountBeat,
    beats: dict[str, int],
    at: float,
    sweeper: bytes,
    reading: float,
) -> None:
    """Count the time that the sweeper has lived through, or become the sweeper."""
    owner = request.owner.encode()
    if bytes(sweeper) == owner or bytes(sweeper).decode() not in beats:
        if bytes(sweeper) == owner:
            at += max(0.0, min(MOST_LIVED_S, request.reading_s - reading))
        sql.run(
            "UPDATE @.age SET lived = %s, sweeper = %s, reading = %s", at, owner, request.reading_s
        )


def take_back(sql: SqlSession, request: TakeBack, store_id: str) -> float:
    """Abandon a claim; the clock, read while no other claim of the client can be decided."""
    abandon(sql, request, store_id)
    (now,) = sql.row(f"SELECT {sql.dialect.now}") or (0.0,)
    return float(now)


def look_at_client(sql: SqlSession, request: LookAtClient, store_id: str) -> SeenClient | None:
    """Read whom a client's lease counts for, and what it has acknowledged."""
    _check_store(sql, store_id)
    row = sql.row(
        "SELECT holder, first_incomplete, acknowledged FROM @.clients WHERE client_id = %s",
        request.client_id,
    )
    return None if row is None else SeenClient(bytes(row[0]), row[1], ranges_of(row[2]))


def get_rows(sql: SqlSession, request: GetRows, store_id: str) -> dict[str, bytes]:
    """Read conditional rows."""
    _check_store(sql, store_id)
    hashes = [row_hash(key) for key in request.keys]
    if not hashes:
        return {}
    marks = ", ".join(["%s"] * len(hashes))
    found = sql.rows(f"SELECT row_key, value FROM @.moved WHERE key_hash IN ({marks})", *hashes)
    return {bytes(key).decode(): bytes(value) for key, value in found}


def move_rows(sql: SqlSession, request: MoveRows, store_id: str) -> bool:
    """Move conditional rows, all or none; in the order of their keys, against deadlocks."""
    _check_store(sql, store_id)
    for each in sorted(request.moves):
        if not move_row(sql, each.key, each.expected, each.value):
            raise NotMoved
    return True


class NotMoved(Exception):
    """A row was not as expected: the transaction rolls back."""


def move_row(sql: SqlSession, key: str, expected: bytes | None, value: bytes) -> bool:
    """Move one row, if it is as expected."""
    hashed = row_hash(key)
    row = sql.row("SELECT value FROM @.moved WHERE key_hash = %s FOR UPDATE", hashed)
    if (row is None) is not (not expected) or (row is not None and bytes(row[0]) != expected):
        return False
    if row is None:
        sql.run("INSERT INTO @.moved VALUES (%s, %s, %s)", hashed, key.encode(), value)
    else:
        sql.run("UPDATE @.moved SET value = %s WHERE key_hash = %s", value, hashed)
    return True


def row_hash(key: str) -> bytes:
    """Return what a conditional row is found by."""
    return sha256(key.encode()).digest()


def _check_store(sql: SqlSession, store_id: str) -> None:
    """Raise ``WrongStore`` if the store is another than the one that was opened."""
    row = sql.row("SELECT value FROM @.meta WHERE name = %s", b"store")
    if row is None or bytes(row[0]).decode() != store_id:
        raise WrongStore
