"""The lease server's storage in any SQL database (DESIGN §5)."""

from __future__ import annotations

import math
import secrets as randomness
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from _rifl_ground.forks import refuse_in_children
from lease_server._errors import StorageUnavailable, TooManySessions
from lease_server._forked import leases_forked
from lease_server._holders import LeaseBounds, Room
from lease_server._series import SUPERSEDED_S, numbered
from lease_server._session_secret import not_yours
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import (
    NOTHING,
    RANDOM_BITS,
    Acknowledgements,
    Standing,
    short_store_id,
)
from lease_server._tokens import SECRET_BYTES, Secret
from rifl._stores.shared.backend import BackendError, NotCarriedOut
from rifl._stores.shared.lease_watch import LeaseWatch
from rifl._stores.sql.backend import SqlBackend
from rifl._stores.sql.rows import (
    RENEWED,
    acknowledge,
    drop_client,
    insert_client,
    leases_of,
    lock_client,
    ranges_of,
    replicas,
)
from rifl._stores.sql.schema import lock_mutex
from rifl._stores.sql.session import SqlSession
from rifl.core._shared.call import MAX_RANGES, acknowledges_more
from rifl.core._shared.errors import SessionClosed

_T = TypeVar("_T")
_SWEPT_AT_ONCE = 200
# Below it, clients are counted; above, the database estimates them.
_COUNTED = 10_000
_BUSY_S = 1.0
_SESSION = "client_id, name, peer, state, retention_s, changed_at, secret, source"
_STANDING = {
    "open": Standing.ALIVE,
    "session": Standing.SESSION,
    "namespace": Standing.ALIVE,
    "closed": Standing.CLOSED,
}


