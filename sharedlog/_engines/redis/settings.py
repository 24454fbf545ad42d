"""Settings of a Redis server, checked when a log is opened: what they mean for it."""

from __future__ import annotations

from typing import Any

import redis

from rifl._stores.redis.address import Durability, RedisAddress
from sharedlog._engines.owner import Owner

_OLDEST = (6, 2)
_WANTED = {
    "appendonly": (
        "yes",
        "a restart loses every entry since the last snapshot of the server: what was "
        "acknowledged is gone",
    ),
    "appendfsync": (
        "always",
        "a crash of the machine loses up to a second of entries: what was acknowledged is gone",
    ),
    "maxmemory-policy": (
        "noeviction",
        "the whole log may be evicted when memory is full",
    ),
}


def check_settings(client: Any, address: RedisAddress, replicas: int, owner: Owner) -> str:
    """Return what the settings promise of an append, in a sentence.

    Raises ``not_durable`` for weak settings, unless the address says
    ``durability=warn``: then each is logged with what it costs. A server that does
    not tell its settings is treated as weak. Raises ``unavailable`` for one
    that is older than 6.2.
    """
    information = client.info("server")
    # Of several primaries: by their names.
    servers = [information] if "redis_version" in information else information.values()
    for server in servers:
        version = str(server["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
            raise owner.unavailable(f"{address} is Redis {version}; a log needs 6.2 or newer")
    weak = []
    for settings in _settings(client, address, owner):
        for name, (wanted, cost) in _WANTED.items():
            found = settings.get(name, "not told")
            if found != wanted:
                weak.append((f"{name} is {found}, not {wanted}", cost))
    if weak and address.durability is Durability.REQUIRE:
        told = "; ".join(f"{setting}: {cost}" for setting, cost in weak)
        raise owner.not_durable(f"{address}: {told} (?durability=warn opens it all the same)")
    for setting, cost in weak:
        owner.events.warning("log_not_durable", log=str(address), setting=setting, cost=cost)
    return _sentence(weak, replicas)


def _sentence(weak: list[tuple[str, str]], replicas: int) -> str:
    kept = "an append is on the server's disk before it is acknowledged"
    if weak:
        kept = "; ".join(f"{setting}: {cost}" for setting, cost in weak)
    if replicas:
        more = (
            f"{replicas} of its replicas have it in memory before it is acknowledged, and a "
            "failover to one that has not loses it"
        )
    else:
        more = "replicas get it later, and a failover to one that has not yet loses it"
    return f"Redis: {kept}; {more}"


def _settings(client: Any, address: RedisAddress, owner: Owner) -> list[dict[str, str]]:
    nodes = client.get_primaries() if address.clustered else [None]
    found = []
    for node in nodes:
        options = {} if node is None else {"target_nodes": node}
        settings: dict[str, str] = {}
        try:
            for name in _WANTED:
                # One by one: servers before 7.0 take no list.
                for key, value in client.config_get(name, **options).items():
                    settings[_text(key)] = _text(value)
        except redis.exceptions.ResponseError as error:
            owner.events.warning("log_settings_unknown", log=str(address), error=str(error))
        found.append(settings)
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
