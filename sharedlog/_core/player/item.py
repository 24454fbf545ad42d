"""A message on its way to a target, and what is sent of it (DESIGN-LOG §15, P2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sharedlog._core.position import Position
from sharedlog._core.reading import Committed
from sharedlog._core.target_delivery import DeliveryKind

# Of a delivery, beside its envelope and twice its tag.
_BYTES = 96


class Item(NamedTuple):
    """A message; or an empty one, by which an index is moved where there was nothing to do.

    ``more``: further messages of its commit and substream come behind it.
    """

    tag: str
    place: Position
    envelope: bytes = b""
    at_us: int = 0
    more: bool = False
    empty: bool = False

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.envelope) + 2 * len(self.tag) + _BYTES

    def behind(self, place: Position | None) -> bool:
        """Whether a target that has taken its substream through there has not taken this."""
        return place is None or self.place[:2] > place[:2]


class Skip(NamedTuple):
    """Why a message is not called, and who decided it."""

    reason: str
    by: str


class Outgoing(NamedTuple):
    """One delivery: what it follows, and whether the index is moved alone.

    ``again``: it may be called anew although its outcome is unknown.
    """

    item: Item
    follows: Position | None
    kind: DeliveryKind
    more: bool = False
    skip: Skip | None = None
    again: bool = False


def items(messages: Sequence[Committed]) -> Iterator[Item]:
    """Return messages of whole commits, as a reader returned them, on their way."""
    last = len(messages) - 1
    for at, each in enumerate(messages):
        position = each.position
        following = messages[at + 1] if at < last else None
        more = (
            following is not None
            and following.tag == each.tag
            and following.position.lsn == position.lsn
        )
        yield Item(each.tag, position, each.envelope, each.at_us, more)
