"""Deaths of a target's processes: what was in flight, and how much may be from then on (§15, P7).

A message that kills its process is one of those in flight. Each death that is proved halves how
many messages may be in flight at once, until the index has passed all that were in flight at the
last death, or one message was in flight by itself: it has killed its process, and is sent with
nothing beside it until it is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sharedlog._core.player.item import Item
from sharedlog._core.position import Position

# By substream, messages in flight by their places, in their order.
_Sent = dict[str, dict[tuple[int, int], Position]]


class Death(NamedTuple):
    """A process of a target that has ended; of how many messages in flight.

    ``alone``: the only one, by its substream; None if it is not known that it was.
    """

    process: str
    in_flight: int
    alone: tuple[str, Position] | None


class _Lost:
    """A process that another one has answered after. ``sent``: None if a player that is gone
    sent it; ``beats``: as another process told of it last, 0: not yet.
    """

    def __init__(self, sent: _Sent | None, beats: int = 0) -> None:
        self.sent = sent
        self.beats = beats


class Deaths:
    """Of one target. ``window``: how many messages are in flight at once where nothing died.

    ``process``: which one answered last. ``limit``: how many may be in flight at once, 0: as many
    as the bounds say.
    """

    def __init__(self, window: int, kept: Mapping[str, Any] | None = None) -> None:
        """``kept``: what ``kept`` returned, under a player that is gone."""
        self._window = window
        self.process = ""
        self._limit = 0
        # In flight at the last death; None: until the target has all that was dispatched.
        self._through: dict[str, Position] | None = {}
        # Sent to the process that answers, and not known to be taken; and what ran there before.
        self._sent: _Sent = {}
        self._running: _Sent = {}
        self._lost: dict[str, _Lost] = {}
        # Messages that have killed a process, by substream.
        self._killers: dict[str, Position] = {}
        # Of a player that is gone.
        self._unknown = False
        if kept:
            self._read(kept)

    # What may be sent.

    @property
    def limit(self) -> int:
        """How many may be in flight at once, by deaths that are proved or may yet be; 0: any."""
        if not (self._limit or self._lost):
            return 0
        found = [self._limit] if self._limit else []
        found += [self._half(each.sent) for each in self._lost.values()]
        return min(found)

    @property
    def careful(self) -> bool:
        """Whether what is in flight must be durable before it is sent."""
        return bool(self._killers or self.limit)

    @property
    def killers(self) -> Mapping[str, Position]:
        """Messages that have killed a process, by substream: sent with nothing beside them."""
        return self._killers

    @property
    def room(self) -> int | None:
        """How many more may be sent now; None: as many as the bounds say."""
        limit = self.limit
        return max(0, limit - _count(self._sent)) if limit else None

    def holds(self, attempts: Mapping[str, tuple[Position, int]], tries: int | None) -> bool:
        """Whether nothing may be sent until it is known what became of a process.

        So it is where a message has failed as often as it may if that one died of it.
        """
        if tries is None:
            return False
        alone = [found for each in self._lost.values() if (found := _alone(each.sent))]
        for tag, place in set(alone):
            known, count = attempts.get(tag, (place, 0))
            if (count if known == place else 0) + alone.count((tag, place)) >= tries:
                return True
        return False

    def sending(self, item: Item) -> bool:
        """Note that a message is sent, if it is counted; whether it is."""
        if self.limit or item.tag in self._killers:
            self.sent(item)
            return True
        return False

    def sent(self, item: Item) -> None:
        """A message is in flight."""
        self._sent.setdefault(item.tag, {})[item.place[:2]] = item.place

    def answered(self, tag: str, place: Position) -> None:
        """A message was answered, and not taken: neither it nor what is behind it runs."""
        there = self._sent.pop(tag, {})
        before = {at: each for at, each in there.items() if at < place[:2]}
        if before:
            self._sent[tag] = before

    def taken(self, tag: str, place: Position) -> None:
        """A substream was taken through there."""
        if self._sent:
            _pass(self._sent, tag, place)
        if not (self._limit or self._lost or self._killers):
            return
        killer = self._killers.get(tag)
        if killer is not None and place[:2] >= killer[:2]:
            del self._killers[tag]
        for name, each in list(self._lost.items()):
            if each.sent is not None:
                _pass(each.sent, tag, place)
                if not each.sent:
                    del self._lost[name]
        through = self._through
        if through is not None and tag in through and place[:2] >= through[tag][:2]:
            del through[tag]
            if not through:
                self._limit = 0

    def settled(self) -> None:
        """The target has taken all that was dispatched to it."""
        self._limit, self._through = 0, {}
        self._lost.clear()

    # What becomes of its processes.

    @property
    def asked(self) -> list[str]:
        """The processes that must be checked for whether they have ended."""
        return [*self._lost, *([self.process] if self.process else [])]

    def connected(
        self,
        process: str,
        beats: Mapping[str, int],
        indexes: Mapping[str, Position | None],
        running: Mapping[str, Position],
    ) -> list[Death]:
        """Note which process answers, and where its indexes are; return those that died.

        ``process``: "" where it cannot tell. ``beats``: of those that were asked about, 0 of
        those that have ended; another number than before: it lives. ``running``: messages whose
        handlers run in the process that answers.
        """
        before = self.process
        if before and before != process:
            sent = None if self._unknown else self._sent or self._running
            if sent is None or sent:
                self._lost[before] = _Lost(sent)
        self.process, self._unknown, self._sent = process, False, {}
        # What runs there has killed no process.
        self._running = {tag: {place[:2]: place} for tag, place in running.items()}
        self._lost.pop(process, None)
        for tag, place in indexes.items():
            if place is not None:
                self.taken(tag, place)
        ended = {name: self._lost.pop(name).sent for name in self._ended(beats)}
        found = [
            Death(name, self._window if sent is None else _count(sent), _alone(sent))
            for name, sent in ended.items()
        ]
        for each in found:
            if each.alone is not None:
                self._killers[each.alone[0]] = each.alone[1]
                self._limit, self._through = 0, {}
        for each, sent in zip(found, ended.values(), strict=True):
            if not self._explained(sent):
                self._limit = min(self._limit or self._window, _half(each.in_flight))
                self._through = None if sent is None else _last(sent)
        return found

    def _explained(self, sent: _Sent | None) -> bool:
        """Whether a message was in flight that is known to have killed a process."""
        there = {} if sent is None else sent
        return any(place[:2] in there.get(tag, ()) for tag, place in self._killers.items())

    def _ended(self, beats: Mapping[str, int]) -> Iterator[str]:
        for name, each in list(self._lost.items()):
            now = beats.get(name)
            if now is None:
                continue
            if now and each.beats not in (0, now):
                del self._lost[name]
            elif now:
                each.beats = now
            else:
                yield name

    def _half(self, sent: _Sent | None) -> int:
        return _half(self._window if sent is None else _count(sent))

    # What outlives its player.

    def kept(self) -> dict[str, Any]:
        """Return what the next player of this name needs, as JSON has it.

        Without a limit what is in flight is not in it: that would be a commit for each batch.
        """
        return {
            "process": self.process,
            "limit": self._limit,
            "through": None if self._through is None else _texts(self._through),
            "killers": _texts(self._killers),
            "sent": self._counted(),
            "lost": {
                name: [None if each.sent is None else _written(each.sent), each.beats]
                for name, each in self._lost.items()
            },
        }

    def _counted(self) -> dict[str, list[str]] | None:
        sent = self._sent or self._running
        counted = self.limit or not self._killers.keys().isdisjoint(sent)
        return _written(sent) if counted else None

    def _read(self, kept: Mapping[str, Any]) -> None:
        self.process, self._limit = str(kept["process"]), int(kept["limit"])
        through, sent = kept["through"], kept["sent"]
        self._through = None if through is None else _places(through)
        self._killers = _places(kept["killers"])
        self._unknown = sent is None
        self._sent = {} if sent is None else _sent_of(sent)
        self._lost = {
            name: _Lost(None if lost is None else _sent_of(lost), int(beats))
            for name, (lost, beats) in kept["lost"].items()
        }


def _half(count: int) -> int:
    return max(1, count // 2)


def _count(sent: _Sent) -> int:
    return sum(map(len, sent.values()))


def _alone(sent: _Sent | None) -> tuple[str, Position] | None:
    """Return the only message, if there is one."""
    if sent is None or _count(sent) != 1:
        return None
    ((tag, places),) = sent.items()
    return tag, next(iter(places.values()))


def _last(sent: _Sent) -> dict[str, Position]:
    return {tag: max(places.values()) for tag, places in sent.items()}


def _pass(sent: _Sent, tag: str, place: Position) -> None:
    """Forget what of a substream is not behind a place."""
    there = sent.get(tag)
    while there:
        first = next(iter(there))
        if first > place[:2]:
            return
        del there[first]
    sent.pop(tag, None)


def _written(sent: _Sent) -> dict[str, list[str]]:
    return {tag: [str(each) for each in places.values()] for tag, places in sent.items()}


def _sent_of(written: Mapping[str, list[str]]) -> _Sent:
    places = {tag: map(Position.parse, texts) for tag, texts in written.items()}
    return {tag: {each[:2]: each for each in some} for tag, some in places.items()}


def _texts(through: Mapping[str, Position]) -> dict[str, str]:
    return {tag: str(place) for tag, place in through.items()}


def _places(texts: Mapping[str, str]) -> dict[str, Position]:
    return {tag: Position.parse(text) for tag, text in texts.items()}
