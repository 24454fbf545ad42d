"""The events of a consumer's process about its shards: log lines and calls of observers."""

from __future__ import annotations

from collections.abc import Sequence

from _rifl_ground.log import get_logger
from sharedlog._consumer.observing import Watchers
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.observer import HandlingReport
from sharedlog._core.consumer.shard import Shard

_log = get_logger("sharedlog")


class ConsumerEvents:
    """Of one consumer, in one process."""

    def __init__(self, log: str, consumer: str, watchers: Watchers) -> None:
        """``log``: its name in events."""
        self._said = {"log": log, "consumer": consumer}
        self._consumer = consumer
        self._watchers = watchers

    def took_over(self, shard: Shard, gone: Gone) -> None:
        """The process goes on with a shard; ``gone``: what became of who had it."""
        _log.info(
            "consumer_took_over",
            **self._said,
            shard=shard.tag,
            number=shard.fence.number,
            gone=gone.name.lower(),
            position=_place(shard),
        )
        self._watchers.each("took_over", self._consumer, shard.tag, gone is not Gone.LEFT)

    def lost(self, tag: str, why: str) -> None:
        """Another process has a shard."""
        self.goes_on(tag)
        _log.warning("consumer_lost_shard", **self._said, shard=tag, why=why)

    def failed(self, shard: Shard, failed: Failed) -> None:
        """A handler raised."""
        _log.warning(
            "consumer_failed",
            **self._said,
            shard=shard.tag,
            attempts=shard.checkpoint.attempts,
            error=failed.why,
        )
        self._watchers.each("failed", self._consumer, shard.tag)

    def timer_failed(self, shard: Shard, failed: Failed) -> None:
        """The function of a timer raised, or its transaction was not committed."""
        _log.warning("consumer_timer_failed", **self._said, shard=shard.tag, error=failed.why)

    def buried(self, shard: Shard) -> None:
        """A message is among the dead letters."""
        _log.error("consumer_buried", **self._said, shard=shard.tag, position=_place(shard))
        self._watchers.each("buried", self._consumer, shard.tag)

    def stopped(self, shard: Shard, why: str) -> None:
        """A shard stops: no process takes it until an operator resumes it."""
        self.goes_on(shard.tag)
        _log.critical("consumer_stopped", **self._said, shard=shard.tag, why=why)
        self._watchers.each("stopped", self._consumer, shard.tag)

    def committed(self, reports: Sequence[HandlingReport]) -> None:
        """A transaction is committed: for who watches."""
        self._watchers.each("committed", reports)

    def retries(self, tag: str, seconds: float, error: str) -> None:
        """A shard is tried again for more than a minute."""
        told = {"seconds": round(seconds), "error": error}
        _log.error("consumer_retries", **self._said, shard=tag, **told)
        self._watchers.each("retrying", self._consumer, tag, seconds, error)

    def goes_on(self, tag: str) -> None:
        """It is not, any more, by this process."""
        self._watchers.each("retrying", self._consumer, tag, 0.0, "")

    def waits(self, tag: str, error: str) -> None:
        """Log or store do not answer; ``tag``: of the shard that waits, empty: the process."""
        _log.warning("consumer_waits", **self._said, shard=tag, error=error)


def _place(shard: Shard) -> str:
    return str(shard.checkpoint.position or "")
