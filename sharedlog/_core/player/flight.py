"""The flight of deliveries: what was sent to a target and is not answered (DESIGN-LOG §15)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from sharedlog._core.player.item import Item
from sharedlog._core.position import Position


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
