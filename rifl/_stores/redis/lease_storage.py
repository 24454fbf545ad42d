"""The lease server's storage in Redis: ids, secrets and the sweep, over its rows (DESIGN §5)."""

from __future__ import annotations

import base64
import json
import math
import secrets as randomness
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import redis

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from lease_server._errors import StorageUnavailable, TooManySessions
from lease_server._forked import leases_forked
from lease_server._holders import LeaseBounds, Room
from lease_server._series import SUPERSEDED_S, numbered
from lease_server._session_secret import not_yours, require_owner
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import (
    NOTHING,
    RANDOM_BITS,
    Acknowledgements,
    Standing,
    short_store_id,
)
from lease_server._tokens import SECRET_BYTES, Secret
from rifl._stores.redis.backend import RedisBackend
from rifl._stores.redis.opening import open_backend
from rifl._stores.redis.script_calls import acknowledged_of
from rifl._stores.redis.scripts import LEASE, LEASES, SESSION
from rifl._stores.redis.store_address import RedisStoreAddress
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.lease_watch import LeaseWatch
from rifl.core._shared.errors import NotYours, SessionClosed

_log = get_logger("lease_server")
_SWEPT_AT_ONCE = 200
# How long a refused name waits for its next look, and one whose calls still run.
_BUSY_MS = 1000


