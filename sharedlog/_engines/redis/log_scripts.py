"""The Lua scripts of a log, in ``scripts`` beside this module."""

from __future__ import annotations

from importlib.resources import files

from _rifl_ground.redis.lua import Script

_DIRECTORY = files("sharedlog._engines.redis") / "scripts"


def _script(name: str, *, writes: bool) -> Script:
    return Script(_DIRECTORY, ("prelude", name), writes=writes, counts=(b"ok", b"refused"))


OPEN = Script(_DIRECTORY, ("open",), writes=True, opens=True)
COMMIT = _script("commit", writes=True)
REMOVE = _script("remove", writes=True)
DOOMED = _script("doomed", writes=False)
GET = _script("get", writes=False)
REMAINING = _script("remaining", writes=False)
READ = _script("read", writes=False)
SCAN = _script("scan", writes=False)
STATUS = _script("status", writes=False)

ALL = (OPEN, COMMIT, REMOVE, DOOMED, GET, REMAINING, READ, SCAN, STATUS)
