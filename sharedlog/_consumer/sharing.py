"""The sharing of a consumer's shards: which of them this process has (DESIGN-LOG §14, T1)."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sharedlog._consumer.carrying import Carrier
from sharedlog._consumer.events import ConsumerEvents
from sharedlog._consumer.membership import Membership
from sharedlog._consumer.owned import OwnedShard
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.consumer.holding import Begins, move_holds
from sharedlog._core.consumer.in_log import InLog
from sharedlog._core.consumer.keeping import InStore, Keeper
from sharedlog._core.consumer.members import (
    LONGEST_LEASE_S,
    Plan,
    ShardLease,
    leave,
    look,
    plan,
    take,
)
from sharedlog._core.consumer.shard import Shard, TransactionBounds
from sharedlog._core.errors import Fenced, LogError, LogUnavailable
from sharedlog._engines.engine import Stirring
from sharedlog._log.place import Place


class Standbys:
    """Of one process. Nothing that it reads decides anything: who takes a shard over reads on."""

    def __init__(self, place: Place, name: str, carrier: Carrier, *, warm: bool) -> None:
        """``name``: the consumer's; ``warm``: whether others' are followed at all."""
        self._place = place
        self._name = name
        self._carrier = carrier
        self._warm = warm
        self._logs: dict[str, Changelog] = {}

    def of(self, tag: str) -> Changelog:
        """Return the change log of a shard; from now on the shard's owner reads it further."""
        found = self._logs.get(tag)
        if found is None:
            place = self._place
            found = Changelog(self._name, tag, place.incarnation, place.seals)
            self._logs[tag] = found
        return found

    def follow(self, tags: Collection[str], owned: Collection[str]) -> bool:
        """Read on in the shards of others; whether there may be more at once.

        A piece of each. What the log does not answer is read the next time.
        """
        for each in set(self._logs) - set(owned):
            if not self._warm:
                del self._logs[each]
        if not self._warm:
            return False
        more = False
        for tag in tags:
            if tag not in owned:
                try:
                    more |= self._carrier.carry(self.of(tag).read())
                except LogUnavailable:
                    return False
        return more


# Of a lease: what renews it is late by less.
_OVER = 1.2
# It looks so often who has what where an engine tells of no change.
_SURE_S = 2.0


class ConsumerSettings(NamedTuple):
    """What a consumer was told. ``begins``: by tag, where a new one does; ``look_s``: between two
    looks at who has what.

    ``keeper``: by what its shards commit, unless ``in_log``: the log has its state; ``standby``:
    also the state of shards which others have is here. ``now_us``: the wall clock. ``pass_s``: how
    often checkpoints are moved when there is no other work.
    """

    name: str
    tags: Sequence[str]
    retention_us: int
    bounds: TransactionBounds
    begins: Mapping[str, Begins]
    look_s: float
    in_log: bool
    keeper: type[InStore]
    standby: bool
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    pass_s: float = 10.0