class RedisLeaseStorage:
    """``SharedLeaseStorage`` over scripts. Any thread; every method blocks.

    The row of a client is its lease; the ``due`` index only says whom to look at:
    an entry is never later than its row says, and a row never without an entry.
    A session is a client's, too: one that ended leaves its row, so that it is refused
    as closed, until its name is forgotten.
    """

    random_bits = RANDOM_BITS

    def __init__(self, backend: RedisBackend) -> None:
        self.held = 0
        self._backend = backend
        self._watch = LeaseWatch(time.monotonic)
        refuse_in_children(self, leases_forked)

    @classmethod
    def alone(cls, url: str) -> RedisLeaseStorage:
        """Open what a lease server without a store needs; raises a ``StoreError``."""
        return cls(open_backend(RedisStoreAddress.parse(url)))

    def close(self) -> None:
        """Close the connections, of a lease server that stands alone."""
        self._backend.close()

    # -- clients ---------------------------------------------------------------------------

    def grant(
        self, client_id: int, term_s: float, bounds: LeaseBounds, holder: bytes = b""
    ) -> Room:
        """Make the id known on every server. Index first: no row is ever overlooked."""
        length_ms = milliseconds(term_s)
        told = self._leases("index", client_id, length_ms, bounds.of_all, holder, bounds.of_one)[0]
        if told in (b"full", b"taken"):
            return Room(told.decode())
        self._lease(client_id, "grant", length_ms, b"", b"", holder)
        return Room.FREE

    def renew(self, client_id: int, acknowledged: Acknowledgements = NOTHING) -> Standing:
        """Give the lease, or the session's retention, its full length again."""
        told = acknowledged_of(acknowledged)
        return Standing(self._lease(client_id, "renew", *told)[0].decode())

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep."""
        if self._lease(client_id, "release")[0] != b"gone":
            self._leases("refile", client_id, 0)

    def known_clients(self) -> list[int]:
        """Ids with a row, ended sessions left out."""
        members = [int(member) for member in self._command("zrange", self._key("due"), 0, -1)]
        with self._backend.clients.blocking.pipeline(transaction=False) as pipe:
            for client_id in members:
                pipe.hmget(self._backend.base(client_id) + "client", "store", "state", "due")
            rows = self._checked(pipe.execute)
        # A closed session that is swept has its row only to be refused by.
        return [
            client_id
            for client_id, (store, state, due) in zip(members, rows, strict=True)
            if store is not None and not (state == b"closed" and due is None)
        ]

    def count(self) -> None:
        """Count who is in the index: as expensive as asking for one number."""
        self.held = int(self._command("zcard", self._key("due")))

    def drop_client(self, client_id: int) -> None:
        """Remove a client's row and records now, also if a call of it runs."""
        self._lease(client_id, "release")
        self._lease(client_id, "retire", 0)
        self._leases("unfile", client_id)

    # -- named sessions ----------------------------------------------------------------------

    def open_session(
        self,
        row: SessionRow,
        policy: SessionPolicy,
        older: Sequence[bytes] = (),
        *,
        unused_s: float = math.inf,
    ) -> SessionRow:
        """Insert the session, or the row that stands; its client row comes first."""
        shown = _shown(row.secret, older)
        self._require_owner(_field(row.name, row.peer), shown)
        standing = self._find(row.name, row.peer)
        if standing is None:
            unused_ms = milliseconds(min(unused_s, row.retention_s))
            self._leases("index", row.client_id, unused_ms, 2**53, b"", 0)
            self._lease(
                row.client_id,
                "grant",
                milliseconds(row.retention_s),
                _field(row.name, row.peer),
                unused_ms,
                b"",
            )
            try:
                standing = self._put(row, policy, shown)
            except (TooManySessions, SessionClosed, NotYours):
                self.drop_client(row.client_id)
                raise
            if standing.client_id == row.client_id:
                return standing
            self.drop_client(row.client_id)
        if standing.state is not SessionState.OPEN:
            return standing
        if numbered(row.name) and self._place(standing) == b"below":
            return replace(standing, state=SessionState.CLOSED)
        if self.renew(standing.client_id) is not Standing.SESSION:
            # Its retention ended, and the sweep that found so has yet to say it here.
            return replace(standing, state=SessionState.EXPIRED)
        if row.retention_s > standing.retention_s:
            longer = replace(standing, retention_s=row.retention_s)
            standing = self._put(longer, policy, shown)
            length_ms = milliseconds(standing.retention_s)
            field = _field(standing.name, standing.peer)
            self._lease(standing.client_id, "grant", length_ms, field, b"", b"")
        return standing

    def write_session(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows``."""
        told = self._lease(client_id, "write", writer, follows)
        if told[0] == b"gone":
            raise SessionClosed("the session is closed or past its retention")
        found: bytes = told[1]
        return found

    def close_session(
        self,
        name: str,
        peer: bytes,
        unix_s: float,
        secret: bytes = b"",
        older: Sequence[bytes] = (),
    ) -> tuple[SessionRow, bool]:
        """Close for good, a numbered session with all below it; after a crash it must be repeated.

        The end of a series first, so that no client opens a lower number meanwhile.
        """
        shown = _shown(secret, older)
        self._require_owner(_field(name, peer), shown)
        row = self._find(name, peer)
        if row is not None:
            # Another process may have taken the name meanwhile.
            require_owner(row.secret, secret, older)
        if numbered(name):
            self._end_below(name, peer, unix_s, shown)
            if row is None:
                # Forgotten, since a higher number ended.
                return SessionRow(0, name, peer, SessionState.CLOSED, 0.0, unix_s), False
        if row is None:
            raise SessionClosed(f"no session {name!r} is known here")
        was_open = row.state is SessionState.OPEN
        return self._end(row, unix_s), was_open

    def close_all(self, unix_s: float) -> None:
        """Close every session that is open."""
        for row in self.load_sessions():
            self._end(row, unix_s)

    def _require_owner(self, field: bytes, shown: str) -> None:
        if self._leases("opens", field, shown)[0] != b"ok":
            raise not_yours()

    def _end_below(self, name: str, peer: bytes, unix_s: float, shown: str) -> None:
        ended: bytes | None = None
        while True:
            reply = self._leases("end", _field(name, peer), shown)
            if reply[0] == b"not-yours":
                raise not_yours()
            if reply[0] == b"unknown":
                raise SessionClosed(f"no session {name!r} is known here")
            ended = reply[1] if ended is None else ended
            if not reply[2:]:
                break
            for client_id in reply[2:]:
                field = self._command("hget", self._key("session-ids"), client_id)
                value = field and self._command("hget", self._key("sessions"), field)
                if value:
                    self._end(read_session(field, value), unix_s)
        if ended:
            # Its name needs to be kept no longer than until its records are dropped.
            self._leases("refile", ended, 0)

    def _end(self, row: SessionRow, unix_s: float) -> SessionRow:
        # Its calls first: a name that is closed may be taken for closed.
        if row.state is SessionState.OPEN:
            self._lease(row.client_id, "close")
            self._leases("refile", row.client_id, 0)
            row = self.put_session(
                replace(row, state=SessionState.CLOSED, changed_at_unix_s=unix_s)
            )
        return row

    def _place(self, row: SessionRow) -> bytes:
        place: bytes = self._leases("place", _field(row.name, row.peer), row.client_id)[0]
        return place

    def load_sessions(self) -> list[SessionRow]:
        """Every session row."""
        rows = self._command("hgetall", self._key("sessions"))
        owners = self._command("hgetall", self._key("owners"))
        sources = self._command("hgetall", self._key("sources"))
        return [
            read_session(
                field,
                value,
                _owner(field, owners),
                sources.get(value.partition(b"|")[0], b""),
            )
            for field, value in rows.items()
        ]

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert or update a session; the row that stands."""
        return self._put(row, SessionPolicy())

    def forget_session(self, client_id: int) -> None:
        """Delete a session's row; its name may be opened anew."""
        self.drop_client(client_id)
        self._leases("forget", client_id)
        self._command("delete", self._backend.base(client_id) + "client")

    def _put(self, row: SessionRow, policy: SessionPolicy, shown: str | None = None) -> SessionRow:
        """``shown``: the secrets of an opening, of which one has to open it."""
        reply = self._run(
            SESSION,
            None,
            _field(row.name, row.peer),
            row.client_id,
            _value(row),
            policy.max_names,
            policy.max_open_per_peer,
            row.peer.hex(),
            policy.max_open,
            policy.max_names_per_peer,
            row.secret.hex() if shown is None else shown,
            int(shown is not None),
            row.source,
            policy.open_from,
            policy.names_from,
        )
        if reply[0] == b"not-yours":
            raise not_yours()
        if reply[0] == b"ended":
            raise SessionClosed(f"session {row.name!r} is closed or past its retention")
        if reply[0] == b"full":
            raise TooManySessions("too many named sessions; close some")
        return self._read(reply[1], reply[2])

    def _find(self, name: str, peer: bytes) -> SessionRow | None:
        field = _field(name, peer)
        value = self._command("hget", self._key("sessions"), field)
        return None if value is None else self._read(field, value)

    def _read(self, field: bytes, value: bytes) -> SessionRow:
        places = _owner_places(field)
        owners = self._command("hmget", self._key("owners"), places)
        owner = _owner(field, dict(zip(places, owners, strict=True)))
        source = self._command("hget", self._key("sources"), value.partition(b"|")[0])
        return read_session(field, value, owner, source or b"")

    # -- ids and secrets ------------------------------------------------------------------

    def store_id(self) -> int:
        """Of the store's own random id."""
        return short_store_id(f"redis:{self._backend.store_id.decode()}")

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ids above all earlier ones; first and last."""
        if count < 1:
            raise ValueError("a block holds at least one id")
        last = int(self._leases("ids", count)[1])
        return last - count + 1, last

    def secrets(self) -> list[Secret]:
        """The secrets, newest first; the first call ever makes one."""
        return self._secrets(0)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        return self._secrets(1)

    def _secrets(self, rotate: int) -> list[Secret]:
        fresh = base64.b64encode(randomness.token_bytes(SECRET_BYTES))
        found = []
        for entry in self._leases("secrets", fresh, rotate)[1:]:
            key_id, _, value = entry.partition(b":")
            found.append(Secret(int(key_id), base64.b64decode(value)))
        return found

    def is_foreign(self, client_id: int) -> bool:
        """Never: ids outlive every process."""
        return False

    # -- sweeping -------------------------------------------------------------------------

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due; see ``SharedLeaseStorage``."""
        try:
            watched = self._watch.saw(self._server_run(), term_s)
            dropped = 0
            given_up = 0 if watched else 1
            reply = self._leases("due", _SWEPT_AT_ONCE, given_up)
            living = self._replicas()
            for member in reply[2:]:
                member_id, now_ms = int(member), int(reply[1])
                retired = self._lease(member_id, "retire", given_up, *living)
                dropped += self._retired(member_id, retired, now_ms, refuse_for_s, unix_s)
            return dropped
        except StorageUnavailable:
            self._watch.lost()
            raise

    def _retired(
        self, client_id: int, reply: list[Any], now_ms: int, refuse_for_s: float, unix_s: float
    ) -> int:
        what = reply[0]
        if what == b"alive":
            self._leases("refile", client_id, reply[1])
        elif what == b"unused":
            self.forget_session(client_id)
        elif what == b"busy":
            self._leases("refile", client_id, now_ms + _BUSY_MS)
        elif what == b"tombstone":
            field = reply[1]
            value = self._command("hget", self._key("sessions"), field)
            row = None if value is None else read_session(field, value)
            if row is None or row.client_id != client_id:
                self.forget_session(client_id)
                return 1
            if row.state is SessionState.OPEN:
                row = self.put_session(
                    replace(row, state=SessionState.EXPIRED, changed_at_unix_s=unix_s)
                )
                _log.info("session_expired", client_id=client_id, name=row.name)
            place = self._place(row) if numbered(row.name) else b"free"
            if place == b"below":
                refuse_for_s = min(refuse_for_s, SUPERSEDED_S)
            left_s = row.changed_at_unix_s + refuse_for_s - unix_s
            if left_s <= 0 and place == b"needed":
                self._leases("refile", client_id, now_ms + milliseconds(refuse_for_s))
            elif left_s <= 0:
                self.forget_session(client_id)
            else:
                # The name is refused until then, by the wall clock of the server that looks.
                self._leases("refile", client_id, now_ms + milliseconds(min(left_s, refuse_for_s)))
        else:
            self._leases("unfile", client_id)
        return int(what in (b"dropped", b"tombstone", b"unused"))

    def _server_run(self) -> bytes:
        """Return what changes when the server restarts or another takes over."""
        if self._backend.clustered:
            return b""
        info: Any = self._command("info", "server")
        return str(info.get("run_id", "")).encode()

    def _replicas(self) -> list[bytes]:
        replicas: list[bytes] = self._command("hkeys", self._key("replicas"))
        return replicas

    def _key(self, name: str) -> str:
        return self._backend.key(name)

    def _lease(self, client_id: int, *arguments: Any) -> list[Any]:
        return self._run(LEASE, client_id, *arguments)

    def _leases(self, *arguments: Any) -> list[Any]:
        return self._run(LEASES, None, *arguments)

    def _run(self, script: Any, client_id: int | None, *arguments: Any) -> list[Any]:
        try:
            return self._backend.run(script, client_id, list(arguments))
        except BackendError as error:
            raise StorageUnavailable(f"the store cannot be written: {error}") from error

    def _command(self, name: str, *arguments: Any) -> Any:
        return self._checked(getattr(self._backend.clients.blocking, name), *arguments)

    @staticmethod
    def _checked(command: Any, *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except (redis.RedisError, OSError) as error:
            raise StorageUnavailable(f"the store cannot be read: {error}") from error


def milliseconds(seconds: float) -> int:
    """Return a length of time as scripts take it, never none."""
    return max(1, int(seconds * 1000))


def _field(name: str, peer: bytes) -> bytes:
    return f"{peer.hex()}|{name}".encode()


def _shown(secret: bytes, older: Sequence[bytes]) -> str:
    return ",".join(each.hex() for each in (secret, *older))


def _owner_places(field: bytes) -> list[bytes]:
    """Return where it is kept what opens a session: its series' comes first."""
    places = [b"n" + field]
    if numbered(field.partition(b"|")[2].decode()) is not None:
        places.insert(0, b"s" + field.rpartition(b"#")[0])
    return places


def _owner(field: bytes, owners: Mapping[bytes, bytes | None]) -> bytes:
    return next((found for each in _owner_places(field) if (found := owners.get(each))), b"")


def _value(row: SessionRow) -> str:
    rest = json.dumps([row.retention_s, row.changed_at_unix_s])
    return f"{row.client_id}|{row.state.value}|{rest}"


def read_session(field: bytes, value: bytes, owner: bytes = b"", source: bytes = b"") -> SessionRow:
    """Return a session as its field of the store's hash tells it, who owns it, and from where."""
    peer, _, name = field.decode().partition("|")
    client_id, state, rest = value.decode().split("|", 2)
    retention_s, changed_at_unix_s = json.loads(rest)
    return SessionRow(
        int(client_id),
        name,
        bytes.fromhex(peer),
        SessionState(state),
        retention_s,
        changed_at_unix_s,
        bytes.fromhex(owner.decode()),
        source.decode(),
    )
