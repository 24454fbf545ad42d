"""The calls of handlers that are kept in a store, shard by shard, as far as that is known (T6)."""

from __future__ import annotations

from sharedlog._consumer.calling import Act, carry
from sharedlog._consumer.store import StoreLane
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.calls import Intend, KeepAnswer, ShardCalls, Unanswered, series_of
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.errors import StoreAway


class KeptCalls:
    """The calls of a process's shards. Of each shard one thread at a time.

    ``store``: the lane that the shard is in.
    """

    def __init__(self, name: str, incarnation: str) -> None:
        """``name``: the consumer's."""
        self._name = name
        self._incarnation = incarnation
        self._checkpoints: dict[str, Checkpoint] = {}
        # Of those that are not there it is not known: they are read again.
        self._calls: dict[str, ShardCalls] = {}

    def of(self, tag: str, store: StoreLane) -> ShardCalls:
        """Return the calls of a shard that was taken over, as the store has them."""
        if tag not in self._calls:
            known = self._checkpoints[tag]
            series = series_of(self._name, tag, known.epoch, self._incarnation)
            rows = store.calls(tag)
            self._calls[tag] = ShardCalls(tag, known.number, series, known.position, rows)
        return self._calls[tag]

    def resend(self, tag: str, checkpoint: Checkpoint, store: StoreLane, act: Act) -> None:
        """T6: send again what has no answer, at a take-over; ``StoreAway``: not now."""
        self._checkpoints[tag] = checkpoint
        self._calls.pop(tag, None)
        try:
            carry(self.of(tag, store).resend(), act)
        except Unanswered as away:
            raise StoreAway(f"a service that was called: {away}") from away
        except Failed as failed:
            raise StoreAway(f"the store: {failed.why}") from failed

    def keep(self, step: Intend | KeepAnswer, store: StoreLane) -> None:
        """Keep something of a call; where that fails, what is there is not known."""
        keep = store.intend if isinstance(step, Intend) else store.answered
        try:
            keep(step.tag, step.number, step.call)
        except BaseException:
            self._calls.pop(step.tag, None)
            raise

    def passed(self, tag: str, checkpoint: Checkpoint) -> None:
        """T6: the store has committed a checkpoint, and let the calls of its messages go."""
        self._checkpoints[tag] = checkpoint
        if tag in self._calls and checkpoint.position is not None:
            self._calls[tag].passed(checkpoint.position)
