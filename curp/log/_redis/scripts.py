"""The Lua scripts of a group's log in Redis, beside this module."""

from __future__ import annotations

from importlib.resources import files

from sharedlog._engines.redis.lua import Script

_DIRECTORY = files("curp.log._redis") / "scripts"


def _script(name: str, *, writes: bool) -> Script:
    return Script(_DIRECTORY, ("prelude", name), writes=writes)


OPEN = Script(_DIRECTORY, ("open",), writes=True, opens=True)
APPEND = _script("append", writes=True)
LEAD = _script("lead", writes=True)
PUT = _script("put", writes=True)
TRIM = _script("trim", writes=True)
REMOVE = _script("remove", writes=True)
SNAPSHOT = _script("snapshot", writes=True)
READ = _script("read", writes=False)
STATUS = _script("status", writes=False)
DOOMED = _script("doomed", writes=False)
LOAD = _script("load", writes=False)
KEYS = _script("keys", writes=False)

# What a replica runs; KEYS is only for copying a log.
SERVING = (OPEN, APPEND, LEAD, PUT, TRIM, REMOVE, SNAPSHOT, READ, STATUS, DOOMED, LOAD)
