"""Letting time pass in a Redis store: its clock cannot be told, so its dates are moved."""

from __future__ import annotations

from typing import Any

__all__ = ["left_of", "let_pass", "sweep"]

# What a call in progress knows of its age.
_AGE = """
for _, member in ipairs(redis.call('HKEYS', KEYS[1])) do
  local attempt = cmsgpack.unpack(redis.call('HGET', KEYS[1], member))
  attempt.c = attempt.c - tonumber(ARGV[1])
  redis.call('HSET', KEYS[1], member, cmsgpack.pack(attempt))
end
"""


def let_pass(store: Any, seconds: float) -> None:
    """Move whatever has to do with the retention of keys into the past."""
    backend, passed_ms = store._redis, int(seconds * 1000)
    redis = backend.clients.blocking
    for member in redis.zrange(backend.key("ends"), 0, -1):
        base = backend.base(int(member))
        redis.zincrby(backend.key("ends"), -passed_ms, member)
        if redis.hexists(base + "client", "look"):
            redis.hincrby(base + "client", "look", -passed_ms)
        for key, ends in redis.zrange(base + "ends", 0, -1, withscores=True):
            # Below zero it is how long, and not counted yet.
            if ends >= 0:
                redis.zincrby(base + "ends", -passed_ms, key)
        redis.eval(_AGE, 1, base + "run", passed_ms)


def sweep(store: Any, seconds: float = 0.0) -> None:
    """Sweep after so much time."""
    let_pass(store, seconds)
    store.expire_keys()


def left_of(store: Any, client_id: int) -> list[bytes]:
    """Return the keys that Redis has of a client or namespace."""
    backend = store._redis
    return sorted(backend.clients.blocking.scan_iter(backend.base(client_id) + "*", count=10_000))
