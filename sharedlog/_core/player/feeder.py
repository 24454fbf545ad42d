"""The feeder of one target: its states, its queue, and what it is sent (DESIGN-LOG §15, P3, P4).

Its transitions are those of the model (chaos/model/player.pml), whose names the states have.
Its driver calls its methods one at a time: that is the dispatch lock.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sharedlog._core.player.deaths import Deaths
from sharedlog._core.player.item import Item, Outgoing, Skip
from sharedlog._core.player.trouble import ANSWERS, Cause, Trouble
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import DeliveryKind


class Flight:
    """Of one connection. Times are by a clock that does not jump."""

    def __init__(self) -> None:
        """Nothing is in flight."""
        self._by_tag: dict[str, deque[Item]] = {}
        self.count = 0
        self.size = 0
        # Since when each substream waits for an answer: the last one, or the first message.
        self._since_s: dict[str, float] = {}

    def add(self, item: Item, now_s: float) -> None:
        """It was sent."""
        waiting = self._by_tag.setdefault(item.tag, deque())
        if not waiting:
            self._since_s[item.tag] = now_s
        waiting.append(item)
        self.count += 1
        self.size += item.size

    def done(self, tag: str, place: Position, now_s: float) -> int:
        """It and all before it were answered; how many that were."""
        waiting = self._by_tag.get(tag)
        count = 0
        while waiting and not waiting[0].behind(place):
            self.size -= waiting.popleft().size
            count += 1
        self.count -= count
        self._since_s[tag] = now_s
        return count

    def __iter__(self) -> Iterator[Item]:
        for waiting in self._by_tag.values():
            yield from waiting

    def first(self, tag: str) -> Item | None:
        """Return the one of a substream that is answered next; None: nothing of it was sent."""
        waiting = self._by_tag.get(tag)
        return waiting[0] if waiting else None

    def drop(self, tag: str) -> None:
        """Nothing of a substream is answered any more."""
        for each in self._by_tag.pop(tag, ()):
            self.count -= 1
            self.size -= each.size

    def late(self, now_s: float, patience_s: float) -> list[str]:
        """Return the substreams that were answered nothing for longer, the longest first."""
        since = {tag: self._since_s[tag] for tag, waiting in self._by_tag.items() if waiting}
        late = [tag for tag, since_s in since.items() if now_s - since_s > patience_s]
        return sorted(late, key=since.__getitem__)


class Backlog:
    """Messages in their order, and how many bytes they have."""

    def __init__(self) -> None:
        """It is empty."""
        self._items: deque[Item] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def first(self) -> Item | None:
        """The one that is sent next."""
        return self._items[0] if self._items else None

    def add(self, item: Item) -> None:
        """Put one behind the others."""
        self._items.append(item)
        self.size += item.size

    def pop(self) -> None:
        """Take the first one away."""
        self.size -= self._items.popleft().size

    def drop(self, tag: str) -> None:
        """Forget what there is of a substream."""
        self._items = deque(each for each in self._items if each.tag != tag)
        self.size = sum(each.size for each in self._items)


class FeederState(enum.Enum):
    """Of a target, as its player sees it."""

    # Down, or cut off: nothing of it is kept.
    S = "S"
    # It was asked where it is.
    ASKED = "ASKED"
    # A recovery stream fetches what it missed; nothing of the main stream is queued.
    RF = "RF"
    # The end of that is fixed; what comes behind it is queued.
    FC = "FC"
    # Fed by the main stream.
    N = "N"


class FeederBounds(NamedTuple):
    """Of one target: what waits for it here, what is in flight, and one batch.

    A commit's messages of one substream are sent together, whatever the bounds are.
    """

    queue_count: int = 2_000
    queue_bytes: int = 16 << 20
    window_count: int = 500
    # A target takes 2 MiB of a substream ahead, and a message has one at most.
    window_bytes: int = 1 << 20
    batch_count: int = 100
    batch_bytes: int = 512 << 10


# As many bytes as a message of small ones has in the log.
_MESSAGE_BYTES = 256


class Feeder:
    """What a player does for one target. ``at_once``: the most bytes that one batch may have."""

    def __init__(
        self,
        bounds: FeederBounds = FeederBounds(),  # noqa: B008 - it does not change
        deaths: Deaths | None = None,
    ) -> None:
        """It is down."""
        self._bounds = bounds
        self.deaths = Deaths(bounds.window_count) if deaths is None else deaths
        self.at_once = bounds.batch_bytes
        self.state = FeederState.S
        self.term = 0
        # Why it was cut off last.
        self.trouble = Trouble(Cause.RESTARTED)
        # Through where it is known to have taken each substream.
        self.acknowledged: dict[str, Position] = {}
        self._decided: dict[str, tuple[Position, Skip | None]] = {}
        # Of a part: what does not fit its queue is fetched again.
        self._falls_back = False
        self._forget()

    def _forget(self) -> None:
        self._queue = Backlog()
        self._fetched = Backlog()
        self._sent: dict[str, Position | None] = {}
        # Through which LSN its recovery was read, None before it was, and where that ends.
        self._read: int | None = None
        self._end = 0
        self._flight = Flight()
        # Substreams whose next message may be what kills it.
        self._suspects: set[str] = set()
        self._alone: Item | None = None
        self._within = False

    def part(self, parts: int) -> Feeder:
        """Return a feeder for a substream that leaves this one, with a part of its bounds.

        What is known and was decided of the target is of both.
        """
        bounds = self._bounds
        found = type(self)(
            bounds._replace(
                queue_count=max(1, bounds.queue_count // parts),
                queue_bytes=max(1, bounds.queue_bytes // parts),
                window_count=max(1, bounds.window_count // parts),
                window_bytes=max(1, bounds.window_bytes // parts),
            ),
            self.deaths,
        )
        found.acknowledged, found._decided = self.acknowledged, self._decided
        found._falls_back = True
        return found

    # Its state, for observers.

    @property
    def queued(self) -> int:
        """How many messages wait for it here."""
        return len(self._queue) + len(self._fetched)

    @property
    def in_flight(self) -> int:
        """How many deliveries are not answered."""
        return self._flight.count

    @property
    def crowded(self) -> bool:
        """Whether the main stream had better wait, if all targets are so."""
        bounds = self._bounds
        queue = self._queue
        return 2 * len(queue) >= bounds.queue_count or 2 * queue.size > bounds.queue_bytes

    @property
    def gathers(self) -> bool:
        """Whether something waits for it, and more may come into the same batch."""
        bounds, queue = self._bounds, self._queue
        return (
            self.state is FeederState.N
            and 0 < len(queue) < bounds.batch_count
            and queue.size < bounds.batch_bytes
            and not self.crowded
        )

    @property
    def fed(self) -> bool:
        """Whether the main stream feeds it, or will."""
        return self.state in (FeederState.FC, FeederState.N)

    @property
    def end(self) -> int:
        """Through which LSN its recovery fetches: that much of the main stream is not queued."""
        return self._end

    @property
    def ahead_bytes(self) -> int:
        """How much its recovery stream reads ahead: as much as it may queue, about."""
        return min(self._bounds.queue_bytes // 2, self._bounds.queue_count * _MESSAGE_BYTES)

    @property
    def alone(self) -> bool:
        """Whether a message that must be alone is in flight, or is the next to be sent."""
        if self._alone is not None:
            return True
        source = self._source()
        item = None if source is None else source.first
        return item is not None and not item.empty and item.tag in self._suspects

    def at_first(self, tag: str, place: Position | None) -> bool:
        """Whether this message of a substream is the one that is answered next."""
        first = self._flight.first(tag)
        return first is not None and place is not None and first.place[:2] == place[:2]

    def late(self, now_s: float, patience_s: float) -> list[str]:
        """Return the substreams that it has let wait for longer than it may, the longest first."""
        return self._flight.late(now_s, patience_s)

    # Its connection.

    def connect(self) -> int:
        """Begin a connection, and return its term; what was queued under an older one is gone."""
        if self.state is not FeederState.S:
            raise AssertionError(f"a connection begins in S, not in {self.state}")
        self._forget()
        self.term += 1
        self.state = FeederState.ASKED
        return self.term

    def begin(
        self, term: int, indexes: Mapping[str, Position | None], suspects: Iterable[str] = ()
    ) -> bool:
        """It said where it is; False: it was cut off meanwhile.

        ``suspects``: substreams whose messages are sent one at a time until one is taken.
        """
        if term != self.term or self.state is not FeederState.ASKED:
            return False
        self._sent = dict(indexes)
        for tag, place in indexes.items():
            self.found(tag, place)
        self._suspects = {*suspects, *self._decided}
        self.state = FeederState.RF
        return True

    def cut(self, trouble: Trouble) -> None:
        """Drop what waits for it: it is asked anew where it is."""
        if self.state is FeederState.S:
            return
        alone = self._alone
        if alone is not None and trouble.cause in (Cause.LATE, Cause.BROKEN):
            trouble = trouble._replace(tag=alone.tag, place=alone.place, alone=True)
        # Until it is known what became of its process.
        for item in self._flight:
            if self._runs(item):
                self.deaths.sent(item)
        if trouble.cause in ANSWERS and trouble.place is not None:
            self.deaths.answered(trouble.tag, trouble.place)
        term = self.term
        self._forget()
        self.term = term
        self.state = FeederState.S
        self.trouble = trouble

    def leave(self, tag: str) -> None:
        """Forget a substream: another feeder has it from now on, until it joins again."""
        self._sent.pop(tag, None)
        self._suspects.discard(tag)
        self._queue.drop(tag)
        self._fetched.drop(tag)
        self._flight.drop(tag)
        self._within = False
        if self._alone is not None and self._alone.tag == tag:
            self._alone = None
        self._turn_over()

    def join(self, tag: str, place: Position | None) -> None:
        """Have a substream again, in N: it was taken through all that was dispatched."""
        self._sent[tag] = place

    # The recovery stream.

    def wants(self) -> bool:
        """Whether its recovery stream must be read further."""
        if self.state is FeederState.RF or (
            self.state is FeederState.FC and (self._read or 0) < self._end
        ):
            bounds, fetched = self._bounds, self._fetched
            return 2 * len(fetched) < bounds.queue_count and 2 * fetched.size < bounds.queue_bytes
        return False

    def fetch(self, term: int, found: Iterable[Item], through: int) -> None:
        """Take what its recovery stream read: all of its substreams through this LSN."""
        if term != self.term or self.state not in (FeederState.RF, FeederState.FC):
            return
        for item in found:
            # What is behind the fixed end is queued by the main stream.
            mine = item.tag in self._sent
            if mine and (self.state is FeederState.RF or item.place.lsn <= self._end):
                self._fetched.add(item)
        self._read = max(self._read or 0, through)
        self._turn_over()

    def fix(self, dispatched: int | None) -> None:
        """Fix the end of its recovery, if what is missing fits its queue.

        ``dispatched``: through which LSN the main stream was dispatched, None before it began.
        """
        if self.state is not FeederState.RF or self._read is None or dispatched is None:
            return
        if dispatched > self._read + self._bounds.queue_count // 2:
            return
        self._end = max(dispatched, self._read)
        self.state = FeederState.FC
        self._turn_over()

    def _turn_over(self) -> None:
        if self.state is FeederState.FC and not self._fetched and (self._read or 0) >= self._end:
            self.state = FeederState.N

    # The main stream.

    def dispatch(self, found: Iterable[Item]) -> None:
        """Queue what the main stream read of its substreams; cut it off if that does not fit."""
        if not self.fed:
            return
        bounds = self._bounds
        for item in found:
            if item.tag not in self._sent:
                continue
            # What its recovery fetches, or another player delivered.
            if item.place.lsn <= self._end or not item.behind(self._sent[item.tag]):
                continue
            if (
                len(self._queue) >= bounds.queue_count
                or self._queue.size + item.size > bounds.queue_bytes
            ):
                if self._falls_back:
                    self._fall_back()
                else:
                    self.cut(Trouble(Cause.FULL))
                return
            self._queue.add(item)

    def _fall_back(self) -> None:
        """Drop what waits, and fetch it again behind what was sent, under another term."""
        self._queue, self._fetched = Backlog(), Backlog()
        self._read, self._end = None, 0
        self._within = False
        self.term += 1
        self.state = FeederState.RF

    def sent(self, tag: str) -> Position | None:
        """Return what was sent last of a substream, or its index where nothing was."""
        return self._sent.get(tag)

    def move_on(self, places: Mapping[str, Position]) -> None:
        """Have its indexes moved to where there was nothing for it to do; in N only (P5).

        ``places``: through where the main stream was dispatched, by substream.
        """
        if self.state is not FeederState.N:
            return
        last = self._sent | {each.tag: each.place for each in self._queue}
        for tag, place in places.items():
            before = last.get(tag)
            if before is not None and place.lsn <= before.lsn:
                continue
            if tag in last and len(self._queue) < self._bounds.queue_count:
                self._queue.add(Item(tag, place, empty=True))

    # What it is sent.

    def decide(self, tag: str, place: Position, skip: Skip | None) -> None:
        """Have a message skipped; or (None) called anew, whatever became of it before."""
        self._decided[tag] = (place, skip)

    @property
    def passed_over(self) -> dict[str, Position]:
        """The messages that must be skipped, and are not yet, by substream."""
        return {tag: place for tag, (place, skip) in self._decided.items() if skip is not None}

    def decided(self, tag: str) -> Position | None:
        """Return the message of a substream that was decided on, and is not taken yet."""
        found = self._decided.get(tag)
        return None if found is None else found[0]

    def take(self, now_s: float, beside: int = 0) -> list[Outgoing]:
        """Return the next batch to be sent; it is in flight from now on. Empty: there is none.

        ``beside``: deliveries that other feeders of its target have in flight.
        """
        found: list[Outgoing] = []
        size = 0
        while True:
            source = self._source()
            item = None if source is None else source.first
            if item is None:
                break
            if not item.behind(self._sent.get(item.tag)):
                self._pop()
                continue
            lonely = not item.empty and item.tag in self._suspects
            if lonely and beside:
                break
            if not self._may_send(item, lonely=lonely, count=len(found), size=size):
                break
            self._pop()
            found.append(self._send(item, lonely=lonely, now_s=now_s))
            size += item.size
        return found

    def _source(self) -> Backlog | None:
        if self.state in (FeederState.RF, FeederState.FC):
            return self._fetched
        return self._queue if self.state is FeederState.N else None

    def _pop(self) -> None:
        if self.state is FeederState.N:
            self._queue.pop()
        else:
            self._fetched.pop()
            self._turn_over()

    def _may_send(self, item: Item, *, lonely: bool, count: int, size: int) -> bool:
        bounds, flight = self._bounds, self._flight
        if self._alone is not None or (lonely and flight.count):
            return False
        if not item.empty and self.deaths.room == 0:
            return False
        if count and size + item.size > self.at_once:
            return False
        # The rest of what is taken together goes with it.
        return self._within or (
            flight.count < bounds.window_count
            and flight.size < bounds.window_bytes
            and count < bounds.batch_count
            and (not count or size + item.size <= bounds.batch_bytes)
        )

    def _send(self, item: Item, *, lonely: bool, now_s: float) -> Outgoing:
        tag = item.tag
        follows = self._sent.get(tag)
        place, skip = self._decided.get(tag, (None, None))
        mine = place == item.place
        kind = (
            DeliveryKind.EMPTY
            if item.empty
            else DeliveryKind.SKIP
            if mine and skip
            else DeliveryKind.MESSAGE
        )
        if lonely:
            self._alone = item
        counted = kind is DeliveryKind.MESSAGE and self.deaths.sending(item)
        self._within = item.more and not (lonely or counted)
        self._sent[tag] = item.place
        self._flight.add(item, now_s)
        again = mine and skip is None
        return Outgoing(item, follows, kind, self._within, skip if mine else None, again)

    def _runs(self, item: Item) -> bool:
        place, skip = self._decided.get(item.tag, (None, None))
        return not (item.empty or (place == item.place and skip))

    # What it answers.

    def taken(self, term: int, tag: str, place: Position, now_s: float) -> bool:
        """It has taken a substream through there; False: that was of an older connection."""
        if term != self.term or self.state in (FeederState.S, FeederState.ASKED):
            return False
        sent = self._sent.get(tag)
        if sent is None or place[:2] > sent[:2]:
            self.cut(Trouble(Cause.GARBAGE, tag, place))
            return False
        self._flight.done(tag, place, now_s)
        self.note(tag, place)
        self._suspects.discard(tag)
        decided = self._decided.get(tag)
        if decided is not None:
            self._suspects.add(tag)
        if self._alone is not None and self._alone.tag == tag:
            self._alone = None
        return True

    def found(self, tag: str, place: Position | None) -> None:
        """It says where it is: before what it had acknowledged, where its store was put back."""
        self.acknowledged.pop(tag, None)
        self.note(tag, place)

    def note(self, tag: str, place: Position | None) -> None:
        """A substream was taken through there, durably."""
        if place is None:
            return
        before = self.acknowledged.get(tag)
        if before is None or place[:2] > before[:2]:
            self.acknowledged[tag] = place
        self.deaths.taken(tag, place)
        decided = self._decided.get(tag)
        if decided is not None and place[:2] >= decided[0][:2]:
            del self._decided[tag]
