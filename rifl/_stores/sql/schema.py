"""The tables of a store in any SQL database, made and looked at."""

from __future__ import annotations

import secrets as randomness
from typing import Any, NamedTuple

from _rifl_ground.log import get_logger
from _rifl_ground.servers import Durability
from rifl._stores.errors import StoreCorrupt, StoreSchemaTooNew
from rifl._stores.sql.dialect import Dialect, SqlTable
from rifl._stores.sql.session import SqlSession
from rifl.core._shared.identity import MAX_KEY_BYTES

_log = get_logger("rifl.store")
# What this release reads and writes. A newer one is refused.
LAYOUT = 1
_IDENTITY = (("client_id", "int"), ("seq", "int"), ("call_key", f"bytes({MAX_KEY_BYTES})"))
_PRIMARY = ("client_id", "seq", "call_key")
TABLES = (
    # Rows of these names are locked as well, where one transaction at a time may do a thing.
    SqlTable("meta", (("name", "bytes(64)"), ("value", "blob")), ("name",)),
    # The row of a client is its lease. state: open; session (takes keys only); over (its lease
    # ended, calls still run); closed (a session that ended, kept to be refused by); namespace
    # (of a peer's keys: no lease, and it goes with its last key). full_term_s: the retention of
    # a session in which no call was made yet, while term_s is a lease's.
    SqlTable(
        "clients",
        (
            *(("client_id", "int"), ("state", "bytes(16)"), ("first_incomplete", "int")),
            *(("acknowledged", "blob"), ("term_s", "float"), ("due", "float")),
            *(("full_term_s", "float"), ("n_keys", "int"), ("key_bytes", "int")),
            # Whom a lease counts for, empty for no caller, and for what is no lease.
            ("holder", "bytes(64)"),
            # Whose calls a session takes, empty if it takes all.
            ("writer", "bytes(32)"),
        ),
        ("client_id",),
        (("due",),),
    ),
    # A call has a seq, or a key (then its seq is 0). It runs, under the attempt token, until it
    # has a record. holder: the session that records it in a handler's own transaction. Few run at a
    # time, and have no recorded_at: by this they are found.
    SqlTable(
        "calls",
        (
            *_IDENTITY,
            *(("fingerprint", "bytes(255)"), ("method", "blob"), ("kind", "bytes(16)")),
            *(("token", "bytes(64)"), ("owner", "bytes(64)"), ("holder", "int")),
            *(("record", "blob"), ("claimed_at", "float"), ("recorded_at", "float")),
            *(("retention_s", "float"), ("expires_at", "float")),
        ),
        _PRIMARY,
        (("expires_at",), ("recorded_at",)),
    ),
    # What n_keys and key_bytes of a client do not count yet: a transaction that has not locked
    # its row writes one of these, and the next claim of a key adds them up.
    SqlTable(
        "key_changes",
        (("client_id", "int"), ("change_id", "bytes(16)"), ("n_keys", "int"), ("n_bytes", "int")),
        ("client_id", "change_id"),
    ),
    # Leases of one caller, in several rows, so that its grants do not all wait for each other's
    # commit.
    SqlTable(
        "lease_counts",
        (("holder", "bytes(64)"), ("shard", "int"), ("leases", "int")),
        ("holder", "shard"),
    ),
    SqlTable(
        "sessions",
        (
            *(("client_id", "int"), ("name_hash", "bytes(32)"), ("peer", "blob")),
            *(("name", "blob"), ("state", "bytes(16)"), ("retention_s", "float")),
            *(("changed_at", "float"), ("secret", "bytes(255)"), ("source", "blob")),
            *(("series_hash", "bytes(32)"), ("number", "int")),
        ),
        ("client_id",),
        (("name_hash",), ("series_hash", "number")),
    ),
    SqlTable("replicas", (("owner", "bytes(64)"), ("beats", "int")), ("owner",)),
    SqlTable(
        "secrets",
        (("position", "int"), ("key_id", "int"), ("value", "bytes(255)")),
        ("position",),
    ),
    # The time that was lived through (``Beat``).
    SqlTable(
        "age",
        (("single", "int"), ("lived", "float"), ("sweeper", "bytes(64)"), ("reading", "float")),
        ("single",),
    ),
    # Where a caller gave up a call that runs, owner and token are its attempt's: it is unknown once
    # that replica is gone. Empty else.
    SqlTable(
        "unknown_calls",
        (
            *(*_IDENTITY, ("method", "blob"), ("since", "float"), ("note", "blob")),
            *(("lived", "float"), ("owner", "bytes(64)"), ("token", "bytes(64)")),
        ),
        _PRIMARY,
        (("lived",),),
    ),
    # Losses that an operator accepted.
    SqlTable(
        "losses",
        (
            *(("loss_id", "bytes(16)"), ("accepted_at", "float"), ("who", "blob")),
            *(("why", "blob"), ("stopped", "blob"), ("store_before", "blob")),
            *(("history_before", "blob"), ("history", "blob")),
        ),
        ("loss_id",),
    ),
    # Rows that are moved conditionally (``ConditionalRows``).
    SqlTable(
        "moved",
        (("key_hash", "bytes(32)"), ("row_key", "blob"), ("value", "blob")),
        ("key_hash",),
    ),
    # A handler's transaction inserts one, and deletes it before its commit: one that is there
    # says that something committed it in between.
    SqlTable("marks", (("mark", "bytes(16)"), ("marked_at", "float")), ("mark",)),
)
# Rows of ``meta`` that are only locked.
MUTEXES = (b"sessions", b"secrets", b"expire")


