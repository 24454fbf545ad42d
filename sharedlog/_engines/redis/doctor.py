"""A look at a log in Redis by the checks of its opening; only reads."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import redis

from _rifl_ground.findings import Checkup, reached
from _rifl_ground.redis.address import RedisAddress
from _rifl_ground.redis.clients import Clients
from _rifl_ground.redis.doctor import look_at_rights, look_at_servers
from _rifl_ground.servers import Weakness
from sharedlog._core.errors import LogError, NoSuchLog
from sharedlog._engines.owner import Home
from sharedlog._engines.redis.connection import PARTS, home_of, id_of
from sharedlog._engines.redis.log_scripts import ALL, OPEN
from sharedlog._engines.redis.opening import parts_of
from sharedlog._engines.redis.server import CLEANING, check_version

# To write in no case.
_LOOK = "0"


def examine(url: str) -> Checkup:
    """Look at the log of a URL. Raises ``InvalidRequest`` for the URL itself."""
    address, name, replicas = parts_of(url)
    return examine_log(address, name, replicas, home_of(name))


def examine_log(address: RedisAddress, name: str, replicas: int, home: Home) -> Checkup:
    """Look at a log by where it is, and its name there."""
    root = home.root
    checkup = Checkup(f"{address}, log {name!r}", LogError, NoSuchLog)
    with (
        reached(checkup, (redis.RedisError, OSError)),
        closing(Clients(address, retries=0, bounded=True)) as clients,
    ):
        client = clients.blocking
        probe = f"{root}probe"
        outside = (["XREAD", "COUNT", "1", "STREAMS", "@stream", "0-0"], ["INFO"])
        look_at_rights(
            checkup, client, [probe], [*ALL, CLEANING], home.owner.guide, outside=outside
        )
        look_at_servers(checkup, clients, address)
        checkup.refused(
            "server", partial(check_version, clients, address, home.owner), "Upgrade it."
        )
        if replicas:
            found = int(client.info("replication")["connected_slaves"])
            if found < replicas:
                lack = f"{found} of {replicas} replicas are connected"
                cost = "until they are, no write counts"
                checkup.weaknesses([Weakness(lack, cost)], address.durability)
        names = [f"{root}{part}" for part in PARTS]
        reply = OPEN.run(client, (len(names), *names, _LOOK))
        checkup.refused("log", partial(id_of, reply, address, name, home.format))
    return checkup