class SqlLeaseStorage:
    """``SharedLeaseStorage`` over the generic backend. Any thread; blocks.

    The row of a client is its lease. A renewal is written once in a quarter of a term, for a
    term and a quarter: late is safe. A session that ended leaves its row, so that it is refused
    as closed, until its name is forgotten.
    """

    random_bits = RANDOM_BITS

    def __init__(self, backend: SqlBackend) -> None:
        self.held = 0
        self._backend = backend
        self._now = backend.dialect.now
        self._watch = LeaseWatch(time.monotonic)
        refuse_in_children(self, leases_forked)

    def close(self) -> None:
        """Close the connections, of a lease server that stands alone."""
        self._backend.close()

    # -- leases ---------------------------------------------------------------------------

    def grant(
        self, client_id: int, term_s: float, bounds: LeaseBounds, holder: bytes = b""
    ) -> Room:
        """Make the id known on every server. Above ten thousand the bound is approximate."""

        def granting(sql: SqlSession) -> Room:
            if lock_client(sql, client_id) is not None:
                # A request that is repeated, since its reply was lost.
                return Room.FREE
            held = _count(sql, min(bounds.of_all, _COUNTED))
            room = bounds.room(held, leases_of(sql, holder) if holder else 0)
            if room is Room.FREE:
                due = f"{self._now} + {float(term_s) * RENEWED!r}"
                insert_client(sql, client_id, "open", float(term_s), due, None, holder)
            return room

        return self._transact(granting)

    def renew(self, client_id: int, acknowledged: Acknowledgements = NOTHING) -> Standing:
        """Give the lease, or the session's retention, its full length again."""
        return self._transact(lambda sql: self._renew(sql, client_id, acknowledged))

    def _renew(
        self, sql: SqlSession, client_id: int, acknowledged: Acknowledgements = NOTHING
    ) -> Standing:
        row = sql.row(
            f"SELECT state, due < {self._now} + term_s, first_incomplete, acknowledged "
            "FROM @.clients WHERE client_id = %s",
            client_id,
        )
        moves = (
            row is not None
            and bytes(row[0]) == b"open"
            and acknowledges_more(*acknowledged, row[2], ranges_of(row[3]))
        )
        if row is not None and (row[1] or moves):
            # Anew, now that nothing can change it.
            client = lock_client(sql, client_id)
            if moves and client is not None and client.state == "open":
                (now,) = sql.rows(f"SELECT {self._now}")[0]
                # What the row holds stays remembered, whatever window the servers have.
                window = max(1, len(client.acknowledged) - MAX_RANGES)
                acknowledge(sql, client_id, acknowledged, client, now, window, begins=False)
                return Standing.ALIVE
            if client is not None and client.state in _STANDING and client.state != "closed":
                sql.run(
                    f"UPDATE @.clients SET due = {self._now} + {RENEWED} * term_s "
                    "WHERE client_id = %s",
                    client_id,
                )
                return _STANDING[client.state]
            return Standing.CLOSED if client and client.state == "closed" else Standing.UNKNOWN
        return Standing.UNKNOWN if row is None else _standing(row[0])

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep."""
        self._transact(
            lambda sql: sql.run(
                "UPDATE @.clients SET due = 0 WHERE client_id = %s AND due IS NOT NULL", client_id
            )
        )

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due; see ``SharedLeaseStorage``."""
        try:
            run = self._transact(lambda sql: sql.dialect.run(sql.connection))
            watched = self._watch.saw(run, term_s)
            # What was closed or released is due at any time.
            limit = self._now if watched else "0"
            due = self._rows(
                f"SELECT client_id FROM @.clients WHERE due <= {limit} ORDER BY due "
                f"LIMIT {_SWEPT_AT_ONCE}"
            )
            dropped = 0
            for (client_id,) in due:
                dropped += self._retired(client_id, float(unix_s))
            for client_id in self._forgettable(unix_s, refuse_for_s):
                self.forget_session(client_id)
            return dropped
        except StorageUnavailable:
            self._watch.lost()
            raise

    def _retired(self, client_id: int, unix_s: float) -> bool:
        try:
            return self._backend.transact(partial(self._retire, client_id=client_id, unix_s=unix_s))
        except NotCarriedOut:
            # A transaction of a handler that is gone holds a call of it: a later sweep's.
            return False
        except BackendError as error:
            raise StorageUnavailable(f"the store cannot be used: {error}") from error

    def _retire(self, sql: SqlSession, client_id: int, unix_s: float) -> bool:
        """Refuse new calls, and drop all of it as soon as no living replica runs a call of it."""
        if not sql.rows(
            "SELECT client_id FROM @.clients WHERE client_id = %s FOR UPDATE SKIP LOCKED", client_id
        ):
            return False
        client = lock_client(sql, client_id)
        (now,) = sql.rows(f"SELECT {self._now}")[0]
        if client is None or client.due is None or client.due > now:
            return False
        living = replicas(sql)
        owners = sql.rows(
            "SELECT DISTINCT owner FROM @.calls WHERE client_id = %s AND record IS NULL", client_id
        )
        if any(bytes(owner).decode() in living for (owner,) in owners):
            state = {"open": "over", "session": "closed"}.get(client.state, client.state)
            sql.run(
                "UPDATE @.clients SET state = %s, due = %s WHERE client_id = %s",
                *(state.encode(), now + _BUSY_S, client_id),
            )
            return False
        drop_client(sql, client_id)
        if client.state in ("open", "over"):
            return True
        where = "WHERE client_id = %s AND state = %s"
        if client.full_term_s is not None:
            # No call was made in it: its name goes, too.
            sql.run(f"DELETE FROM @.sessions {where}", client_id, b"open")
            return True
        sql.run(
            f"UPDATE @.sessions SET state = %s, changed_at = %s {where}",
            *(b"expired", unix_s, client_id, b"open"),
        )
        if sql.rows("SELECT client_id FROM @.sessions WHERE client_id = %s", client_id):
            insert_client(sql, client_id, "closed", client.term_s, "NULL", None)
        return True

    def known_clients(self) -> list[int]:
        """Ids with a row; left out are sessions that ended and have it only to be refused by."""
        rows = self._rows("SELECT client_id FROM @.clients WHERE due IS NOT NULL")
        return [client_id for (client_id,) in rows]

    def count(self) -> None:
        """Count the rows; above ten thousand the database's estimate does."""
        self.held = self._transact(lambda sql: _count(sql, _COUNTED))

    def drop_client(self, client_id: int) -> None:
        """Remove a client's row and records now, also if a call of it runs."""

        def dropping(sql: SqlSession) -> None:
            lock_client(sql, client_id)
            drop_client(sql, client_id)

        self._transact(dropping)

    def is_foreign(self, client_id: int) -> bool:
        """Never: ids outlive every process."""
        return False

    # -- ids and secrets ------------------------------------------------------------------

    def store_id(self) -> int:
        """Of the store's own random id."""
        return short_store_id(f"sql:{self._backend.store_id}")

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ids above all earlier ones; first and last."""
        if count < 1:
            raise ValueError("a block holds at least one id")

        def reserving(sql: SqlSession) -> int:
            (value,) = sql.rows("SELECT value FROM @.meta WHERE name = %s FOR UPDATE", b"ids")[0]
            last = int(bytes(value)) + count
            sql.run("UPDATE @.meta SET value = %s WHERE name = %s", b"%d" % last, b"ids")
            return last

        last = self._transact(reserving)
        return last - count + 1, last

    def secrets(self) -> list[Secret]:
        """The secrets, newest first; the first call ever makes one."""
        return self._secrets(rotate=False)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        return self._secrets(rotate=True)

    def _secrets(self, *, rotate: bool) -> list[Secret]:
        fresh = randomness.token_bytes(SECRET_BYTES)

        def working(sql: SqlSession) -> list[tuple[Any, ...]]:
            newest = "SELECT position, key_id, value FROM @.secrets ORDER BY position DESC LIMIT 2"
            rows = list(sql.rows(newest))
            if rows and not rotate:
                return rows
            lock_mutex(sql, b"secrets")
            rows = list(sql.rows(newest))
            # Once: repeated since its reply was lost, it must not push out the other one.
            if not rows or (rotate and all(bytes(row[2]) != fresh for row in rows)):
                position, key_id = (rows[0][0] + 1, rows[0][1] + 1) if rows else (1, 0)
                sql.run(
                    "INSERT INTO @.secrets VALUES (%s, %s, %s)", position, key_id % 65536, fresh
                )
                sql.run("DELETE FROM @.secrets WHERE position < %s", position - 1)
            return list(sql.rows(newest))

        return [Secret(row[1], bytes(row[2])) for row in self._transact(working)]

    # -- sessions -------------------------------------------------------------------------

    def open_session(
        self,
        row: SessionRow,
        policy: SessionPolicy,
        older: Sequence[bytes] = (),
        *,
        unused_s: float = math.inf,
    ) -> SessionRow:
        """Insert the session with its client row, or return the row that stands."""
        found = self._transact(lambda sql: self._open(sql, row, policy, older, unused_s))
        if found is None:
            raise TooManySessions("too many named sessions; close some")
        return found

    def _open(
        self,
        sql: SqlSession,
        row: SessionRow,
        policy: SessionPolicy,
        older: Sequence[bytes],
        unused_s: float,
    ) -> SessionRow | None:
        lock_mutex(sql, b"sessions")
        _require_owner(sql, row.peer, row.name, row.secret, older)
        known = _find(sql, row)
        if known is None:
            higher = _higher_ended(sql, row.peer, row.name)
            if higher is not None:
                # Its series is closed up to a higher number.
                return replace(higher, state=SessionState.EXPIRED)
            if not _has_room(sql, row, policy):
                return None
            _insert(sql, row)
            unused = float(min(unused_s, row.retention_s))
            due = f"{self._now} + {unused * RENEWED!r}"
            insert_client(sql, row.client_id, "session", unused, due, float(row.retention_s))
            return _by_id(sql, row.client_id)
        if known.state is not SessionState.OPEN:
            return known
        if row.retention_s > known.retention_s:
            self._extend(sql, known.client_id, float(row.retention_s))
        standing = self._renew(sql, known.client_id)
        found = _by_id(sql, known.client_id)
        if standing is not Standing.SESSION:
            # Its retention ended, and a call of it still runs.
            return replace(found, state=SessionState.EXPIRED)
        return found

    def _extend(self, sql: SqlSession, client_id: int, retention_s: float) -> None:
        sql.run(
            "UPDATE @.sessions SET retention_s = %s WHERE client_id = %s", retention_s, client_id
        )
        client = lock_client(sql, client_id)
        if client is None or client.state != "session":
            return
        if client.full_term_s is not None:
            sql.run(
                "UPDATE @.clients SET full_term_s = %s WHERE client_id = %s", retention_s, client_id
            )
        else:
            sql.run(
                f"UPDATE @.clients SET term_s = %s, due = {self._now} + %s WHERE client_id = %s",
                *(retention_s, RENEWED * retention_s, client_id),
            )

    def write_session(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows``."""

        def writing(sql: SqlSession) -> bytes | None:
            client = lock_client(sql, client_id)
            if client is None or client.state != "session":
                return None
            if client.writer == follows != writer:
                sql.run("UPDATE @.clients SET writer = %s WHERE client_id = %s", writer, client_id)
                return writer
            return client.writer

        found = self._transact(writing)
        if found is None:
            raise SessionClosed("the session is closed or past its retention")
        return found

    def close_session(
        self,
        name: str,
        peer: bytes,
        unix_s: float,
        secret: bytes = b"",
        older: Sequence[bytes] = (),
    ) -> tuple[SessionRow, bool]:
        """Close for good, a numbered session with all below it, names and client rows at once."""

        def closing(sql: SqlSession) -> tuple[SessionRow, bool] | None:
            # Against openers of lower numbers.
            lock_mutex(sql, b"sessions")
            _require_owner(sql, peer, name, secret, older)
            return _close(sql, name, peer, unix_s)

        closed = self._transact(closing)
        if closed is None:
            raise SessionClosed(f"no session {name!r} is known here")
        return closed

    def load_sessions(self) -> list[SessionRow]:
        """Every session row."""
        return [_session(row) for row in self._rows(f"SELECT {_SESSION} FROM @.sessions")]

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert or update a session; the row that stands."""

        def putting(sql: SqlSession) -> SessionRow:
            lock_mutex(sql, b"sessions")
            known = _find(sql, row)
            if known is None:
                _insert(sql, row)
                return _by_id(sql, row.client_id)
            if known.client_id == row.client_id and known.state is SessionState.OPEN:
                sql.run(
                    "UPDATE @.sessions SET state = %s, retention_s = %s, changed_at = %s "
                    "WHERE client_id = %s",
                    *(row.state.value.encode(), float(row.retention_s)),
                    *(float(row.changed_at_unix_s), row.client_id),
                )
            return _by_id(sql, known.client_id)

        return self._transact(putting)

    def forget_session(self, client_id: int) -> None:
        """Delete a session's row, and what is left of it; its name may be opened anew."""

        def forgetting(sql: SqlSession) -> None:
            lock_client(sql, client_id)
            drop_client(sql, client_id)
            sql.run("DELETE FROM @.sessions WHERE client_id = %s", client_id)

        self._transact(forgetting)

    def _forgettable(self, unix_s: float, refuse_for_s: float) -> list[int]:
        """Return sessions that ended and need no row any more.

        They were refused for long enough and are not the end of a series that is in use; or they
        are below the end of theirs, for ``SUPERSEDED_S``.
        """
        higher = (
            "EXISTS (SELECT 1 FROM @.sessions AS higher "
            "WHERE higher.series_hash = mine.series_hash AND higher.number > mine.number{})"
        )
        rows = self._rows(
            "SELECT client_id FROM @.sessions AS mine WHERE state <> %s AND ("
            f"(changed_at <= %s AND NOT {higher.format('')}) OR "
            f"(changed_at <= %s AND {higher.format(' AND higher.state <> %s')})) "
            f"LIMIT {_SWEPT_AT_ONCE}",
            *(b"open", float(unix_s - refuse_for_s)),
            *(float(unix_s - min(refuse_for_s, SUPERSEDED_S)), b"open"),
        )
        return [client_id for (client_id,) in rows]

    # -------------------------------------------------------------------------------------

    def _rows(self, statement: str, *arguments: Any) -> Any:
        return self._transact(lambda sql: sql.rows(statement, *arguments))

    def _transact(self, work: Callable[[SqlSession], _T]) -> _T:
        try:
            return self._backend.transact(work)
        except BackendError as error:
            raise StorageUnavailable(f"the store cannot be used: {error}") from error


