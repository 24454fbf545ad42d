"""Creation of a log: explicitly, once, and under an id that no other log has."""

from __future__ import annotations

import os
from collections.abc import Callable

from curp.log._commits import GroupLog
from curp.log._errors import CorruptLog
from curp.log._opening import open_engine
from curp.log._values import NewLog

# What witnesses and clients know the log by, in its metadata.
LOG_ID_KEY = "curp-store"
_ID_BYTES = 8


def create_log(url: str) -> int:
    """Create the empty log of a new group, as ``curp init`` does, and return its id.

    Nothing else creates a log: ``open_engine`` raises ``NoSuchLog`` for one that does not
    exist (any more), so that a group never starts over by itself. Raises ``LogExists`` if
    there is one. After a ``LogUnavailable`` an empty log may have been created.
    """
    new = new_log()
    open_engine(url, new=new).close()
    return int.from_bytes(new.metadata[LOG_ID_KEY])


def new_log(random_bytes: Callable[[int], bytes] = os.urandom) -> NewLog:
    """Return what a new group's log is created with: an id of its own."""
    # Not 0, which stands for none.
    drawn = int.from_bytes(random_bytes(_ID_BYTES)) or 1
    return NewLog({LOG_ID_KEY: drawn.to_bytes(_ID_BYTES)})


def log_id(engine: GroupLog) -> int:
    """Return the log's id. Raises ``LogError``, ``CorruptLog`` for a log that lost it."""
    found = engine.metadata(LOG_ID_KEY)
    if found is None:
        raise CorruptLog("the log has no id, which it was created with: it is damaged")
    return int.from_bytes(found)
