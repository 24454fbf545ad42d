"""The Lua scripts of the Redis store: each protocol rule once, beside this module."""

from __future__ import annotations

from importlib.resources import files

from _rifl_ground.redis.lua import Script

_DIRECTORY = files("rifl._stores.redis") / "scripts"


def _script(name: str, *before: str) -> Script:
    return Script(_DIRECTORY, ("prelude", *before, name))


ACCEPT = _script("accept")
CLAIM = _script("claim", "acknowledging")
FINISH = _script("finish")
FINISH_UNCLAIMED = _script("finish_unclaimed", "acknowledging")
LEASE = _script("lease", "acknowledging")
LEASES = _script("leases")
BEAT = _script("beat")
ENDS = _script("ends")
EXPIRE = _script("expire")
LOOK = _script("look")
OPEN = _script("open")
RELEASE = _script("release")
ROWS = _script("rows")
SESSION = _script("session")
SETTLE = _script("settle")

# What servers run; LOOK is asked by people, as another user if they like.
SERVING = (
    *(BEAT, CLAIM, ENDS, EXPIRE, FINISH, FINISH_UNCLAIMED),
    *(LEASE, LEASES, OPEN, RELEASE, ROWS, SESSION),
)
