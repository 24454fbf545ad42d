"""The log in Redis: replicas on several machines (DESIGN §7).

- ``engine``: the log, by ``scripts`` (``scripts/``, in Lua) over a ``connection``.
- ``snapshots``.

How scripts are sent, and what the server's settings mean, is in ``sharedlog._engines.redis``.
"""

from __future__ import annotations

from curp.log._redis.engine import RedisEngine

__all__ = ["RedisEngine"]