class StoreNotes(NamedTuple):
    """The store's id, the history that it is written on, and why it stopped, if it did."""

    store_id: str
    history: str
    stopped: str = ""


def prepare(session: SqlSession, history: str) -> StoreNotes:
    """Make the tables that are not there, and see that the history goes on; commits.

    Raises a ``StoreError``. Of several replicas that start at once, one makes them; the others
    wait until its connection is closed.
    """
    dialect, connection = session.dialect, session.connection
    dialect.lock_schema(connection)
    if not is_made(session):
        for statement in dialect.tables(TABLES):
            session.run(statement)
        _fill(session)
        connection.commit()
    meta = read_meta(session)
    found = checked(meta, dialect)
    if found.stopped:
        raise StoreCorrupt(stopped(dialect, found.stopped))
    why = breaks(found.history, history, dialect)
    if why and dialect.durability is Durability.REQUIRE:
        stop(session, found.store_id, why)
        connection.commit()
        raise StoreCorrupt(stopped(dialect, why))
    put_meta(session, b"history", history)
    connection.commit()
    return StoreNotes(found.store_id, history)


def is_made(session: SqlSession) -> bool:
    """Whether the tables are there, whole."""
    # The layout is noted last.
    there = session.dialect.is_there(session.connection, "meta")
    return there and b"layout" in read_meta(session)


def _fill(session: SqlSession) -> None:
    put_meta(session, b"ids", "0")
    for name in MUTEXES:
        put_meta(session, name, "")
    if session.row("SELECT single FROM @.age") is None:
        session.run(f"INSERT INTO @.age VALUES (1, {session.dialect.now}, %s, 0)", b"")
    put_meta(session, b"store", randomness.token_hex(16))
    put_meta(session, b"layout", str(LAYOUT))


def read_meta(session: SqlSession) -> dict[bytes, str]:
    """Return all that is noted of the store."""
    return {bytes(name): bytes(value).decode() for name, value in session.rows(_META)}


_META = "SELECT name, value FROM @.meta"


