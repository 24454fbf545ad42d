"""The work of one process of a consumer: its shards, turn after turn (DESIGN-LOG §14)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sharedlog._consumer.carrying import Carrier
from sharedlog._consumer.events import ConsumerEvents
from sharedlog._consumer.evidence import abandon, has_ended
from sharedlog._consumer.lanes import Lanes
from sharedlog._consumer.membership import Membership
from sharedlog._consumer.owned import OwnedShard
from sharedlog._consumer.settling import Settling
from sharedlog._consumer.sharing import ConsumerSettings, Sharing
from sharedlog._consumer.turning import Turning
from sharedlog._core.consumer.holding import Done, move_holds
from sharedlog._core.errors import LogStopped, LogUnavailable
from sharedlog._log.place import Place

# How often holds are moved.
_HELD_S = 0.5
# How soon the thread that shares shards looks at something else.
_SLICE_S = 0.1


class ShardWork:
    """The shards that one process has. One thread."""

    def __init__(
        self,
        place: Place,
        settings: ConsumerSettings,
        membership: Membership,
        carrier: Carrier,
        settling: Settling,
        *,
        clock: Callable[[], float] = time.monotonic,
        lanes: Sequence[Carrier] = (),
        ended: Callable[[str], bool] = has_ended,
    ) -> None:
        """It has none yet.

        ``lanes``: the carriers of shards that take their turns at once; ``carrier`` is for the
        rest, then.
        """
        self._place = place
        self._membership = membership
        self.carrier = self._carrier = carrier
        self._settling = settling
        self._clock = clock
        self._now_us = settings.now_us
        events = ConsumerEvents(place.name, settings.name, carrier.watchers)
        self.sharing = Sharing(place, settings, membership, carrier, events, clock)
        self._own = self.sharing.owned
        turnings = [
            Turning(settings, membership.who, each, settling, self.sharing, events, clock, ended)
            for each in lanes or (carrier,)
        ]
        self._turning = turnings[0]
        self._lanes = Lanes(turnings, self._own) if lanes else None
        self._done = 0
        self._held_s = 0.0

    @property
    def done(self) -> int:
        """Messages whose effects this process has committed."""
        return self._done if self._lanes is None else self._lanes.done

    @property
    def shards(self) -> list[str]:
        """The tags of those that it has."""
        return sorted(self._own)

    def round(self, tail: int | None = None) -> int:
        """Share the shards where it is time to, and have each take a turn; messages done.

        ``tail``: where the log ended a moment ago, if that is known: no shard reads up to there
        again.
        Where there are lanes these go on by themselves: none, and it is time to wait.

        Raises what no further try mends: ``StoreWentBack``, ``LogForked``, ``TrimmedLog``,
        ``CorruptLog``, ``LogStopped``, and ``InvalidRequest`` for a consumer that follows other
        streams by now.
        """
        if self._membership.error is not None:
            raise self._membership.error
        if self._lanes is not None:
            return self._round_of(self._lanes)
        self.sharing.look()
        done = self._turns(tail)
        while not done and self._settling.wait(self._at_work()):
            done = self._turns()
        self._move_holds()
        return done

    def _round_of(self, lanes: Lanes) -> int:
        lanes.check()
        with lanes.still():
            self.sharing.look()
            self._move_holds()
        lanes.offer(self._at_work(), min(self.idle_s(), _SLICE_S))
        lanes.check()
        return 0

    def end_turns(self) -> None:
        """Have no shard take another turn, and wait for those that run; raises what they do."""
        if self._lanes is not None:
            self._lanes.close()
            self._lanes.check()

    def end(self) -> None:
        """Give up all shards, once those that run have ended their turns."""
        if self._lanes is not None:
            self._lanes.close()
        self.sharing.end()

    def idle_s(self) -> float:
        """For how many seconds there is no work but to wait for messages."""
        owned = list(self._own.values())
        if self.sharing.behind or any(own.busy and own.rests for own in owned):
            return 0.0
        now_s = self._clock()
        waits = [self.sharing.due_s]
        if self._lanes is not None or self._carrier.timers:
            # What these have to do is looked for.
            waits.append(_SLICE_S)
        waits += [each for own in owned if (each := own.not_before_s - now_s) > 0]
        return max(0.0, min(waits))

    @property
    def through(self) -> int:
        """Through which LSN all shards have read that are not left alone for a while."""
        return min([own.shard.through for own in self._at_work() if own.ready], default=-1)

    def caught_up(self, tail: int) -> bool:
        """Whether all is done through an LSN that is this process's to do."""
        return not self.sharing.wants and all(
            own.rests
            and own.lease is None
            and own.settling is None
            and own.shard.sure
            and not own.failures
            and not own.busy
            and not own.shard.waiting
            and own.shard.through >= tail
            for own in list(self._own.values())
        )

    @property
    def tail(self) -> int:
        """The LSN of the log's last entry."""
        return self._place.engine.tail()

    def abandon(self) -> None:
        """Give nothing up: it is as if the process had died."""
        abandon(self._membership.who)
        self._own.clear()

    def _at_work(self) -> list[OwnedShard]:
        """Return those that are not left alone for a while."""
        now_s = self._clock()
        return [own for own in list(self._own.values()) if own.not_before_s <= now_s]

    def _turns(self, tail: int | None = None) -> int:
        done = sum(self._turning.turn(own, tail) for own in list(self._own.values()))
        self._done += done
        return done

    def _move_holds(self) -> None:
        """Let the log trim what is done, now and then: of all shards in one step."""
        now_s = self._clock()
        if now_s - self._held_s < _HELD_S:
            return
        self._held_s = now_s
        done: list[Done] = []
        # Those that wait before they try again, too: what came before is done.
        for own in list(self._own.values()):
            own.moves = own.runs
            if own.done is not None and not own.runs:
                done.append(own.done)
        try:
            self._carrier.carry(move_holds(done, self._now_us()))
        except LogStopped:
            raise
        except LogUnavailable as error:
            self.sharing.unavailable(error)
