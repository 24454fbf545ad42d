"""Keys that customers choose: each has a namespace of its own."""

from __future__ import annotations

import json
from hashlib import sha256

import rifl

__all__ = ["key_of"]


def key_of(customer: str, key: str) -> tuple[str, bytes]:
    """Return the call's key. A hash: two texts of others have no safe separator, nor a bound."""
    return rifl.key(sha256(json.dumps([customer, key]).encode()).digest())
