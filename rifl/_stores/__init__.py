"""Stores: where completion records live, by URL (DESIGN §6).

- ``base``: what servers ask of every store; ``transactions``: of those with transactions.
- ``memory``, over ``embedded``, which ``sqlite`` and groups are over, too.
- ``postgres`` and ``redis``, over ``shared``: many servers, one store.
- ``inspection``, ``settling``: a store from outside its server, and calls settled there.
- ``codec``, ``drivers``, ``held_answers``, ``pending``, ``forks``, ``errors``: their parts.
"""

from __future__ import annotations

from types import ModuleType

from lease_server._storage import SharedLeaseStorage
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
    UnsupportedStore,
    WrongDatabase,
)
from rifl._stores.memory import MemoryStore
from rifl._stores.pending import Pending
from rifl._stores.settling import (
    Settled,
    Settlement,
    State,
    UnknownCall,
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
    "State",
    "Store",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreLost",
    "StoreNotDurable",
    "StoreSchemaTooNew",
    "StoreUnreachable",
    "UnknownCall",
    "UnsupportedStore",
    "WrongDatabase",
    "open_lease_storage",
    "open_store",
    "postgres_schema",
    "settle_unknown",
    "unknown_calls",
]


def open_store(url: str, *, lock_timeout_s: float = 5.0, codec: RecordCodec | None = None) -> Store:
    """Open ``memory:``, ``sqlite:///file``, a Redis (see ``RedisAddress``) or a PostgreSQL.

    For the latter's URL see ``PostgresAddress``.

    ``lock_timeout_s``: how long to wait for another process that owns the store.
    ``codec``: how records look there (``memory:`` keeps them as they are).
    Raises a ``StoreError``, ``UnsupportedStore`` for a URL we do not know.
    """
    if url == "memory:":
        return MemoryStore()
    if url.startswith("sqlite:"):
        from rifl._stores.sqlite import SqliteStore

        return SqliteStore(url, lock_timeout_s=lock_timeout_s, codec=codec)
    if _is_redis(url):
        store: Store = _redis().RedisStore(url, codec=codec)
        return store
    if _is_postgres(url):
        shared: Store = _postgres().PostgresStore(url, codec=codec)
        return shared
    raise UnsupportedStore(
        f"{_scheme(url)!r} is none of memory:, sqlite:///file, redis://host, postgresql://host/db"
    )


def open_lease_storage(url: str) -> SharedLeaseStorage:
    """Open what ``python -m lease_server`` needs of a shared store; raises a ``StoreError``."""
    if _is_redis(url):
        module = _redis()
        storage: SharedLeaseStorage = module.RedisLeaseStorage.alone(url)
        return storage
    if _is_postgres(url):
        kept: SharedLeaseStorage = _postgres().PostgresLeaseStorage.alone(url)
        return kept
    raise UnsupportedStore(f"{_scheme(url)!r} is no store that servers share: redis, postgresql")


def postgres_schema(schema: str = "rifl", *, functions_only: bool = False) -> str:
    """Return the SQL that makes a PostgreSQL store, for one who does that by hand.

    ``functions_only``: only what brings the functions of a schema that is there up to date.
    Raises ``MissingExtra`` without ``rifl-grpc[postgres]``.
    """
    _postgres()
    from rifl._stores.postgres.schema import functions, script

    return functions(schema) if functions_only else script(schema)


def _is_redis(url: str) -> bool:
    return _scheme(url).partition("+")[0] in ("redis", "rediss", "unix")


def _is_postgres(url: str) -> bool:
    return _scheme(url) in ("postgresql", "postgres")


def _scheme(url: str) -> str:
    # A URL may hold a password: no more of it than this goes into a message.
    return url.partition(":")[0]


def _postgres() -> ModuleType:
    try:
        import rifl._stores.postgres
    except ImportError as error:
        raise MissingExtra(f"postgresql:// needs the extra rifl-grpc[postgres]: {error}") from error
    return rifl._stores.postgres


def _redis() -> ModuleType:
    try:
        import rifl._stores.redis
    except ModuleNotFoundError as error:
        raise MissingExtra(f"redis:// needs the extra rifl-grpc[redis]: {error}") from error
    return rifl._stores.redis
