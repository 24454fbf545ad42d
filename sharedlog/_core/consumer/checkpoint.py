"""The checkpoint of a shard: the row of it that a consumer's store keeps (DESIGN-LOG §14)."""

from __future__ import annotations

from typing import NamedTuple

from sharedlog._core.consumer.members import Gone
from sharedlog._core.position import Position


class Checkpoint(NamedTuple):
    """What the effects in the store are the effects of, written in the commit that wrote them.

    ``number``: the fence's; who writes it has that number, or is refused. ``position``: through
    which message its effects are there; None: through none. ``seq``: of the newest outputs, as the
    shard's name has them in the log; ``intent``: these outputs. Since ``position`` has been there:
    ``attempts`` of the message behind it that were begun alone, and ``takeovers``: 0 where each
    process has left the shard, else 1, and 1 more for each attempt that was noted when another
    process took the shard, and nothing proved that the one before had ended. ``broken``: why the
    store could do but a part of the next transaction, which no rollback takes back: an operator
    looks. ``epoch``: of the operator's last reset that it knows.
    """

    number: int
    position: Position | None = None
    seq: int = 0
    intent: bytes = b""
    takeovers: int = 0
    attempts: int = 0
    broken: str = ""
    epoch: int = 0

    @property
    def interrupted(self) -> int:
        """How many of the attempts another process has interrupted, as far as is known."""
        return max(0, self.takeovers - 1)

    def taken(self, gone: Gone, *, anew: bool) -> Checkpoint:
        """Return the checkpoint after a process has taken the shard."""
        if anew:
            return self._replace(takeovers=0, attempts=0)
        if gone is Gone.LEFT:
            return self
        interrupted = gone is Gone.TAKEN and self.attempts > 0
        return self._replace(takeovers=max(1, self.takeovers) + interrupted)
