"""The Lua scripts of the Redis store: each protocol rule once, beside this module."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_DIRECTORY = files("rifl._stores.redis") / "scripts"


class Script:
    """A script's text, the prelude before it, and the name Redis keeps it under."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, *, prelude: bool = True) -> None:
        self.name = name
        parts = ("prelude", name) if prelude else (name,)
        self.text = "\n".join((_DIRECTORY / f"{part}.lua").read_text("utf-8") for part in parts)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("accept")
CLAIM = Script("claim")
FINISH = Script("finish")
LEASE = Script("lease")
LEASES = Script("leases")
BEAT = Script("beat")
ENDS = Script("ends")
EXPIRE = Script("expire")
LOOK = Script("look")
OPEN = Script("open")
RELEASE = Script("release")
RIGHTS = Script("rights", prelude=False)
ROWS = Script("rows")
SESSION = Script("session")
SETTLE = Script("settle")

# What servers run; LOOK is asked by people, as another user if they like.
SERVING = (BEAT, CLAIM, ENDS, EXPIRE, FINISH, LEASE, LEASES, OPEN, RELEASE, ROWS, SESSION)
