"""Groups' logs in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

from curp.log._commits.keys import first_keys
from curp.log._commits.meanings import GROUPS_LOG
from curp.log._engine import NewLog
from rifl._stores.redis.address import RedisAddress
from sharedlog._engines.owner import Home
from sharedlog._engines.redis.engine import RedisEngine

FORMAT = 2
# Keys of format 1, beside its control hash.
_OLDER = ("log", "metadata")


def open_redis(
    address: RedisAddress,
    group: str,
    *,
    replicas: int = 0,
    new: NewLog | None = None,
    read_only: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> RedisEngine:
    """Open a group's log, or create it. Raises errors of the shared log, and ``OlderFormat``."""
    return RedisEngine(
        address,
        group,
        replicas=replicas,
        new=None if new is None else first_keys(new),
        removed=0 if new is None else new.trimmed,
        read_only=read_only,
        # The head is where format 1 has its own: nobody makes one log beside the other.
        home=Home(GROUPS_LOG, f"curp:{{{group}}}:", "control", FORMAT, _OLDER),
        clock=clock,
    )
