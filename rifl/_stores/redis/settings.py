"""A Redis server's settings, and what they mean for the guarantees (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis

from _rifl_ground.log import get_logger
from rifl._stores.errors import StoreNotDurable, StoreUnreachable
from rifl._stores.redis.address import Durability, RedisAddress

_log = get_logger("rifl.store")
WANTED = {
    "appendonly": (
        "yes",
        "a restart loses every record since the last snapshot: those calls may run again",
    ),
    "appendfsync": (
        "always",
        "a crash of the machine loses up to a second of acknowledged records: those calls may "
        "run again",
    ),
    "maxmemory-policy": (
        "noeviction",
        "records are evicted when memory is full: those calls may run again",
    ),
}


def _weakness(settings: Mapping[str, str]) -> str:
    """Return what of the settings is weaker than the guarantees need, empty if nothing is."""
    return "; ".join(f"{setting}: {cost}" for setting, cost in _weaknesses(settings))


class NotDurable(redis.ResponseError):
    """A new connection leads to a server that may forget what it acknowledges.

    Of a kind that redis-py does not try again.
    """


def refuse_weak(settings: Mapping[str, str]) -> None:
    """Raise ``NotDurable`` for settings that are weak."""
    if found := _weakness(settings):
        raise NotDurable(found)


def looked_at(client: Any, address: RedisAddress) -> str:
    """Look again at servers that were durable; what is weak now. Raises redis-py's errors."""
    if address.durability is not Durability.REQUIRE:
        return ""
    try:
        return "; ".join(filter(None, map(_weakness, _read(client, address))))
    except (redis.exceptions.NoPermissionError, redis.exceptions.ResponseError) as error:
        return f"the server does not tell its settings any more ({error})"


def _weaknesses(settings: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each setting that is weaker than the guarantees need, and what it costs."""
    return [
        (f"{name} is {settings.get(name, 'unknown')}, not {wanted}", cost)
        for name, (wanted, cost) in WANTED.items()
        if settings.get(name) != wanted
    ]


def check_settings(client: Any, address: RedisAddress) -> None:
    """Raise ``StoreNotDurable`` for weak settings, or say each in the log.

    A server that does not tell its settings, as some managed ones, is treated as
    weak: ``durability=warn`` is how an operator says that they were looked at.
    """
    try:
        servers = list(_read(client, address))
    except (redis.exceptions.NoPermissionError, redis.exceptions.ResponseError) as error:
        if address.durability is Durability.REQUIRE:
            raise StoreNotDurable(
                f"{address} does not tell its settings ({error}); if it keeps an append-only file "
                "with appendfsync always and evicts nothing, open it with ?durability=warn"
            ) from error
        _log.warning("store_settings_unknown", store=str(address), error=str(error))
        return
    except (redis.RedisError, OSError) as error:
        raise StoreUnreachable(f"{address} cannot be reached: {error}") from error
    for settings in servers:
        found = _weaknesses(settings)
        if found and address.durability is Durability.REQUIRE:
            told = _weakness(settings)
            raise StoreNotDurable(f"{address}: {told} (?durability=warn opens it all the same)")
        for setting, cost in found:
            _log.warning("store_not_durable", store=str(address), setting=setting, cost=cost)


def _read(client: Any, address: RedisAddress) -> Iterable[dict[str, str]]:
    if not address.clustered:
        yield _get(client.config_get, {})
        return
    for node in client.get_primaries():
        yield _get(client.config_get, {"target_nodes": node})


def _get(config_get: Any, options: dict[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name in WANTED:
        # One by one: servers before 7.0 take no list.
        for key, value in config_get(name, **options).items():
            settings[_text(key)] = _text(value)
    return settings


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