def put_meta(session: SqlSession, name: bytes, value: str) -> None:
    """Note a value."""
    if session.row("SELECT name FROM @.meta WHERE name = %s FOR UPDATE", name) is None:
        session.run("INSERT INTO @.meta (name, value) VALUES (%s, %s)", name, value.encode())
    else:
        session.run("UPDATE @.meta SET value = %s WHERE name = %s", value.encode(), name)


def lock_mutex(session: SqlSession, name: bytes) -> None:
    """Wait until no other transaction has locked that name."""
    session.rows("SELECT name FROM @.meta WHERE name = %s FOR UPDATE", name)


def checked(meta: dict[bytes, str], dialect: Dialect) -> StoreNotes:
    """Read the notes of a store; raises ``StoreCorrupt``, ``StoreSchemaTooNew``."""
    try:
        layout = int(meta[b"layout"])
        if layout > LAYOUT:
            raise StoreSchemaTooNew(
                f"{dialect.place} has layout {layout}; this release knows {LAYOUT}: upgrade it"
            )
        store_id = meta.get(b"store") or meta[b"stopped_store"]
    except (KeyError, ValueError) as error:
        raise StoreCorrupt(f"{dialect.place}: the meta table is damaged, or not rifl's") from error
    return StoreNotes(store_id, meta.get(b"history", ""), meta.get(b"stopped", ""))


def breaks(kept: str, found: str, dialect: Dialect) -> str:
    """The same as ``broken``; where that is served from all the same, it is logged."""
    why = broken(kept, found)
    if why and dialect.durability is Durability.WARN:
        _log.critical("store_may_have_lost", store=dialect.place, reason=why)
    return why


def broken(kept: str, found: str) -> str:
    """Return why a store that was written on ``kept`` may lack something on ``found``."""
    if not kept or not found or kept == found:
        return ""
    return f"the database server is another one (it was {kept}, and is {found})"


def stop(session: SqlSession, store_id: str, why: str) -> None:
    """Have the store refuse everyone from now on, also after every restart."""
    lock_mutex(session, b"ids")
    meta = read_meta(session)
    if meta.get(b"store") == store_id:
        session.run("DELETE FROM @.meta WHERE name = %s", b"store")
        put_meta(session, b"stopped_store", store_id)
        put_meta(session, b"stopped", why)
        _log.critical("store_sealed", store=session.dialect.place, reason=why)


def stopped(dialect: Dialect, why: str) -> str:
    """Return what is said of a store that has stopped."""
    return (
        f"{dialect.place} may have lost records that it had acknowledged: {why}. Calls may have "
        "run of which it knows nothing. Once that is settled: rifl accept-loss URL"
    )


def accept_loss(session: SqlSession, who: str, why: str) -> str:
    """Serve again from what is there; the store's new id. The caller commits.

    Earlier clients end: their lost calls would run again. Ids that may have been
    granted and lost are never granted again.
    """
    fresh, now = randomness.token_hex(16), session.dialect.now
    lock_mutex(session, b"ids")
    meta = read_meta(session)
    history = session.dialect.server(session.connection, ()).history
    kept: list[Any] = [meta.get(each, "") for each in (b"stopped", b"store", b"history")]
    kept[1] = kept[1] or meta.get(b"stopped_store", "")
    session.run(
        f"INSERT INTO @.losses VALUES (%s, {now}, %s, %s, %s, %s, %s, %s)",
        randomness.token_bytes(16),
        *[each.encode() for each in (who, why, *kept, history)],
    )
    session.run(
        "DELETE FROM @.meta WHERE name IN (%s, %s, %s)", b"store", b"stopped", b"stopped_store"
    )
    put_meta(session, b"store", fresh)
    put_meta(session, b"history", history)
    put_meta(session, b"ids", str(int(meta[b"ids"]) + (1 << 53)))
    # Not while a transaction is open that has judged its client to live.
    session.run("UPDATE @.clients SET state = %s, due = 0 WHERE state = %s", b"over", b"open")
    session.run("DELETE FROM @.replicas")
    return fresh
