"""Namespaces of keys for callers that hold no client id (DESIGN §3)."""

from __future__ import annotations

from hashlib import blake2b


def namespace_id(peer: bytes, scope: str = "") -> int:
    """Return the client id that stands for a peer's keys: negative, never granted.

    ``peer`` is the authenticated identity, empty for all who have none. ``scope``
    parts one namespace from another: a method whose keys come from its requests.
    The same on every replica and after every restart. No header can carry it,
    since ids on the wire are not negative.
    """
    text = scope.encode()
    digest = blake2b(len(text).to_bytes(4, "big") + text + peer, digest_size=8).digest()
    return -(int.from_bytes(digest, "big") >> 1) - 1


def is_namespace(client_id: int) -> bool:
    """Tell whether an id stands for a namespace, which has no lease to expire."""
    return client_id < 0