def _count(sql: SqlSession, most: int) -> int:
    """Return how many clients have a row: above so many, about."""
    (counted,) = sql.rows(
        "SELECT COUNT(*) FROM (SELECT client_id FROM @.clients WHERE client_id > 0 "
        f"LIMIT {most}) AS counted"
    )[0]
    if counted < most:
        return int(counted)
    return max(int(counted), sql.dialect.about(sql.connection, "clients"))


def _standing(state: Any) -> Standing:
    return _STANDING.get(bytes(state).decode(), Standing.UNKNOWN)


def _session(row: tuple[Any, ...]) -> SessionRow:
    client_id, name, peer, state, retention_s, changed_at, secret, source = row
    return SessionRow(
        client_id,
        bytes(name).decode(),
        bytes(peer),
        SessionState(bytes(state).decode()),
        retention_s,
        changed_at,
        bytes(secret),
        bytes(source).decode(),
    )


def _hash(peer: bytes, text: str) -> bytes:
    return sha256(b"%d:%s%s" % (len(peer), peer, text.encode())).digest()


def _series(peer: bytes, name: str) -> tuple[bytes | None, int | None]:
    found = numbered(name)
    return (None, None) if found is None else (_hash(peer, found[0]), found[1])


def _find(sql: SqlSession, row: SessionRow) -> SessionRow | None:
    """Return the session of that name, else that of that id."""
    for where, value in (("name_hash", _hash(row.peer, row.name)), ("client_id", row.client_id)):
        found = sql.row(f"SELECT {_SESSION} FROM @.sessions WHERE {where} = %s", value)
        if found is not None:
            return _session(found)
    return None


