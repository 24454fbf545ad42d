"""Groups' logs in Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from _rifl_ground.redis.address import RedisAddress
from curp.log._commits.keys import FORMAT, first_keys
from curp.log._owner import GROUPS
from curp.log._values import NewLog
from sharedlog._engines.owner import Home
from sharedlog._engines.redis.engine import RedisEngine

if TYPE_CHECKING:
    from _rifl_ground.findings import Checkup


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
        home=_home(group),
        clock=clock,
    )


def examine_redis(address: RedisAddress, group: str, replicas: int) -> Checkup:
    """Look at a group's log by the checks of its opening; only reads."""
    from sharedlog._engines.redis import doctor

    return doctor.examine_log(address, group, replicas, _home(group))


def _home(group: str) -> Home:
    return Home(GROUPS, f"curp:{{{group}}}:", FORMAT)
