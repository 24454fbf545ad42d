"""The checkpoint of a shard: the row of it that a consumer's store keeps (DESIGN-LOG §14)."""

from __future__ import annotations

from typing import NamedTuple

from sharedlog._core.position import Position


class Checkpoint(NamedTuple):
    """What the effects in the store are the effects of, written in the commit that wrote them.

    ``number``: the fence's; who writes it has that number, or is refused. ``position``: through
    which message its effects are there; None: through none. ``seq``: of the newest outputs, as the
    shard's name has them in the log; ``intent``: these outputs. Since ``position`` has been there:
    ``takeovers``, of shards whose process had died, and ``attempts`` of the message behind it
    that were begun alone. ``broken``: why the store could do but a part of the next transaction,
    which no rollback takes back: an operator looks. ``epoch``: of the operator's last reset that it
    knows.
    """

    number: int
    position: Position | None = None
    seq: int = 0
    intent: bytes = b""
    takeovers: int = 0
    attempts: int = 0
    broken: str = ""
    epoch: int = 0
