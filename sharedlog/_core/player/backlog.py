"""The backlog of a target: messages that wait for it here (DESIGN-LOG §15, P4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from sharedlog._core.player.item import Item


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
