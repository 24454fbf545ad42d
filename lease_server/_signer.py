"""The signer of tokens: the key ring, joined to its storage."""

from __future__ import annotations

import threading
from collections.abc import Callable

from _rifl_ground.log import UNHEARD, Events
from lease_server._errors import LeaseExpired, NotYours
from lease_server._keyring import KeyRing
from lease_server._storage import LeaseStorage
from lease_server._tokens import MAX_CLIENT_ID, make_token, peer_bound, verify

_REFRESHES_PER_TERM = 4


class Signer:
    """The key ring joined to its storage. Any thread.

    ``token``, ``fresh_token`` and ``check`` take no lock and do no I/O; the others
    block on the storage. Raises StorageUnavailable if the secrets cannot be read.
    """

    def __init__(
        self,
        storage: LeaseStorage,
        *,
        term_s: float,
        clock: Callable[[], float],
        events: Events = UNHEARD,
    ) -> None:
        """Read the secrets (blocking)."""
        self._storage = storage
        self._events = events
        self._clock = clock
        self._lock = threading.Lock()
        self._refresh_s = term_s / _REFRESHES_PER_TERM
        self._refresh_at = clock() + self._refresh_s
        self.ring = KeyRing(term_s, self._refresh_s)
        self.ring.update(storage.secrets(), clock())

    def token(self, client_id: int, peer: bytes) -> bytes:
        """A token for this id, bound to the peer unless that is empty."""
        return make_token(self.ring.signing, client_id, peer)

    def fresh_token(self, client_id: int, token: bytes, peer: bytes) -> bytes:
        """What replaces a genuine token since the secret was rotated, or b""."""
        if token[2:4] == self.ring.signing.key_id.to_bytes(2, "big"):
            # The same secret makes the same token: no need to compute it.
            return b""
        fresh = self.token(client_id, peer if peer_bound(token) else b"")
        return b"" if fresh == token else fresh

    def may_be_valid(self, token: bytes) -> bool:
        """Whether the token names a secret that is still valid; says nothing more."""
        return token[2:4] in self.ring.key_ids

    def check(self, client_id: int, token: bytes, peer: bytes) -> None:
        """Raise NotYours, or LeaseExpired for another incarnation's id, unless genuine."""
        if verify(self.ring.valid, client_id, token, peer):
            return
        if 1 <= client_id <= MAX_CLIENT_ID and self._storage.is_foreign(client_id):
            raise LeaseExpired("the server restarted since this client id was granted")
        raise NotYours("the token is not valid for this client id")

    def rotate(self) -> None:
        """Make a new secret, durably."""
        secrets = self._storage.rotate_secret()
        with self._lock:
            self.ring.update(secrets, self._clock())
        self._events.info("secret_rotated", key_id=secrets[0].key_id)

    def refresh(self, now: float) -> None:
        """Let rotations take their course, and look for one by another server."""
        with self._lock:
            self.ring.tick(now)
        if now < self._refresh_at:
            return
        secrets = self._storage.secrets()
        with self._lock:
            self.ring.update(secrets, now)
        self._refresh_at = now + self._refresh_s
