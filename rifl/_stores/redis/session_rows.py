"""Named sessions in Redis: their rows beside those of their clients (DESIGN §5)."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from lease_server._errors import NotYours, SessionClosed, TooManySessions
from lease_server._series import numbered
from lease_server._session_secret import not_yours, require_owner
from lease_server._sessions import SessionPolicy, SessionRow, SessionState
from lease_server._storage import Standing
from rifl._stores.redis.lease_rows import LeaseRows, milliseconds
from rifl._stores.redis.scripts import SESSION


class SessionRows(LeaseRows):
    """The sessions of a store, of which each is a client's, too.

    A session that ended leaves its row, so that it is refused as closed, until its
    name is forgotten.
    """

    def open_session(
        self, row: SessionRow, policy: SessionPolicy, *, unused_s: float = math.inf
    ) -> SessionRow:
        """Insert the session, or the row that stands; its client row comes first."""
        if self._leases("opens", _field(row), row.secret.hex())[0] != b"ok":
            raise not_yours()
        standing = self._find(row.name, row.peer)
        if standing is None:
            unused_ms = milliseconds(min(unused_s, row.retention_s))
            self._leases("index", row.client_id, unused_ms, 2**53)
            self._lease(
                row.client_id, "grant", milliseconds(row.retention_s), _field(row), unused_ms
            )
            try:
                standing = self._put(row, policy, opening=True)
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
            standing = self._put(longer, policy, opening=True)
            length_ms = milliseconds(standing.retention_s)
            self._lease(standing.client_id, "grant", length_ms, _field(standing), b"")
        return standing

    def close_session(
        self, name: str, peer: bytes, unix_s: float, secret: bytes = b""
    ) -> tuple[SessionRow, bool]:
        """Close for ever, a numbered session with all below it; a crash leaves it to be repeated.

        The end of a series first, so that nobody opens a lower number meanwhile.
        """
        row = self._find(name, peer)
        if row is not None:
            require_owner(row.secret, secret)
        if numbered(name):
            self._end_below(name, peer, unix_s, secret.hex())
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

    def _end_below(self, name: str, peer: bytes, unix_s: float, secret: str) -> None:
        ended: bytes | None = None
        while True:
            reply = self._leases("end", f"{peer.hex()}|{name}", secret)
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
        place: bytes = self._leases("place", _field(row), row.client_id)[0]
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
                owners.get(b"n" + field, b""),
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

    def _put(self, row: SessionRow, policy: SessionPolicy, *, opening: bool = False) -> SessionRow:
        reply = self._run(
            SESSION,
            None,
            _field(row),
            row.client_id,
            _value(row),
            policy.max_names,
            policy.max_open_per_peer,
            row.peer.hex(),
            policy.max_open,
            policy.max_names_per_peer,
            row.secret.hex(),
            int(opening),
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
        field = f"{peer.hex()}|{name}".encode()
        value = self._command("hget", self._key("sessions"), field)
        return None if value is None else self._read(field, value)

    def _read(self, field: bytes, value: bytes) -> SessionRow:
        owner = self._command("hget", self._key("owners"), b"n" + field)
        source = self._command("hget", self._key("sources"), value.partition(b"|")[0])
        return read_session(field, value, owner or b"", source or b"")


def _field(row: SessionRow) -> bytes:
    return f"{row.peer.hex()}|{row.name}".encode()


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
