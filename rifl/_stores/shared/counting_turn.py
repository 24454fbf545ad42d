"""The turn to count what is the whole store's: one replica counts for all."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rifl._stores.rows import Move
from rifl._stores.shared.backend import Backend
from rifl._stores.shared.requests import GetRows, MoveRows

# Of the store, beside those of followers: which replica counts, and how often it has.
_ROW = "rifl/counts"
# So many looks after its last count another replica takes over.
MISSED = 4


class CountingTurn:
    """Tells whether this replica counts. One thread at a time; raises ``BackendError``.

    One replica does, while it is among the ``living`` and goes on: a count that hangs or fails is
    another's, though the replica beats. A replica that does not ask has no turn.
    """

    def __init__(self, owner: str, backend: Backend, living: Callable[[], Collection[str]]) -> None:
        self._owner = owner
        self._backend = backend
        self._living = living
        self._row: bytes | None = None
        # For how many looks it has stood still.
        self._still = 0

    def mine(self) -> bool:
        """Look whether this replica counts now, and take over if no other one does."""
        row = self._backend.ask(GetRows((_ROW,))).get(_ROW)
        self._still = self._still + 1 if row == self._row else 0
        self._row = row
        owner = (row or b"").partition(b" ")[0].decode()
        if owner == self._owner:
            return True
        return (owner not in self._living() or self._still >= MISSED) and self.counted()

    def counted(self) -> bool:
        """Say that it has counted, or begins to; False if another replica did meanwhile."""
        count = int((self._row or b"").partition(b" ")[2] or b"0") + 1
        row = b"%s %d" % (self._owner.encode(), count)
        moved: bool = self._backend.ask(MoveRows((Move(_ROW, self._row, row),)))
        if moved:
            self._row = row
        return moved
