"""The opening of a consumer's store by its URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sharedlog._consumer.in_log import LOG, LogStore
from sharedlog._consumer.sqlite import SqliteStore
from sharedlog._consumer.store import Store
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.steps import Rule
from sharedlog._engines.engine import Engine
from sharedlog._engines.sqlite import SqliteEngine
from sharedlog._log.place import Place

_SQLITE, _POSTGRES = "sqlite:///", ("postgresql://", "postgres://")
_REDIS = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")


def in_one_file(engine: Engine, url: str) -> bool:
    """Whether a store is in the file of the log: while handlers run nothing can be appended."""
    return (
        isinstance(engine, SqliteEngine)
        and url.startswith(_SQLITE)
        and engine.is_in(Path(url.removeprefix(_SQLITE)))
    )


def within(store: Store, engine: Engine) -> Callable[[Rule[Any]], object]:
    """Return what carries an append out in the transaction of a store in the log's file."""
    if not isinstance(engine, SqliteEngine) or not isinstance(store, SqliteStore):
        raise AssertionError("they are no one file")
    return lambda append: store.within(lambda connection: engine.carry_in(connection, append))


def store_of(url: str, name: str, place: Place) -> Callable[[], Store]:
    """Return what opens a store for a consumer; raises ``InvalidRequest`` for another URL."""
    if url == LOG:
        return lambda: LogStore(place, name)
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE) and "?" not in url:
        path = Path(url.removeprefix(_SQLITE)).absolute()
        return lambda: SqliteStore(path, name)
    if url.startswith(_POSTGRES):
        try:
            from sharedlog._consumer.postgres import PostgresStore
        except ModuleNotFoundError as error:
            raise InvalidRequest(f"postgresql:// needs rifl-grpc[postgres]: {error}") from error
        return lambda: PostgresStore(url, name)
    if url.startswith(_REDIS):
        try:
            from sharedlog._consumer.redis import open_redis
        except ModuleNotFoundError as error:
            raise InvalidRequest(f"redis:// needs rifl-grpc[redis]: {error}") from error
        return lambda: open_redis(url, name)
    raise InvalidRequest(
        "a consumer's store is sqlite:///FILE (four slashes: from the root), "
        f"postgresql://HOST/DATABASE, redis://HOST, or {LOG!r}"
    )
