"""Settings of a Redis server, checked when a log is opened: what they mean for it."""

from __future__ import annotations

from collections.abc import Sequence

from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients
from _rifl_ground.servers import Weakness, told
from sharedlog._engines.owner import Owner

_OLDEST = (6, 2)


def check_settings(clients: Clients, address: RedisAddress, replicas: int, owner: Owner) -> str:
    """Return what the settings promise of an append, in a sentence.

    Raises ``not_durable`` for weak settings, unless the address says
    ``durability=warn``: then each is logged with what it costs. Raises ``unavailable`` for a
    server that is older than 6.2.
    """
    information = clients.blocking.info("server")
    # Of several primaries: by their names.
    servers = [information] if "redis_version" in information else information.values()
    for server in servers:
        version = str(server["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
            raise owner.unavailable(f"{address} is Redis {version}; a log needs 6.2 or newer")
    weak = clients.check_durability(owner.not_durable)
    for setting, cost in weak:
        owner.events.warning("log_not_durable", log=str(address), setting=setting, cost=cost)
    return _sentence(weak, replicas)


def _sentence(weak: Sequence[Weakness], replicas: int) -> str:
    kept = told(weak) or "an append is on the server's disk before it is acknowledged"
    if replicas:
        more = (
            f"{replicas} of its replicas have it in memory before it is acknowledged, and a "
            "failover to one that has not loses it"
        )
    else:
        more = "replicas get it later, and a failover to one that has not yet loses it"
    return f"Redis: {kept}; {more}"
