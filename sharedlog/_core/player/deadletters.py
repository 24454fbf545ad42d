"""Dead letters: messages that a target was not called with, as messages of a stream (P7).

A dead letter's value is the message's envelope, and its headers say whose it was to be, where it
stands, why and by whom it was given up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from sharedlog._core.catalog import Stream, make_stream
from sharedlog._core.envelope import MAX_VALUE_BYTES, PROTOBUF, About, pack, unpack
from sharedlog._core.errors import LogForked, TrimmedLog
from sharedlog._core.fences import Fence
from sharedlog._core.following import read_some
from sharedlog._core.named import Turn, append_named, highest_of, named_key, seq_of
from sharedlog._core.names import NameKind, own_name
from sharedlog._core.player.indexes import Unconfirmed
from sharedlog._core.position import Position
from sharedlog._core.producers import Appended
from sharedlog._core.publishing import Placed, committing, size_of
from sharedlog._core.reading import verify
from sharedlog._core.sealing import Seals, is_sealed, opened
from sharedlog._core.steps import Get, Rule, tried
from sharedlog._core.streams import substream_of, tag_of

SCHEMA = "sharedlog.v1.Envelope"
# What the names begin with under which dead letters are appended.
PRODUCERS = own_name(NameKind.LETTERS, "")
_HEADERS = {"player", "target", "tag", "position", "number", "reason", "by"}
_NAME_CHARS, _CONTENT_BYTES = 180, 16
# Of a header's value.
_MOST_CHARS = 1000
# Room for the rest of it in an append.
_ROOM = 32 << 10


class Whose(NamedTuple):
    """The index that skipped a message: of a target's store, and of the log as players name it."""

    player: str
    target: str
    store: str
    log: str
    number: int

    def producer(self, tag: str) -> str:
        """Under which name the dead letters of a substream are appended, seq by seq."""
        found = f"{PRODUCERS}{self.store}/{self.log}/{self.number}/{tag}"
        if len(found) <= _NAME_CHARS and found.isascii() and " " not in found:
            return found
        return f"{PRODUCERS}{hashlib.sha256(found.encode()).hexdigest()}"


def written(
    stream: Stream, whose: Whose, tag: str, skipped: Unconfirmed, envelope: bytes
) -> Placed:
    """Return a dead letter to append; always the same one for the same message."""
    key = None if not envelope or is_sealed(envelope) else unpack(envelope).key
    about = About(
        {
            "player": whose.player,
            "target": whose.target,
            "log": whose.log,
            "tag": tag,
            "position": str(skipped.place),
            "number": str(skipped.number),
            "reason": skipped.reason[:_MOST_CHARS],
            "by": skipped.by[:_MOST_CHARS],
        },
        PROTOBUF,
        SCHEMA,
        causation_id=str(skipped.place),
        event_time_us=skipped.at_us,
    )
    body = b"" if len(envelope) > MAX_VALUE_BYTES - _ROOM else envelope
    data = pack(body, key or None, about, skipped.at_us)
    tag = tag_of(stream.name, substream_of(key, stream.substreams) if key else 0)
    return Placed(data, tag, size_of(data, tag))


def bury_skipped(
    stream: str, whose: Whose, tag: str, skipped: Unconfirmed, fence: Fence, seals: Seals | None
) -> Rule[None]:
    """Have a message that a target skipped among the dead letters of a stream, once.

    Raises as ``bury``.
    """
    letters = yield from make_stream(stream)
    try:
        envelope = yield from tried(message_at(tag, skipped.place))
    except (TrimmedLog, LogForked):
        # What a target has skipped nothing holds any more, confirmed or not.
        envelope = None
    placed = written(letters, whose, tag, skipped, envelope or b"")
    yield from bury(whose, tag, skipped, placed, fence, seals)


def is_letter_at(tag: str, place: Position, seals: Seals | None) -> Rule[bool]:
    """Return whether a message is a dead letter itself: none is made of that."""
    envelope = yield from message_at(tag, place)
    return envelope is not None and is_letter(envelope, seals, tag)


def is_letter(envelope: bytes, seals: Seals | None, tag: str) -> bool:
    """Return whether a message is a dead letter, as far as it can be opened."""
    found = unpack(opened(envelope, seals, tag)[0])
    return found.schema_name == SCHEMA and {each.name for each in found.headers} >= _HEADERS


def bury(
    whose: Whose, tag: str, skipped: Unconfirmed, placed: Placed, fence: Fence, seals: Seals | None
) -> Rule[Appended]:
    """Append a dead letter: once, whichever player does it, however often.

    Raises ``AlreadyCommitted`` if another one stands under its number, or later ones do.
    """
    name, number = whose.producer(tag), skipped.number
    highest = yield from highest_of(name)
    # A name that was forgotten begins anew at what the index says.
    turn = Turn(name, number, highest if highest < number else number - 1)
    # What the index says of it, which is the same to each player of this target, before and after
    # the message itself was trimmed.
    told = repr((str(skipped.place), number, skipped.reason, skipped.by, skipped.at_us))
    content = hashlib.sha256(told.encode()).digest()[:_CONTENT_BYTES]
    if seals is not None:
        placed = placed._replace(envelope=seals.sealed(placed.envelope, placed.tag))
    return (yield from append_named(turn, content, committing([placed]), fence=fence))


def count_of(whose: Whose, tags: Sequence[str]) -> Rule[int]:
    """Return how many messages of these substreams are dead letters of an index."""
    keys = tuple(named_key(whose.producer(tag)) for tag in tags)
    found = yield Get(keys)
    return sum(seq_of(found[key]) for key in keys)


def message_at(tag: str, place: Position) -> Rule[bytes | None]:
    """Return the envelope of a message, by its place; None: there is none."""
    first = yield from first_of(place)
    found = yield from read_some(tag, place.incarnation, first, 1)
    for each in found:
        if each.position[:2] == place[:2]:
            return each.envelope
    return None


def first_of(place: Position) -> Rule[int]:
    """Return the LSN at which a reader begins to have the commit of a position."""
    entry = yield from verify(place)
    return entry.lsn - entry.index
