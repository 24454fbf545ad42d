"""Redis' errors: which of them count as attempts of a message."""

from __future__ import annotations

import re

import redis

from _rifl_ground.counting import Counts, is_noted
from _rifl_ground.redis.clients import what_was_said
from _rifl_ground.redis.settings import ServerNotDurable as WeakServer

# Not the commands' fault: what is in the way now.
_PASSING = re.compile(
    r"\b(OOM|MISCONF|READONLY|LOADING|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|BUSY)\b"
)
_LOST = redis.WatchError | redis.ConnectionError | redis.TimeoutError | WeakServer


def passes(said: str) -> bool:
    """Whether an error is one of those that pass, by what the server has said."""
    return _PASSING.search(said) is not None


def by_redis(error: BaseException) -> Counts:
    """Judge an error of redis-py's, or of a connection that is ours; others count."""
    if not isinstance(error, redis.RedisError | WeakServer):
        return True
    if not is_noted(error):
        # Another server's.
        return None
    return not (isinstance(error, _LOST) or passes(what_was_said(error)))
