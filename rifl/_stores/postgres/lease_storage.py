"""The lease server's storage in PostgreSQL (DESIGN §5)."""

from __future__ import annotations

import math
import secrets as randomness
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from _rifl_ground.forks import refuse_in_children
from lease_server._errors import StorageUnavailable, TooManySessions
from lease_server._forked import leases_forked
from lease_server._holders import LeaseBounds, Room
from lease_server._series import SUPERSEDED_S
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
from rifl._stores.postgres.backend import PostgresBackend
from rifl._stores.postgres.opening import open_backend
from rifl._stores.postgres.request_statements import acknowledged_of
from rifl._stores.postgres.store_address import store_address
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.lease_watch import LeaseWatch
from rifl.core._shared.errors import SessionClosed

_SWEPT_AT_ONCE = 200
# Below it, clients are counted; above, the planner's estimate does.
_COUNTED = 10_000
_SESSION = "client_id, name, peer, state, retention_s, changed_at_unix_s, secret, source"


class PostgresLeaseStorage:
    """``SharedLeaseStorage`` over the functions in ``sql/leases.sql``. Any thread; blocks.

    The row of a client is its lease. A renewal is written once in a quarter of a term,
    for a term and a quarter: late is safe. A session that ended leaves its row, so that
    it is refused as closed, until its name is forgotten.
    """

    random_bits = RANDOM_BITS

    def __init__(self, backend: PostgresBackend) -> None:
        self.held = 0
        self._backend = backend
        self._watch = LeaseWatch(time.monotonic)
        refuse_in_children(self, leases_forked)

    @classmethod
    def alone(cls, url: str) -> PostgresLeaseStorage:
        """Open what a lease server without a store needs; raises a ``StoreError``."""
        return cls(open_backend(store_address(url)))

    def close(self) -> None:
        """Close the connections, of a lease server that stands alone."""
        self._backend.close()

    # -- leases ---------------------------------------------------------------------------

    def grant(
        self, client_id: int, term_s: float, bounds: LeaseBounds, holder: bytes = b""
    ) -> Room:
        """Make the id known on every server. Above ten thousand the bound is approximate."""
        return Room(
            self._one(
                "SELECT @.grant_1(%s::int8, %s, %s::int8, %s::int8, %s::bytea, %s::int8)",
                client_id,
                float(term_s),
                bounds.of_all,
                _COUNTED,
                holder,
                bounds.of_one,
            )
        )

    def renew(self, client_id: int, acknowledged: Acknowledgements = NOTHING) -> Standing:
        """Give the lease, or the session's retention, its full length again."""
        return Standing(
            self._one(
                "SELECT @.renew_1(%s::int8, %s::int8, %s::int8multirange)",
                client_id,
                acknowledged.first_incomplete,
                acknowledged_of(acknowledged),
            )
        )

    def release(self, client_id: int) -> None:
        """Have the lease end at the next sweep."""
        self._rows(
            "UPDATE @.clients SET due = '-infinity' WHERE client_id = %s AND due IS NOT NULL "
            "RETURNING client_id",
            client_id,
        )

    def sweep(self, term_s: float, refuse_for_s: float, unix_s: float) -> int:
        """End what is due; see ``SharedLeaseStorage``."""
        try:
            run = self._one("SELECT pg_postmaster_start_time()::text")
            watched = self._watch.saw(str(run).encode(), term_s)
            limit = "clock_timestamp()" if watched else "'-infinity'::timestamptz"
            due = self._rows(
                f"SELECT client_id FROM @.clients WHERE due <= {limit} "
                f"ORDER BY due LIMIT {_SWEPT_AT_ONCE}"
            )
            dropped = 0
            for (client_id,) in due:
                what = self._one("SELECT @.retire_1(%s::int8, %s)", client_id, float(unix_s))
                dropped += what == "dropped"
            for (client_id,) in self._rows(
                "SELECT * FROM @.forgettable_1(%s, %s, %s, %s::int8)",
                float(unix_s),
                float(refuse_for_s),
                min(float(refuse_for_s), SUPERSEDED_S),
                _SWEPT_AT_ONCE,
            ):
                self.forget_session(client_id)
            return dropped
        except StorageUnavailable:
            self._watch.lost()
            raise

    def known_clients(self) -> list[int]:
        """Ids with a row; left out are sessions that ended and have it only to be refused by."""
        rows = self._rows("SELECT client_id FROM @.clients WHERE due IS NOT NULL")
        return [client_id for (client_id,) in rows]

    def count(self) -> None:
        """Count the rows; above ten thousand the planner's estimate does."""
        self.held = self._one(
            "SELECT CASE WHEN n < %s THEN n ELSE greatest(n, (SELECT reltuples::int8 FROM pg_class "
            "WHERE oid = '@.clients'::regclass)) END FROM (SELECT count(*) AS n FROM "
            "(SELECT FROM @.clients WHERE client_id > 0 LIMIT %s) AS those) AS counted",
            _COUNTED,
            _COUNTED,
        )

    def drop_client(self, client_id: int) -> None:
        """Remove a client's row and records now, also if a call of it runs."""
        self._rows("SELECT @.drop_1(%s::int8)", client_id)

    def is_foreign(self, client_id: int) -> bool:
        """Never: ids outlive every process."""
        return False

    # -- ids and secrets ------------------------------------------------------------------

    def store_id(self) -> int:
        """Of the store's own random id."""
        return short_store_id(f"postgresql:{self._backend.store_id}")

    def reserve_ids(self, count: int) -> tuple[int, int]:
        """Reserve ids above all earlier ones; first and last.

        A row and no sequence, whose numbers may come back after a crash.
        """
        if count < 1:
            raise ValueError("a block holds at least one id")
        last = self._one(
            "UPDATE @.meta SET value = (value::int8 + %s)::text WHERE name = 'ids' "
            "RETURNING value::int8",
            count,
        )
        return last - count + 1, last

    def secrets(self) -> list[Secret]:
        """The secrets, newest first; the first call ever makes one."""
        return self._secrets(rotate=False)

    def rotate_secret(self) -> list[Secret]:
        """Add a secret and forget all but the newest two."""
        return self._secrets(rotate=True)

    def _secrets(self, *, rotate: bool) -> list[Secret]:
        fresh = randomness.token_bytes(SECRET_BYTES)
        rows = self._rows("SELECT * FROM @.secrets_1(%s::bytea, %s)", fresh, rotate)
        return [Secret(key_id, value) for key_id, value in rows]

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
        return self._put(row, policy, older, unused_s)

    def write_session(self, client_id: int, writer: bytes, follows: bytes) -> bytes:
        """Have a session take a writer's calls alone, if it takes those of ``follows``."""
        found = self._one(
            "SELECT @.write_session_1(%s::int8, %s::bytea, %s::bytea)", client_id, writer, follows
        )
        if found is None:
            raise SessionClosed("the session is closed or past its retention")
        return bytes(found)

    def close_session(
        self,
        name: str,
        peer: bytes,
        unix_s: float,
        secret: bytes = b"",
        older: Sequence[bytes] = (),
    ) -> tuple[SessionRow, bool]:
        """Close for good, a numbered session with all below it, names and client rows at once."""
        closed = self._rows(
            "SELECT * FROM @.close_session_1(%s::bytea, %s, %s, %s::bytea, %s::bytea[])",
            peer,
            name,
            float(unix_s),
            secret,
            list(older),
        )
        if closed == [(None,)]:
            raise not_yours()
        rows = self._rows(
            f"SELECT {_SESSION} FROM @.sessions WHERE peer = %s AND (name = %s OR state <> 'open' "
            "AND @.series_1(name) = @.series_1(%s) AND @.number_1(name) > @.number_1(%s)) "
            "ORDER BY name = %s DESC LIMIT 1",
            peer,
            name,
            name,
            name,
            name,
        )
        if not rows:
            raise SessionClosed(f"no session {name!r} is known here")
        row = _session(rows[0])
        return row, (row.client_id,) in closed

    def load_sessions(self) -> list[SessionRow]:
        """Every session row."""
        return [_session(row) for row in self._rows(f"SELECT {_SESSION} FROM @.sessions")]

    def put_session(self, row: SessionRow) -> SessionRow:
        """Insert or update a session; the row that stands."""
        return self._put(row, None)

    def forget_session(self, client_id: int) -> None:
        """Delete a session's row, and what is left of it; its name may be opened anew."""
        self._rows(
            "WITH forgotten AS (DELETE FROM @.sessions WHERE client_id = %s) "
            "SELECT @.drop_1(%s::int8)",
            client_id,
            client_id,
        )

    def _put(
        self,
        row: SessionRow,
        policy: SessionPolicy | None,
        older: Sequence[bytes] = (),
        unused_s: float = math.inf,
    ) -> SessionRow:
        result, standing = self._rows(
            "SELECT * FROM @.put_session_1(%s::int8, %s::bytea, %s, %s, %s, %s, %s, "
            "%s::int8, %s::int8, %s::int8, %s::int8, %s::bytea, %s, %s, %s::int8, %s::int8, "
            "%s::bytea[])",
            row.client_id,
            row.peer,
            row.name,
            row.state.value,
            float(row.retention_s),
            float(row.changed_at_unix_s),
            policy is not None,
            policy.max_names if policy else 0,
            policy.max_open_per_peer if policy else 0,
            policy.max_open if policy else 0,
            policy.max_names_per_peer if policy else 0,
            row.secret,
            float(min(unused_s, row.retention_s)),
            row.source,
            policy.open_from if policy else 0,
            policy.names_from if policy else 0,
            list(older),
        )[0]
        if result == "not-yours":
            raise not_yours()
        if result == "full":
            raise TooManySessions("too many named sessions; close some")
        rows = self._rows(
            f"SELECT {_SESSION} FROM @.sessions WHERE client_id = %s",
            standing,
        )
        if not rows:
            raise StorageUnavailable("the session was forgotten meanwhile; open it again")
        found = _session(rows[0])
        if result == "over":
            return replace(found, state=SessionState.EXPIRED)
        return found

    # -------------------------------------------------------------------------------------

    def _rows(self, statement: str, *arguments: Any) -> list[Any]:
        text = statement.replace("@.", f"{self._backend.schema}.")
        try:
            return self._backend.rows(text.encode(), arguments)
        except BackendError as error:
            raise StorageUnavailable(f"the store cannot be used: {error}") from error

    def _one(self, statement: str, *arguments: Any) -> Any:
        return self._rows(statement, *arguments)[0][0]


def _session(row: tuple[Any, ...]) -> SessionRow:
    client_id, name, peer, state, retention_s, changed_at_unix_s, secret, source = row
    return SessionRow(
        client_id,
        name,
        bytes(peer),
        SessionState(state),
        retention_s,
        changed_at_unix_s,
        bytes(secret),
        source,
    )
