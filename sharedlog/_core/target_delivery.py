"""A delivery as a target judges it: does it follow the index? (DESIGN-LOG §15, P2)"""

from __future__ import annotations

import enum
from typing import NamedTuple

from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import MAX_LSN, Position
from sharedlog._core.streams import substream_number
from sharedlog._core.target_index import Feed, Index, SkippedMessage, check_tag

_MOST = (1 << 32) - 1


class DeliveryKind(enum.Enum):
    """What the target must do; see the protocol."""

    MESSAGE = "message"
    EMPTY = "empty"
    SKIP = "skip"


class Delivery(NamedTuple):
    """One message of a substream, and what it follows there (None: nothing was taken yet).

    ``more``: others of its commit come behind it. ``again``: it may run although it was begun.
    ``trace_parent``, ``trace_state``: of the player's span of it, where it has one.
    """

    feed: Feed
    kind: DeliveryKind
    tag: str
    place: Position
    follows: Position | None
    envelope: bytes = b""
    append_time_us: int = 0
    more: bool = False
    again: bool = False
    skip: SkippedMessage | None = None
    trace_parent: str = ""
    trace_state: str = ""

    def check(self) -> None:
        """Raise ``InvalidRequest`` for what no player sends."""
        check_tag(self.tag)
        substream = substream_number(self.tag)
        for place in (self.place, self.follows):
            if place is not None:
                _check_place(place, substream)
        if self.follows is not None and self.follows[:2] >= self.place[:2]:
            raise InvalidRequest(f"{self.tag} at {self.place} cannot follow {self.follows}")


class DeliveryVerdict(enum.Enum):
    """What becomes of a delivery, by the index that it meets."""

    # It is the next one.
    TAKE = "take"
    # It is at the index, or before it.
    DONE = "done"
    # It does not follow the index.
    GAP = "gap"
    # The index is of another incarnation, or has another message at that place.
    FORKED = "forked"
    # It was begun, and its outcome is unknown.
    UNKNOWN = "unknown"


def judge(index: Index, delivery: Delivery) -> DeliveryVerdict:
    """Say what becomes of a delivery where the index is so."""
    place, at = delivery.place, index.at
    if index.incarnation not in ("", place.incarnation):
        return DeliveryVerdict.FORKED
    if at is not None:
        if place[:2] < at[:2]:
            return DeliveryVerdict.DONE
        if place[:2] == at[:2]:
            return DeliveryVerdict.DONE if place.checksum == at.checksum else DeliveryVerdict.FORKED
    follows = delivery.follows
    if follows is None or at is None:
        if follows is not at:
            return DeliveryVerdict.GAP
    elif follows[:2] != at[:2]:
        return DeliveryVerdict.GAP
    elif follows.checksum != at.checksum:
        return DeliveryVerdict.FORKED
    if index.begun is not None:
        decided = delivery.again or delivery.kind is DeliveryKind.SKIP
        if not decided or place != index.begun:
            return DeliveryVerdict.UNKNOWN
    return DeliveryVerdict.TAKE


def _check_place(place: Position, substream: int) -> None:
    if place.substream != substream:
        raise InvalidRequest(f"a place of substream {place.substream} in substream {substream}")
    for number, least, most in ((place.lsn, 1, MAX_LSN), (place.ordinal, 0, _MOST)):
        if not least <= number <= most:
            raise InvalidRequest(f"{place[:3]!r} is no place")
