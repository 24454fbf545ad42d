"""The log in Redis: replicas on several machines (DESIGN §7).

- ``engine``: the log, by ``scripts`` (``scripts/``, in Lua) over a ``connection``.
- ``settings``: what the server's mean for a log; ``snapshots``.
"""

from __future__ import annotations

from curp.log._redis.engine import RedisEngine

__all__ = ["RedisEngine"]