def _by_id(sql: SqlSession, client_id: int) -> SessionRow:
    found = sql.row(f"SELECT {_SESSION} FROM @.sessions WHERE client_id = %s", client_id)
    if found is None:
        raise StorageUnavailable("the session was forgotten meanwhile; open it again")
    return _session(found)


def _insert(sql: SqlSession, row: SessionRow) -> None:
    sql.run(
        "INSERT INTO @.sessions VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        *(row.client_id, _hash(row.peer, row.name), row.peer, row.name.encode()),
        *(row.state.value.encode(), float(row.retention_s), float(row.changed_at_unix_s)),
        *(row.secret, row.source.encode(), *_series(row.peer, row.name)),
    )


def _higher_ended(sql: SqlSession, peer: bytes, name: str) -> SessionRow | None:
    """Return an ended session of a higher number of the same series."""
    series, number = _series(peer, name)
    if series is None:
        return None
    found = sql.row(
        f"SELECT {_SESSION} FROM @.sessions WHERE series_hash = %s AND number > %s "
        "AND state <> %s LIMIT 1",
        *(series, number, b"open"),
    )
    return None if found is None else _session(found)


def _require_owner(
    sql: SqlSession, peer: bytes, name: str, secret: bytes, older: Sequence[bytes]
) -> None:
    """Raise unless a secret, or the lack of one, opens a name and the series that it is in.

    Closing a number closes others, so all sessions of a series have the same: ``secret`` from
    now on, if an older one opens them. A name that was never seen is anybody's.
    """
    series, _ = _series(peer, name)
    where, value = ("series_hash", series) if series else ("name_hash", _hash(peer, name))
    found = sql.row(f"SELECT secret FROM @.sessions WHERE {where} = %s LIMIT 1", value)
    if found is None or bytes(found[0]) == secret:
        return
    if bytes(found[0]) not in older:
        raise not_yours()
    sql.run(f"UPDATE @.sessions SET secret = %s WHERE {where} = %s", secret, value)


