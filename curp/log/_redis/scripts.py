"""The Lua scripts of a log in Redis, beside this module."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_DIRECTORY = files("curp.log._redis") / "scripts"


class Script:
    """A script's text, the prelude before it, and the name Redis keeps it under.

    ``writes``: it may write; others may be asked again when a reply is lost.
    """

    __slots__ = ("sha", "text", "writes")

    def __init__(self, name: str, *, writes: bool, prelude: bool = True) -> None:
        parts = ("prelude", name) if prelude else (name,)
        self.text = "\n".join((_DIRECTORY / f"{part}.lua").read_text("utf-8") for part in parts)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self.writes = writes


OPEN = Script("open", writes=True, prelude=False)
APPEND = Script("append", writes=True)
LEAD = Script("lead", writes=True)
PUT = Script("put", writes=True)
TRIM = Script("trim", writes=True)
REMOVE = Script("remove", writes=True)
SNAPSHOT = Script("snapshot", writes=True)
READ = Script("read", writes=False)
STATUS = Script("status", writes=False)
DOOMED = Script("doomed", writes=False)
LOAD = Script("load", writes=False)
KEYS = Script("keys", writes=False)

# What a replica runs; KEYS is only for copying a log.
SERVING = (OPEN, APPEND, LEAD, PUT, TRIM, REMOVE, SNAPSHOT, READ, STATUS, DOOMED, LOAD)
