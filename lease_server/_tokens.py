"""Capability tokens: only who was given a client id can use it (DESIGN §3, §5).

A token is 20 bytes, or 52::

    version (1) | flags (1) | key id (2, big endian) | MAC (16) | writer (0 or 32)

where the MAC is HMAC-SHA256, cut to 16 bytes, over a label, the first four bytes,
the client id, the writer of its session if flag bit 1 is set and, if flag bit 0 is, the
peer's identity. Nothing is stored for a token: any server holding the secret makes and
checks it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets as randomness
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash  # typeshed's name, not there at run time

# Storages keep ids in signed 64-bit columns.
MAX_CLIENT_ID = 2**63 - 1
TOKEN_BYTES = 20
# Who writes in a session alone (DESIGN §5).
WRITER_BYTES = 32

_LABEL = b"rifl client id v1\0"
_VERSION = 1
_BOUND = 1
_WRITTEN = 2
# By whether there is a writer.
_LENGTHS = {0: TOKEN_BYTES, _WRITTEN: TOKEN_BYTES + WRITER_BYTES}
_HEAD_BYTES = 4
_BLOCK_BYTES = 64
_MIN_SECRET_BYTES = 16
_MAX_KEY_ID = 2**16 - 1
# The length of a new secret.
SECRET_BYTES = 32
# How many of a storage's secrets are kept: the newest, and the one before it.
_SECRETS_KEPT = 2


@dataclass(frozen=True, slots=True)
class Secret:
    """A key for tokens: a ``key_id`` of 0 to 65535 and at least 16 random bytes.

    The value never shows in ``repr``.
    """

    key_id: int
    value: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError for a key id out of range or a short value."""
        if not 0 <= self.key_id <= _MAX_KEY_ID:
            raise ValueError("key_id must be 0 to 65535")
        if len(self.value) < _MIN_SECRET_BYTES:
            raise ValueError("a secret needs at least 16 bytes")


def rotated(
    held: Sequence[Secret], token_bytes: Callable[[int], bytes] = randomness.token_bytes
) -> list[Secret]:
    """Return a storage's secrets with a new one in front, newest first; the oldest goes."""
    key_id = (held[0].key_id + 1) % (_MAX_KEY_ID + 1) if held else 0
    return [Secret(key_id, token_bytes(SECRET_BYTES)), *held][:_SECRETS_KEPT]


def make_token(secret: Secret, client_id: int, peer: bytes = b"", writer: bytes = b"") -> bytes:
    """The token for an id, bound to the peer's identity unless that is empty.

    ``writer``: of the session, if it has one. Deterministic. Raises ValueError for an id that
    is not 1 to 2^63 - 1, and for a writer that has not its length.
    """
    if not 1 <= client_id <= MAX_CLIENT_ID:
        raise ValueError("client ids are 1 to 2^63 - 1")
    if len(writer) not in (0, WRITER_BYTES):
        raise ValueError(f"a writer has {WRITER_BYTES} bytes")
    flags = (_BOUND if peer else 0) | (_WRITTEN if writer else 0)
    head = bytes((_VERSION, flags)) + secret.key_id.to_bytes(2, "big")
    return head + _mac(secret, head, client_id, writer, peer) + writer


def writer_of(token: bytes) -> bytes:
    """The writer that a genuine token is of, empty for none."""
    return token[TOKEN_BYTES:]


def peer_bound(token: bytes) -> bool:
    """Whether checking this token needs the caller's identity.

    Says nothing about whether it is genuine; False for garbage.
    """
    return len(token) >= TOKEN_BYTES and bool(token[1] & _BOUND)


def verify(secrets: Iterable[Secret], client_id: int, token: bytes, peer: bytes = b"") -> bool:
    """Whether the token is genuine for this id and, if bound, for this peer.

    ``peer`` is ignored by a token that is not bound. The MAC is compared in
    constant time. Never raises on what a peer sent: garbage is False.
    """
    if len(token) < TOKEN_BYTES or not 1 <= client_id <= MAX_CLIENT_ID:
        return False
    flags = token[1]
    if token[0] != _VERSION or flags & ~(_BOUND | _WRITTEN) or (flags & _BOUND and not peer):
        return False
    if len(token) != _LENGTHS[flags & _WRITTEN]:
        return False
    key_id = int.from_bytes(token[2:_HEAD_BYTES], "big")
    for secret in secrets:
        if secret.key_id == key_id:
            bound = peer if flags & _BOUND else b""
            expected = _mac(secret, token[:_HEAD_BYTES], client_id, writer_of(token), bound)
            return hmac.compare_digest(expected, token[_HEAD_BYTES:TOKEN_BYTES])
    return False


def _mac(secret: Secret, head: bytes, client_id: int, writer: bytes, peer: bytes) -> bytes:
    inner, outer = _keyed(secret.value)
    inner, outer = inner.copy(), outer.copy()
    # Only the last part varies in length where the head is the same, so no two inputs run
    # together.
    inner.update(head + client_id.to_bytes(8, "big") + writer + peer)
    outer.update(inner.digest())
    return outer.digest()[: TOKEN_BYTES - _HEAD_BYTES]


@lru_cache(maxsize=16)
def _keyed(value: bytes) -> tuple[_Hash, _Hash]:
    """The two hashes of HMAC with the key, and the label, already in them (RFC 2104).

    Every call is checked, and `hmac.digest` sets its key up anew each time: twice
    the cost.
    """
    key = (value if len(value) <= _BLOCK_BYTES else hashlib.sha256(value).digest()).ljust(
        _BLOCK_BYTES, b"\0"
    )
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
    inner.update(_LABEL)
    return inner, hashlib.sha256(bytes(byte ^ 0x5C for byte in key))
