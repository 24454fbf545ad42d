"""Where completion records live, by URL (DESIGN §6)."""

from __future__ import annotations

from lease_server.storage import LeaseStorage
from rifl.stores.base import Store
from rifl.stores.codec import RecordCodec
from rifl.stores.errors import (
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
    WrongDatabase,
)
from rifl.stores.memory import MemoryStore
from rifl.stores.pending import Pending

__all__ = [
    "MemoryStore",
    "Pending",
    "RecordCodec",
    "Store",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreSchemaTooNew",
    "StoreUnreachable",
    "UnsupportedStore",
    "WrongDatabase",
    "open_lease_storage",
    "open_store",
]


def open_store(url: str, *, lock_timeout_s: float = 5.0, codec: RecordCodec | None = None) -> Store:
    """Open ``memory:`` or ``sqlite:///file``.

    ``lock_timeout_s``: how long to wait for another process that owns the store.
    ``codec``: how records look there (``memory:`` keeps them as they are).
    Raises a ``StoreError``, ``UnsupportedStore`` for a URL we do not know.
    """
    if url == "memory:":
        return MemoryStore()
    if url.startswith("sqlite:"):
        from rifl.stores.sqlite import SqliteStore

        return SqliteStore(url, lock_timeout_s=lock_timeout_s, codec=codec)
    raise UnsupportedStore(f"{url!r} is none of memory:, sqlite:///file")


def open_lease_storage(url: str) -> LeaseStorage:
    """Open only what a lease server that stands alone needs; raises a ``StoreError``."""
    if url == "memory:":
        return MemoryStore().leases
    from rifl.stores.sqlite.lease_storage import SqliteLeaseStorage
    from rifl.stores.sqlite.store import path_of

    return SqliteLeaseStorage.alone(path_of(url))
