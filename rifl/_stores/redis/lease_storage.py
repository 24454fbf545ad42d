"""The lease server's storage in Redis: ids, secrets and the sweep, over its rows (DESIGN §5)."""

from __future__ import annotations

import base64
import secrets as randomness
import time
from dataclasses import replace
from typing import Any

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from lease_server._errors import StorageUnavailable
from lease_server._forked import leases_forked
from lease_server._series import SUPERSEDED_S, numbered
from lease_server._sessions import SessionState
from lease_server._storage import RANDOM_BITS, short_store_id
from lease_server._tokens import SECRET_BYTES, Secret
from rifl._stores.redis.backend import RedisBackend
from rifl._stores.redis.lease_rows import milliseconds
from rifl._stores.redis.opening import open_backend
from rifl._stores.redis.session_rows import SessionRows, read_session
from rifl._stores.redis.store_address import RedisStoreAddress
from rifl._stores.shared.lease_watch import LeaseWatch

_log = get_logger("lease_server")
_SWEPT_AT_ONCE = 200
# How long a refused name waits for its next look, and one whose calls still run.
_BUSY_MS = 1000


class RedisLeaseStorage(SessionRows):
    """``SharedLeaseStorage`` over scripts. Any thread; every method blocks."""

    random_bits = RANDOM_BITS

    def __init__(self, backend: RedisBackend) -> None:
        super().__init__(backend)
        self._watch = LeaseWatch(time.monotonic)
        refuse_in_children(self, leases_forked)

    @classmethod
    def alone(cls, url: str) -> RedisLeaseStorage:
        """Open what a lease server without a store needs; raises a ``StoreError``."""
        return cls(open_backend(RedisStoreAddress.parse(url)))

    def close(self) -> None:
        """Close the connections, of a lease server that stands alone."""
        self._backend.close()

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
                # The name is refused until then, by the wall clock of whoever looks.
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
