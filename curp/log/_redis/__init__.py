"""The log in Redis: replicas on several machines (DESIGN §7)."""

from __future__ import annotations

from curp.log._redis.engine import RedisEngine

__all__ = ["RedisEngine"]