def _has_room(sql: SqlSession, row: SessionRow, policy: SessionPolicy) -> bool:
    def held(where: str, *given: Any) -> tuple[int, int]:
        names, opened = sql.rows(
            "SELECT COUNT(*), COUNT(CASE WHEN state = %s THEN 1 END) FROM @.sessions" + where,
            *(b"open", *given),
        )[0]
        return names, opened

    bounds = [
        (held(""), (policy.max_names, policy.max_open)),
        (held(" WHERE peer = %s", row.peer), (policy.max_names_per_peer, policy.max_open_per_peer)),
    ]
    if row.source:
        source = held(" WHERE source = %s", row.source.encode())
        bounds.append((source, (policy.names_from, policy.open_from)))
    return all(
        have < most for found, limits in bounds for have, most in zip(found, limits, strict=True)
    )


def _close(
    sql: SqlSession, name: str, peer: bytes, unix_s: float
) -> tuple[SessionRow, bool] | None:
    """Close a session; None if it is not known, and no higher one of its series ended."""
    found = sql.row(f"SELECT {_SESSION} FROM @.sessions WHERE name_hash = %s", _hash(peer, name))
    if found is None:
        higher = _higher_ended(sql, peer, name)
        return None if higher is None else (higher, False)
    mine = _session(found)
    series, number = _series(peer, name)
    which: list[int] = [mine.client_id] if mine.state is SessionState.OPEN else []
    if series is not None:
        lower = sql.rows(
            "SELECT client_id FROM @.sessions "
            "WHERE series_hash = %s AND number < %s AND state = %s",
            *(series, number, b"open"),
        )
        which += [client_id for (client_id,) in lower]
    for client_id in which:
        sql.run(
            "UPDATE @.sessions SET state = %s, changed_at = %s WHERE client_id = %s",
            *(b"closed", float(unix_s), client_id),
        )
        sql.run(
            "UPDATE @.clients SET state = %s, due = 0, full_term_s = NULL WHERE client_id = %s",
            *(b"closed", client_id),
        )
    return _by_id(sql, mine.client_id), mine.state is SessionState.OPEN
