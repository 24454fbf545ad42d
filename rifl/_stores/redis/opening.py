"""Opening a Redis store: connected, checked, and known to be the one it was."""

from __future__ import annotations

import secrets as randomness
from typing import Any

import redis

from _rifl_ground.log import get_logger
from _rifl_ground.redis.clients import Clients
from _rifl_ground.redis.rights import missing_in_scripts, missing_outside
from rifl._stores.errors import (
    StoreCorrupt,
    StoreNotDurable,
    StoreSchemaTooNew,
    StoreUnreachable,
    WrongDatabase,
)
from rifl._stores.redis.backend import RedisBackend
from rifl._stores.redis.scripts import OPEN, SERVING
from rifl._stores.redis.store_address import RedisStoreAddress

_log = get_logger("rifl.store")
# This release writes this layout, and reads no higher one.
LAYOUT = 1
_ID_BYTES = 16
# A cluster's servers have some hundred slots each, at least.
_TAGS_TRIED = 10_000


def open_backend(address: RedisStoreAddress) -> RedisBackend:
    """Connect, check settings and rights, and take the store's id, made by the first ever."""
    clients = _connect(address)
    try:
        _check_durability(clients, address)
        _check_rights(clients.blocking, address)
        fresh = fresh_id()
        arguments = ("", f"{address.namespace}:{{store}}:", "", -1, fresh, LAYOUT)
        reply = clients.blocking.eval(OPEN.text, 1, meta_key(address), *arguments)
        store_id, layout, stopped = reply
    except (redis.RedisError, OSError) as error:
        clients.close()
        raise StoreUnreachable(f"{address} cannot be used: {error}") from error
    except BaseException:
        clients.close()
        raise
    try:
        check_noted(address, layout, stopped)
    except BaseException:
        clients.close()
        raise
    return RedisBackend(address, clients, store_id)


def find_backend(address: RedisStoreAddress) -> tuple[RedisBackend, int]:
    """Connect to a store that is there, whatever the settings and its state; its layout too.

    Makes and changes nothing. Raises a ``StoreError``.
    """
    clients = _connect(address)
    try:
        store_id, layout = clients.blocking.hmget(meta_key(address), "store", "layout")
    except (redis.RedisError, OSError) as error:
        clients.close()
        raise StoreUnreachable(f"{address} cannot be read: {error}") from error
    if store_id is None or layout is None:
        clients.close()
        raise WrongDatabase(f"{address} holds no rifl store in the namespace {address.namespace!r}")
    try:
        # Also one that has stopped.
        found = check_noted(address, layout, None)
    except BaseException:
        clients.close()
        raise
    return RedisBackend(address, clients, store_id), found


def check_noted(address: RedisStoreAddress, layout: bytes, stopped: bytes | None) -> int:
    """Return the layout that is noted; raises ``StoreCorrupt``, ``StoreSchemaTooNew``."""
    if stopped:
        raise StoreCorrupt(
            f"{address} has lost records that it had acknowledged, as a replica found: calls may "
            "have run of which it knows nothing. Once that is settled: rifl accept-loss URL"
        )
    try:
        found = int(layout)
    except ValueError as error:
        raise StoreCorrupt(f"{address}: what is noted of it is damaged, or not rifl's") from error
    if found > LAYOUT:
        raise StoreSchemaTooNew(
            f"{address} has layout {found}; this release knows up to {LAYOUT}: upgrade it"
        )
    return found


def fresh_id() -> str:
    """Return an id that no store has."""
    return randomness.token_hex(_ID_BYTES)


def _connect(address: RedisStoreAddress) -> Clients:
    try:
        return Clients(address, bounded=True)
    except (redis.RedisError, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be reached: {error}") from error


def _check_durability(clients: Clients, address: RedisStoreAddress) -> None:
    """Raise ``StoreNotDurable`` for weak settings, or say each in the log."""
    again = "those calls may run again"
    for setting, cost in clients.check_durability(lambda why: StoreNotDurable(f"{why}; {again}")):
        _log.warning(
            "store_not_durable", store=str(address), setting=setting, cost=f"{cost}: {again}"
        )


def _check_rights(client: Any, address: RedisStoreAddress) -> None:
    """Raise ``StoreUnreachable``, naming all that the user may not do."""
    channel = probe_channel(address)
    keys = keys_to_try(client, address)
    missing = missing_in_scripts(client, keys, SERVING, channel)
    missing += missing_outside(client, channel)
    if missing:
        raise StoreUnreachable(
            f"{address}: the user may not {', '.join(missing)} (the least it needs is in "
            "docs/reference/stores-redis.md)"
        )


def probe_channel(address: RedisStoreAddress) -> str:
    """Return a channel of those that replicas wake each other by."""
    return f"{address.namespace}:{{store}}:wake:probe"


def keys_to_try(client: Any, address: RedisStoreAddress) -> list[str]:
    """Return how the keys to try begin: of the store, of clients, and one on each server."""
    keys = [f"{address.namespace}:{{{tag}}}:probe" for tag in ("store", "0")]
    if not address.clustered:
        return keys
    # Every server has users of its own.
    left = {node.name for node in client.get_primaries()}
    left -= {client.get_node_from_key(key).name for key in keys}
    for number in range(1, _TAGS_TRIED):
        if not left:
            break
        key = f"{address.namespace}:{{{number}}}:probe"
        name = client.get_node_from_key(key).name
        if name in left:
            left.remove(name)
            keys.append(key)
    return keys


def meta_key(address: RedisStoreAddress) -> str:
    """Return the key of what is noted of the store."""
    return f"{address.namespace}:{{store}}:meta"
