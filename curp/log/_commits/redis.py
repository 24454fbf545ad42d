"""Groups' logs in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable

from _rifl_ground.redis.address import RedisAddress
from curp.log._commits.keys import FORMAT, first_keys
from curp.log._owner import GROUPS
from curp.log._values import NewLog
from sharedlog._engines.owner import Home
from sharedlog._engines.redis.engine import RedisEngine


def open_redis(
    address: RedisAddress,
    group: str,
    *,
    replicas: int = 0,
    new: NewLog | None = None,
    read_only: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> RedisEngine:
    """Open a group's log, or create it. Raises errors of the shared log."""
    return RedisEngine(
        address,
        group,
        replicas=replicas,
        new=None if new is None else first_keys(new),
        removed=0 if new is None else new.trimmed,
        read_only=read_only,
        home=Home(GROUPS, f"curp:{{{group}}}:", FORMAT),
        clock=clock,
    )
