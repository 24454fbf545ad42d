"""The opening of stores by their URLs, for servers, for lease servers, and for looking."""

from __future__ import annotations

from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING

from _rifl_ground.urls import without_driver
from lease_server._shared_authority import open_authority
from lease_server._storage import SharedLeaseStorage
from rifl._stores.base import LOCK_TIMEOUT_S, Store
from rifl._stores.codec import RecordCodec
from rifl._stores.errors import MissingExtra, UnsupportedStore
from rifl._stores.inspection import Inspection
from rifl._stores.memory import MemoryStore

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup


def open_store(
    url: str, *, lock_timeout_s: float = LOCK_TIMEOUT_S, codec: RecordCodec | None = None
) -> Store:
    """Open ``memory:``, ``sqlite:///file``, a Redis, a PostgreSQL, or a MariaDB or MySQL.

    For their URLs see ``RedisStoreAddress``, ``PostgresStoreAddress``, ``MySqlStoreAddress``.

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
    if _is_mysql(url):
        generic: Store = _mysql().MySqlStore(url, codec=codec)
        return generic
    raise UnsupportedStore(
        f"{_scheme(url)!r} is none of memory:, sqlite:///file, redis://host, postgresql://host/db, "
        f"mysql://host/db{without_driver(_scheme(url))}"
    )


def open_lease_storage(url: str) -> SharedLeaseStorage:
    """Open what ``rifl lease-server`` needs of a shared store; raises a ``StoreError``."""
    if _is_redis(url):
        module = _redis()
        storage: SharedLeaseStorage = module.RedisLeaseStorage.alone(url)
        return storage
    if _is_postgres(url):
        kept: SharedLeaseStorage = _postgres().PostgresLeaseStorage.alone(url)
        return kept
    if _is_mysql(url):
        held: SharedLeaseStorage = _mysql().open_lease_storage(url)
        return held
    raise UnsupportedStore(
        f"{_scheme(url)!r} is no store that servers share: redis, postgresql, mysql"
        f"{without_driver(_scheme(url))}"
    )


def end_session(url: str, name: str) -> list[int]:
    """End the open sessions of a name in an existing store; return their ids.

    See ``Authority.end_session``. Raises a ``StoreError``: ``StoreLocked`` if a process has the
    SQLite store open; or a refusal of the store.
    """
    if not url.startswith("sqlite:"):
        storage = open_lease_storage(url)
        with closing(storage):  # type: ignore[type-var]
            return open_authority(storage).end_session(name)
    with closing(open_store(url, lock_timeout_s=0.0)) as store:
        return open_authority(store.leases).end_session(name)


def open_inspection(url: str) -> Inspection:
    """Open a store for looking. Raises a ``StoreError``; never makes or changes one."""
    if url.startswith("sqlite:"):
        from rifl._stores.sqlite.inspection import SqliteInspection

        return SqliteInspection(url)
    if url == "memory:":
        raise UnsupportedStore("memory: is inside its server's process: nothing can look into it")
    if _is_redis(url):
        _redis()
        from rifl._stores.redis.inspection import RedisInspection

        return RedisInspection(url)
    if _is_postgres(url):
        _postgres()
        from rifl._stores.postgres.inspection import PostgresInspection

        return PostgresInspection(url)
    if _is_mysql(url):
        _mysql()
        from rifl._stores.mysql.inspection import MySqlInspection

        return MySqlInspection(url)
    raise UnsupportedStore(
        f"{_scheme(url)!r} is no store that can be inspected: sqlite:///file, redis://host, "
        f"postgresql://host/db, mysql://host/db{without_driver(_scheme(url))}"
    )


def examine(url: str) -> Checkup:
    """Look at a store, or at a place for one, by the checks of its start; only reads.

    Raises ``UnsupportedStore`` for a URL that names none.
    """
    if url.startswith("sqlite:"):
        from rifl._stores.sqlite import doctor as sqlite

        return sqlite.examine(url)
    if url == "memory:":
        raise UnsupportedStore(
            "memory: is inside its server's process: there is nothing to look at"
        )
    if _is_redis(url):
        _redis()
        from rifl._stores.redis import doctor as redis

        return redis.examine(url)
    if _is_postgres(url):
        _postgres()
        from rifl._stores.postgres import doctor as postgres

        return postgres.examine(url)
    if _is_mysql(url):
        _mysql()
        from rifl._stores.mysql import doctor as mysql

        return mysql.examine(url)
    raise UnsupportedStore(
        f"{_scheme(url)!r} is no store that can be looked at: sqlite:///file, redis://host, "
        f"postgresql://host/db, mysql://host/db{without_driver(_scheme(url))}"
    )


def postgres_schema(schema: str = "rifl", *, functions_only: bool = False) -> str:
    """Return the SQL that makes a PostgreSQL store, to be run by hand.

    ``functions_only``: only the SQL that updates the functions of an existing schema.
    Raises ``MissingExtra`` without ``rifl-grpc[postgres]``.
    """
    _postgres()
    from rifl._stores.postgres.schema import functions, script

    return functions(schema) if functions_only else script(schema)


def _is_redis(url: str) -> bool:
    return _scheme(url).partition("+")[0] in ("redis", "rediss", "unix")


def _is_postgres(url: str) -> bool:
    return _scheme(url) in ("postgresql", "postgres")


def _is_mysql(url: str) -> bool:
    return _scheme(url) in ("mysql", "mariadb")


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


def _mysql() -> ModuleType:
    try:
        import rifl._stores.mysql
    except ImportError as error:
        raise MissingExtra(f"mysql:// needs the extra rifl-grpc[mysql]: {error}") from error
    return rifl._stores.mysql
