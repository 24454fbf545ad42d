"""Turns on connections that are the application's: one thread at a time uses each."""

from __future__ import annotations

import weakref

from _rifl_ground.owned_lock import OwnedLock
from sharedlog._core.errors import ReentrantUse


class Turns:
    """What is held during a use of a connection; refuses a use within one. Any thread."""

    def __init__(self) -> None:
        self._gate = OwnedLock(ReentrantUse)
        # By connection, while it is used here: SQLite's take no weak references.
        self._used: weakref.WeakValueDictionary[int, OwnedLock] = weakref.WeakValueDictionary()

    def of(self, connection: object) -> OwnedLock:
        """Return what is held during the turn on a connection."""
        with self._gate:
            return self._used.setdefault(id(connection), OwnedLock(ReentrantUse))
