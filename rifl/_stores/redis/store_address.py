"""URLs of stores in Redis: a server's, and options of the store's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from _rifl_ground.redis.address import RedisAddress
from rifl._stores.errors import UnsupportedStore
from rifl._stores.shared.replicas import BEAT_S, DEAD_AFTER_S


def _namespace(text: str) -> str:
    if not text or set(text) & set("{}"):
        raise ValueError("a namespace is not empty and has no braces")
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisStoreAddress(RedisAddress):
    """See ``RedisAddress``. Raises ``UnsupportedStore`` for another URL.

    ``namespace``: how our keys begin, ``rifl`` by default. ``beat_s``, ``dead_after_s``: see
    ``SharedStore``.
    """

    OPTIONS: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **RedisAddress.OPTIONS,
        "namespace": _namespace,
        "beat_s": float,
        "dead_after_s": float,
    }
    INVALID: ClassVar[type[Exception]] = UnsupportedStore

    namespace: str = "rifl"
    beat_s: float = BEAT_S
    dead_after_s: float = DEAD_AFTER_S
