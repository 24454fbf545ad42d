"""The settling of shards: what they owe the log is appended aside, while others take their turns.

A shard's own next transaction begins once that is in the log (DESIGN-LOG §14, T3). Appends of
several shards that meet share a sync of the log's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from sharedlog._consumer.owned import OwnedShard
from sharedlog._core.steps import Rule

_THREADS = 8
# How soon a thread that waits learns of something else.
_SLICE_S = 0.1

Carry = Callable[[Rule[None]], None]


class Settling:
    """Appends what shards owe, in threads of its own. One thread, which has the shards."""

    def __init__(self, aside: Carry | None) -> None:
        """``aside``: carries a rule out in any thread; None: it is done at once."""
        self._aside = aside
        self._pool = None if aside is None else ThreadPoolExecutor(_THREADS, "sharedlog-settling")

    def begin(self, own: OwnedShard, carry: Carry) -> None:
        """Have a shard settle; ``own.settled`` waits for it. ``carry``: carries out what is done
        at once.
        """
        if self._pool is None or self._aside is None or not own.shard.keeper.owes:
            carry(own.shard.settle())
        else:
            own.settling = self._pool.submit(self._aside, own.shard.settle())

    def wait(self, owned: Iterable[OwnedShard]) -> bool:
        """Wait a little until one of these that settle has; False: none did."""
        running = [each.settling for each in owned if each.settling is not None]
        return bool(running and wait(running, _SLICE_S, FIRST_COMPLETED).done)

    def close(self) -> None:
        """Wait for what was begun; idempotent."""
        if self._pool is not None:
            self._pool.shutdown()
