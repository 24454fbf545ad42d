"""The turns of owned shards: what is carried out for one before others have theirs."""

from __future__ import annotations

from collections.abc import Callable

from sharedlog._consumer.carrying import Carrier
from sharedlog._consumer.events import ConsumerEvents
from sharedlog._consumer.owned import OwnedShard
from sharedlog._consumer.settling import Settling
from sharedlog._consumer.sharing import ConsumerSettings, Sharing
from sharedlog._core.consumer.holding import move_holds
from sharedlog._core.consumer.members import Gone, stop, take
from sharedlog._core.consumer.operating import Told, tell, told_of
from sharedlog._core.consumer.reconciling import check_given
from sharedlog._core.consumer.shard import Shard, Turned
from sharedlog._core.errors import Fenced, LogStopped, LogUnavailable, StoreAway


class Turning:
    """Has shards take their turns, one after the other, by one carrier. One thread."""

    def __init__(
        self,
        settings: ConsumerSettings,
        who: str,
        carrier: Carrier,
        settling: Settling,
        sharing: Sharing,
        events: ConsumerEvents,
        clock: Callable[[], float],
        ended: Callable[[str], bool],
    ) -> None:
        """``who``: the process, among the consumer's; ``ended``: whether another one has ended."""
        self._ended = ended
        self._carrier = carrier
        self._settings = settings
        self._who = who
        self._settling = settling
        self._sharing = sharing
        self._events = events
        self._clock = clock

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that this belongs to."""
        return self._carrier.inherited

    def turn(self, own: OwnedShard, tail: int | None = None) -> int:
        """Have a shard take its turn, of one transaction; messages done.

        ``tail``: as ``Shard.turn`` has it.
        Raises what no further try mends, as ``Work.round``.
        """
        shard, now_s = own.shard, self._clock()
        # T3: its next transaction begins once the log has what it owes.
        if now_s < own.not_before_s or own.settles:
            return 0
        try:
            if own.settled():
                self._kept(own, now_s, idle=False)
            if own.moves and own.done is not None:
                self._carrier.carry(move_holds([own.done], self._settings.now_us()))
            own.moves = False
            if not self._ready(own):
                return 0
            # Of both there is always one that follows the other.
            own.fired = not own.fired and self._fire(own, now_s)
            if own.fired:
                return 0
            turned = self._carrier.carry(shard.turn(tail))
            if turned.done:
                self._settling.begin(own, self._carrier.carry)
            if own.settling is None:
                self._kept(own, now_s, idle=not turned.done and turned.failed is None)
            self._tell(own, turned)
            if turned.stops:
                self._stop(own, turned.stops)
        except Fenced as error:
            self._fenced(shard, error)
            return 0
        except LogStopped:
            raise
        except (LogUnavailable, StoreAway) as error:
            # The store may have this lease's number: it is taken over with the next one.
            own.lease = None
            self._waits(own, str(error))
            self._retries(own, str(error))
            return 0
        self._told(own, turned)
        return turned.done

    def _fire(self, own: OwnedShard, now_s: float) -> bool:
        """Run a timer that is due; one that fails is due again after its time."""
        for timer, every_s in enumerate(self._carrier.timers):
            if own.due(timer, every_s, now_s):
                failed = self._carrier.carry(own.shard.fire(timer))
                if failed is None:
                    self._settling.begin(own, self._carrier.carry)
                    return True
                self._events.timer_failed(own.shard, failed)
                if failed.ends is not None:
                    raise failed.ends
        return False

    def _fenced(self, shard: Shard, error: Fenced) -> None:
        """Another one took over: by a number of this log's, or it is not the store's log."""
        try:
            self._carrier.carry(check_given(shard.fence, error.number))
        except LogStopped:
            raise
        except LogUnavailable as away:
            self._sharing.unavailable(away)
        self._sharing.drop(shard.tag, str(error))

    def _ready(self, own: OwnedShard) -> bool:
        """Take the shard over, if that must come before anything else (T1, T5)."""
        shard, settings = own.shard, self._settings
        if own.lease is None and not shard.sure:
            # A commit was not answered: this process succeeds itself.
            own.lease = self._carrier.carry(take(settings.name, shard.tag, self._who))
            if own.lease is None:
                self._sharing.drop(shard.tag, "another one has it")
                return False
        if own.lease is not None:
            before = own.lease.before
            ended = bool(before) and self._ended(before)
            gone = Gone.DIED if ended else Gone.TAKEN if before else Gone.LEFT
            taking = shard.take_over(
                own.lease, gone, self._settings.now_us(), settings.retention_us
            )
            self._carrier.carry(taking)
            own.lease = None
            own.done = shard.done
            self._events.took_over(shard, gone)
        return True

    def _tell(self, own: OwnedShard, turned: Turned) -> None:
        """Have the log tell what fails, and what became a dead letter: for who looks."""
        failed = turned.failed
        if turned.stops or (failed is None and not turned.done) or (failed and not failed.counts):
            return
        self._say(own, "" if failed is None else failed.why, buried=turned.buried)

    def _say(self, own: OwnedShard, why: str, *, buried: bool = False) -> None:
        name, tag = self._settings.name, own.shard.tag
        if own.told is None:
            own.told = self._carrier.carry(told_of(name)).get(tag, Told())
        letters = own.told.dead_letters + buried
        since_us = own.since_us if why and own.failures else 0
        told = Told(own.shard.checkpoint.attempts, why, letters, since_us)
        if told != own.told:
            self._carrier.carry(tell(name, tag, own.shard.fence, told))
            own.told = told

    def _retries(self, own: OwnedShard, why: str) -> None:
        """Tell of what is tried again for more than a minute; else it looks healthy."""
        if not (seconds := own.retries_for_s):
            return
        self._events.retries(own.shard.tag, seconds, why)
        try:
            self._say(own, why)
        except LogStopped:
            raise
        except LogUnavailable as error:
            # It is told at a later try.
            self._sharing.unavailable(error)

    def _stop(self, own: OwnedShard, why: str) -> None:
        """Stop a shard; if the log does not answer, its next turn does the same."""
        shard = own.shard
        # No process moves it until an operator resumes the shard: what is done can be trimmed.
        self._carrier.carry(move_holds([shard.done], self._settings.now_us()))
        self._carrier.carry(stop(self._settings.name, shard.tag, self._who, shard.fence, why))
        self._sharing.owned.pop(shard.tag, None)
        self._events.stopped(shard, why)

    def _told(self, own: OwnedShard, turned: Turned) -> None:
        shard, failed = own.shard, turned.failed
        if turned.stops:
            return
        if failed is not None:
            if failed.counts:
                self._events.failed(shard, failed)
                own.failed(self._clock())
            else:
                self._waits(own, failed.why)
            self._retries(own, failed.why)
            if failed.ends is not None and shard.checkpoint.attempts:
                # Noted: it counts in whatever process comes next.
                raise failed.ends
        else:
            if own.retries_for_s:
                self._events.goes_on(shard.tag)
            own.failures = 0
            if turned.buried:
                self._events.buried(shard)
            elif turned.done and self._carrier.ran:
                self._events.committed(self._carrier.ran[: turned.done])

    def _kept(self, own: OwnedShard, now_s: float, *, idle: bool) -> None:
        """Have the log know what is done, now and then."""
        if own.passes(self._settings.pass_s, now_s):
            self._carrier.carry(own.shard.pass_by(self._settings.now_us(), idle=idle))
        own.done = own.shard.done
        own.busy = self._carrier.carry(own.shard.tend(self._settings.now_us()))

    def _waits(self, own: OwnedShard, why: str) -> None:
        own.failed(self._clock())
        self._events.waits(own.shard.tag, why)
