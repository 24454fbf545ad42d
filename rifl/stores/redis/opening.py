"""Opening a Redis store: connected, checked, and known to be the one it was."""

from __future__ import annotations

import secrets as randomness

import redis

from rifl.stores.errors import StoreCorrupt, StoreUnreachable
from rifl.stores.redis.address import RedisAddress
from rifl.stores.redis.backend import RedisBackend
from rifl.stores.redis.clients import Clients
from rifl.stores.redis.settings import check_settings

__all__ = ["open_backend"]

_ID_BYTES = 16


def open_backend(address: RedisAddress) -> RedisBackend:
    """Connect, check the settings, and take the store's id, made by the first ever."""
    try:
        clients = Clients(address)
    except (redis.RedisError, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be reached: {error}") from error
    try:
        check_settings(clients.blocking, address)
        meta = f"{address.namespace}:{{store}}:meta"
        clients.blocking.hsetnx(meta, "store", randomness.token_hex(_ID_BYTES))
        store_id, stopped = clients.blocking.hmget(meta, "store", "stopped")
    except (redis.RedisError, OSError) as error:
        clients.close()
        raise StoreUnreachable(f"{address} cannot be used: {error}") from error
    except BaseException:
        clients.close()
        raise
    if stopped:
        clients.close()
        raise StoreCorrupt(
            f"{address} has lost records that it had acknowledged, as a replica found: calls may "
            f"have run of which it knows nothing. Once that is settled, delete its keys "
            f"({address.namespace}:*) to begin anew; clients then get new ids"
        )
    return RedisBackend(address, clients, store_id)
