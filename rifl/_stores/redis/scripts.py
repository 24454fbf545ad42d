"""The Lua scripts of the Redis store: each protocol rule once, beside this module."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_DIRECTORY = files("rifl._stores.redis") / "scripts"


class Script:
    """A script's text, after what it shares with others, and the name Redis keeps it under."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, *, after: tuple[str, ...] = ("prelude",)) -> None:
        self.name = name
        parts = [(_DIRECTORY / f"{part}.lua").read_text("utf-8") for part in (*after, name)]
        self.text = "\n".join(parts)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("accept")
CLAIM = Script("claim", after=("prelude", "acknowledging"))
FINISH = Script("finish")
FINISH_UNCLAIMED = Script("finish_unclaimed", after=("prelude", "acknowledging"))
LEASE = Script("lease")
LEASES = Script("leases")
BEAT = Script("beat")
ENDS = Script("ends")
EXPIRE = Script("expire")
LOOK = Script("look")
OPEN = Script("open")
RELEASE = Script("release")
ROWS = Script("rows")
SESSION = Script("session")
SETTLE = Script("settle")

# What servers run; LOOK is asked by people, as another user if they like.
SERVING = (
    *(BEAT, CLAIM, ENDS, EXPIRE, FINISH, FINISH_UNCLAIMED),
    *(LEASE, LEASES, OPEN, RELEASE, ROWS, SESSION),
)
