"""Stores: where completion records live, by URL (DESIGN §6).

- ``base``: what servers ask of every store; ``transactions``: of those with transactions;
  ``rows``: of those that keep positions of followers.
- ``opening``: a store by its URL.
- ``memory``, over ``embedded``, which ``sqlite`` and groups are over, too.
- ``postgres`` and ``redis``, over ``shared``: many servers, one store. ``mysql``, over ``sql``,
  which is for any SQL database.
- ``inspection``, ``settling``: a store from outside its server, and calls settled there.
- ``codec``, ``drivers``, ``alchemy``, ``held_answers``, ``pending``, ``forks``, ``errors``: their
  parts.
"""

from __future__ import annotations

from rifl._stores.base import Store
from rifl._stores.codec import RecordCodec
from rifl._stores.drivers import DbApiTransaction
from rifl._stores.errors import (
    MissingExtra,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreLost,
    StoreNotDurable,
    StoreSchemaTooNew,
    StoreUnreachable,
    TransactionEnded,
    UnsupportedStore,
    WrongDatabase,
)
from rifl._stores.memory import MemoryStore
from rifl._stores.opening import open_lease_storage, open_store, postgres_schema
from rifl._stores.pending import Pending
from rifl._stores.settling import (
    Settled,
    Settlement,
    UnknownCall,
    UnknownState,
    settle_unknown,
    unknown_calls,
)

__all__ = [
    "DbApiTransaction",
    "MemoryStore",
    "MissingExtra",
    "Pending",
    "RecordCodec",
    "Settled",
    "Settlement",
    "Store",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreLost",
    "StoreNotDurable",
    "StoreSchemaTooNew",
    "StoreUnreachable",
    "TransactionEnded",
    "UnknownCall",
    "UnknownState",
    "UnsupportedStore",
    "WrongDatabase",
    "open_lease_storage",
    "open_store",
    "postgres_schema",
    "settle_unknown",
    "unknown_calls",
]
