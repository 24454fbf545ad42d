"""Lanes: what came on one connection for each substream, and waits (DESIGN-LOG §15, P4). No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery
from sharedlog._core.target_steps import (
    AnswerKind,
    Confirm,
    DeliveryAnswer,
)

# So many deliveries of a substream are taken before the index is moved for them.
_AT_ONCE = 64


class _Full(NamedTuple):
    """From this place on there was no room."""

    place: Position


class Lane:
    """What came for one substream, in its order.

    Of what is behind an answer that is not DONE nothing is taken, until a delivery comes at that
    place or before it. ``refused``: where there was no room, until that is told.
    """

    def __init__(self, tag: str, most_bytes: int) -> None:
        """``most_bytes``: of what waits; one delivery is always taken."""
        self.tag = tag
        self.working = False
        self.bytes = 0
        self._most_bytes = most_bytes
        self._items: deque[tuple[Delivery | Confirm | _Full, int]] = deque()
        self._stopped: Position | None = None
        self._full: Position | None = None
        self.refused: Position | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Delivery | Confirm, size: int) -> bool:
        """Have it wait; false where it does not."""
        if isinstance(item, Delivery):
            if self._full is not None:
                if item.place[:2] > self._full[:2]:
                    return False
                self._full = None
            if self.bytes and self.bytes + size > self._most_bytes:
                self._full = item.place
                self._items.append((_Full(item.place), 0))
                return True
        self._items.append((item, size))
        self.bytes += size
        return True

    @property
    def waiting(self) -> list[Delivery | Confirm | _Full]:
        """What waits."""
        return [item for item, _ in self._items]

    def at_hand(self) -> bool:
        """Whether another one waits."""
        return bool(self._items)

    def taking(self) -> Iterator[Delivery | Confirm]:
        """Yield the items to take now, in their order; those that come meanwhile, too."""
        for _ in range(_AT_ONCE):
            while self._items:
                item, size = self._items.popleft()
                self.bytes -= size
                if isinstance(item, Confirm):
                    yield item
                    break
                if self._stopped is not None and item.place[:2] > self._stopped[:2]:
                    continue
                self._stopped = None
                if isinstance(item, _Full):
                    self.refused = item.place
                    return
                yield item
                break
            else:
                return

    def told(self, answer: DeliveryAnswer) -> None:
        """Note an answer."""
        if answer.kind is not AnswerKind.DONE:
            self._stopped = answer.place

    def clear(self) -> None:
        """Forget what waits: its connection is gone."""
        self._items.clear()
        self.bytes = 0


class AnswerQueue:
    """The answers to write: of DONEs of a substream the last one."""

    def __init__(self) -> None:
        self._answers: list[DeliveryAnswer] = []
        self._last: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: DeliveryAnswer) -> None:
        """Add an answer."""
        at = self._last.get(answer.tag)
        if (
            at is not None
            and answer.kind is AnswerKind.DONE
            and self._answers[at].kind is AnswerKind.DONE
        ):
            self._answers[at] = answer
            return
        self._last[answer.tag] = len(self._answers)
        self._answers.append(answer)

    def take(self) -> list[DeliveryAnswer]:
        """Return them, once."""
        found, self._answers = self._answers, []
        self._last.clear()
        return found
