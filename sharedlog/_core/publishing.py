"""The messages of one append, and their positions (DESIGN-LOG §12, §13)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from sharedlog._core.position import Position
from sharedlog._core.producers import NewMessage
from sharedlog._core.streams import commits_tag, stream_of, substream_number

# The most that one append of this library has, if its engine supports that.
APPEND_BYTES = 1 << 20
APPEND_ENTRIES = 1000
# Of an entry, beside envelope and tags.
ENTRY_BYTES = 64


class Placed(NamedTuple):
    """A message's envelope, the tag of its substream, and about how much of an append it takes.

    ``content``: of a named producer's, what stays the same whenever it is published.
    """

    envelope: bytes
    tag: str
    size: int
    content: bytes = b""


_envelope, _tag = (itemgetter(Placed._fields.index(each)) for each in ("envelope", "tag"))
# What a named tuple does by itself, a third less of it.
_new = tuple.__new__


def size_of(envelope: bytes, tag: str) -> int:
    """Return about how many bytes of an append a message takes."""
    return len(envelope) + 2 * len(tag) + ENTRY_BYTES


def committing(messages: Sequence[Placed]) -> list[NewMessage]:
    """Return the messages of an append that commits itself: the last one has its streams' tags."""
    if not messages:
        return []
    found = pending(messages)
    commits = {commits_tag(stream_of(tag)) for tag in set(map(_tag, messages))}
    envelope, tags = found[-1]
    found[-1] = NewMessage(envelope, (*tags, *sorted(commits)))
    return found


def pending(messages: Sequence[Placed]) -> list[NewMessage]:
    """Return the messages of an append that a marker decides."""
    # ``zip`` of one makes a tuple of each.
    tags = zip(map(_tag, messages))
    return list(map(_new, repeat(NewMessage), zip(map(_envelope, messages), tags, strict=True)))


def positions(tags: Sequence[str], lsn: int, checksum: int, incarnation: str) -> list[Position]:
    """Return where the messages of one commit are, given their substreams' tags in its order.

    ``lsn``, ``checksum``: of the entry that names the commit.
    """
    ordinals: dict[str, int] = {}
    found = []
    for tag in tags:
        ordinal = ordinals.get(tag, 0)
        ordinals[tag] = ordinal + 1
        place = (lsn, ordinal, checksum, incarnation, substream_number(tag))
        found.append(_new(Position, place))
    return found
