"""The opening of a consumer's store by its URL."""

from __future__ import annotations

from collections.abc import Callable

from _rifl_ground.sqlite.address import PREFIX, keyed_file_of
from sharedlog._consumer.configuring import Configure, check_configure
from sharedlog._consumer.in_log import LOG, LogStore
from sharedlog._consumer.sqlite import SqliteLane
from sharedlog._consumer.store import StoreLane
from sharedlog._core.errors import InvalidRequest
from sharedlog._log.place import Place

_POSTGRES = ("postgresql://", "postgres://")
_REDIS = ("redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://")


def store_of(
    url: str, name: str, place: Place, configure: Configure | None = None
) -> Callable[[], StoreLane]:
    """Return what opens a store for a consumer; raises ``InvalidRequest`` for another URL.

    ``configure``: called with each connection that handlers will use.
    """
    check_configure(configure)
    if configure is not None and not url.startswith((PREFIX, *_POSTGRES)):
        raise InvalidRequest("configure=: it is for stores in SQLite and PostgreSQL")
    if url == LOG:
        return lambda: LogStore(place, name)
    if url.startswith(PREFIX):
        try:
            path, keys = keyed_file_of(url)
        except ValueError as error:
            raise InvalidRequest(f"a consumer's store: {error}") from None
        file = path.absolute()
        return lambda: SqliteLane(file, name, foreign_keys=keys, configure=configure)
    if url.startswith(_POSTGRES):
        try:
            from sharedlog._consumer.postgres import PostgresLane
        except ModuleNotFoundError as error:
            raise InvalidRequest(f"postgresql:// needs rifl-grpc[postgres]: {error}") from error
        return lambda: PostgresLane(url, name, configure)
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