class Sharing:
    """The shards that this process has, by tag, in ``owned``. One thread."""

    def __init__(
        self,
        place: Place,
        settings: ConsumerSettings,
        membership: Membership,
        carrier: Carrier,
        events: ConsumerEvents,
        clock: Callable[[], float],
    ) -> None:
        """It has none yet."""
        self.owned: dict[str, OwnedShard] = {}
        self.standbys = Standbys(place, settings.name, carrier, warm=settings.standby)
        # Its standbys have more to read at once.
        self.behind = False
        # Some shard was free, and then was not.
        self.wants = True
        self._place = place
        self._settings = settings
        self._membership = membership
        self._carrier = carrier
        self._events = events
        self._clock = clock
        self._looked_s: float | None = None
        # What the engine had told before it looked last, and there was nothing to do; and when.
        self._stirs: int | None = None
        self._seen_s = -math.inf

    @property
    def due_s(self) -> float:
        """In how many seconds it is time to look who has what."""
        if self._looked_s is None:
            return 0.0
        return self._settings.look_s - (self._clock() - self._looked_s)

    def look(self) -> None:
        """Share the shards where it is time to, and follow the states of others'."""
        due = self.due_s <= 0
        if due:
            self.share()
        if due or self.behind:
            self.behind = self._follow()

    def share(self) -> None:
        """Look who has what, give up what is too much, and take what is free."""
        self._looked_s = now_s = self._clock()
        engine, name, who = self._place.engine, self._settings.name, self._membership.who
        stirs = engine.stirs if isinstance(engine, Stirring) else None
        if stirs is not None and stirs == self._stirs and now_s - self._seen_s < _SURE_S:
            return
        self._stirs, self._seen_s = None, now_s
        try:
            seen = self._carrier.carry(look(name))
            owned = dict(self.owned)
            planned = plan(seen, who, self._settings.tags, owned)
            # What runs is left alone until its turn is over.
            running = {tag for tag, own in owned.items() if own.runs}
            for tag, own in owned.items():
                own.leaves = tag in planned.leave
            for tag in planned.lost:
                if tag not in running:
                    self.drop(tag, "another one has it")
            for tag in planned.leave:
                if tag not in running:
                    self._leave(tag)
            self.wants = False
            if planned == Plan([], [], []):
                self._stirs = stirs
            for tag in planned.take:
                lease = None if tag in running else self._carrier.carry(take(name, tag, who))
                if lease is None:
                    self.wants = True
                else:
                    self._begin(tag, lease)
        except LogUnavailable as error:
            self.unavailable(error)

    def await_dead(self, closing: threading.Event, lease_s: float) -> None:
        """Wait until other processes are gone, or a lease is over, which those renew that live."""
        end = self._clock() + _OVER * max(lease_s, LONGEST_LEASE_S)
        while self._clock() < end and not closing.is_set():
            others = set(self._carrier.carry(look(self._settings.name)).members)
            if not others - {self._membership.who}:
                return
            closing.wait(lease_s / 10)

    def end(self) -> None:
        """Give up all shards; what the log cannot be told, others find out in time."""
        for tag in sorted(self.owned):
            try:
                self._leave(tag)
            except LogError as error:
                self.unavailable(error)
                return

    def drop(self, tag: str, why: str) -> None:
        """A shard is no longer this process's."""
        if self.owned.pop(tag, None) is not None:
            self._events.lost(tag, why)

    def unavailable(self, error: LogError) -> None:
        """The log does not answer: it is asked again."""
        self._events.waits("", str(error))

    def _begin(self, tag: str, lease: ShardLease) -> None:
        own = self.owned.get(tag)
        if own is None:
            settings = self._settings
            shard = Shard(
                settings.name,
                tag,
                self._place.incarnation,
                settings.bounds,
                settings.begins[tag],
                self._keeper(tag),
            )
            self.owned[tag] = OwnedShard(shard, lease)
        else:
            own.lease = lease

    def _keeper(self, tag: str) -> Keeper:
        name, incarnation, bounds = (
            self._settings.name,
            self._place.incarnation,
            self._carrier.bounds,
        )
        if not self._settings.in_log:
            kind = self._settings.keeper
            return kind(name, tag, incarnation, bounds, secrets.token_bytes)
        changelog = self.standbys.of(tag)
        return InLog(name, tag, incarnation, bounds, secrets.token_bytes, changelog)

    def _follow(self) -> bool:
        """Keep the states warm of what others have; whether there may be more at once."""
        if not self._settings.in_log:
            return False
        return self.standbys.follow(self._settings.tags, self.owned)

    def _leave(self, tag: str) -> None:
        """Give a shard up: another one has it at once. What it owes was appended, or will be."""
        # There is none where the answer to the step was lost that has taken it.
        own = self.owned.get(tag)
        if own is not None and own.lease is None and own.shard.sure:
            try:
                own.settled()
                self._carrier.carry(own.shard.settle())
                self._carrier.carry(move_holds([own.shard.done], self._settings.now_us()))
            except Fenced as error:
                self.drop(tag, str(error))
                return
            except LogUnavailable as error:
                # The process that takes it over does so, before anything else (T1).
                self.unavailable(error)
        self._carrier.carry(leave(self._settings.name, tag, self._membership.who))
        self.owned.pop(tag, None)
        self._events.goes_on(tag)
