"""A look at a store in Redis by the checks of its start; only reads."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import redis

from _rifl_ground.findings import Checkup, reached
from _rifl_ground.redis.clients import Clients
from _rifl_ground.redis.doctor import look_at_rights, look_at_servers
from rifl._stores.errors import StoreError
from rifl._stores.redis.opening import check_noted, keys_to_try, meta_key, probe_channel
from rifl._stores.redis.scripts import SERVING
from rifl._stores.redis.store_address import RedisStoreAddress

_GUIDE = "docs/reference/stores-redis.md"


def examine(url: str) -> Checkup:
    """Look at the store of a URL. Raises ``UnsupportedStore`` for the URL itself."""
    address = RedisStoreAddress.parse(url)
    checkup = Checkup(str(address), StoreError)
    with (
        reached(checkup, (redis.RedisError, OSError)),
        closing(Clients(address, retries=0, bounded=True)) as clients,
    ):
        look_at_servers(checkup, clients, address)
        client, channel = clients.blocking, probe_channel(address)
        outside = (["INFO"], ["SUBSCRIBE", channel])
        keys = keys_to_try(client, address)
        look_at_rights(checkup, client, keys, SERVING, _GUIDE, channel, outside)
        _look_at_store(checkup, clients, address)
    return checkup


def _look_at_store(checkup: Checkup, clients: Clients, address: RedisStoreAddress) -> None:
    try:
        found = clients.blocking.hmget(meta_key(address), "store", "layout", "stopped")
    except redis.exceptions.NoPermissionError as error:
        checkup.error(
            "rights", f"the user may not read what is noted of the store: {error}", "Grant it."
        )
        return
    store, layout, stopped = found
    if store is None or layout is None:
        checkup.note("store", "there is none yet: the first server makes it")
    else:
        checkup.refused("store", partial(check_noted, address, layout, stopped))
