"""The secrets that sign and check tokens, through rotations. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lease_server._tokens import Secret

_SIGN_AFTER_REFRESHES = 2
_RETIRE_AFTER_REFRESHES = 4


class KeyRing:
    """The secrets of one server through a rotation (DESIGN §5). Not thread-safe.

    Servers sharing a storage learn of a new secret at most ``refresh_s`` apart. A
    new one is therefore valid once it is known and signs two refreshes
    later, when every server knows it; an older one stays valid until every server
    stopped signing with it and the last token it signed had a whole term to be
    renewed. The tuple ``valid`` is replaced, never changed, and so is ``key_ids``, the
    same secrets' ids as tokens carry them: readers need no lock.

    After a restart the newest secret signs at once and the others are valid for
    that time again, since when the rotation happened is not kept.
    """

    def __init__(self, term_s: float, refresh_s: float) -> None:
        """An empty ring; call ``update`` before using it. Times are seconds."""
        self._sign_after_s = _SIGN_AFTER_REFRESHES * refresh_s
        self._retire_after_s = _RETIRE_AFTER_REFRESHES * refresh_s + term_s
        self._signing: Secret | None = None
        self._next: tuple[float, Secret] | None = None
        self._retire_at: dict[Secret, float] = {}
        self._retired: set[Secret] = set()
        self.valid: tuple[Secret, ...] = ()
        self.key_ids: frozenset[bytes] = frozenset()

    @property
    def signing(self) -> Secret:
        """The secret new tokens are made with. RuntimeError before ``update``."""
        if self._signing is None:
            raise RuntimeError("the key ring is empty")
        return self._signing

    def update(self, secrets: Sequence[Secret], now: float) -> None:
        """Learn what the storage holds, newest first. ValueError if that is nothing."""
        if not secrets:
            raise ValueError("a storage holds at least one secret")
        newest = secrets[0]
        if self._signing is None:
            self._signing = newest
        elif newest not in self.valid and newest not in self._retired:
            self._next = (now + self._sign_after_s, newest)
        self._retired &= set(secrets)
        listed = [secret for secret in secrets if secret not in self._retired]
        dropped = [secret for secret in self.valid if secret not in listed]
        self._accept((*listed, *dropped))
        for secret in self.valid:
            if secret != newest:
                self._retire_at.setdefault(secret, now + self._retire_after_s)

    def tick(self, now: float) -> None:
        """Let the new secret sign, and the old ones go, where their time has come."""
        if self._next is not None and now >= self._next[0]:
            self._signing = self._next[1]
            self._next = None
        over = {secret for secret, at in self._retire_at.items() if now >= at}
        over.discard(self.signing)
        if over:
            self._retired |= over
            self._accept(tuple(secret for secret in self.valid if secret not in over))
            for secret in over:
                del self._retire_at[secret]

    def _accept(self, valid: tuple[Secret, ...]) -> None:
        self.valid = valid
        self.key_ids = frozenset(secret.key_id.to_bytes(2, "big") for secret in valid)
