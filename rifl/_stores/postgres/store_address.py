"""URLs of stores in PostgreSQL: a server's, and options of the store's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from _rifl_ground.postgres.address import PostgresAddress
from rifl._stores.errors import UnsupportedStore
from rifl._stores.shared.replicas import BEAT_S, DEAD_AFTER_S

SCHEMA = "rifl"


@dataclass(frozen=True, kw_only=True, slots=True)
class PostgresStoreAddress(PostgresAddress):
    """See ``PostgresAddress``. Raises ``UnsupportedStore`` for another URL.

    The schema is ``rifl`` by default. ``beat_s``, ``dead_after_s``: see ``SharedStore``.
    """

    OPTIONS: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **PostgresAddress.OPTIONS,
        "beat_s": float,
        "dead_after_s": float,
    }
    INVALID: ClassVar[type[Exception]] = UnsupportedStore

    beat_s: float = BEAT_S
    dead_after_s: float = DEAD_AFTER_S


def store_address(url: str) -> PostgresStoreAddress:
    """Read a store's URL; raises ``UnsupportedStore``, without the URL in its text."""
    return PostgresStoreAddress.parse(url, schema=SCHEMA)
