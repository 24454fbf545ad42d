"""The outputs of a transaction: what is appended once its store has committed (DESIGN-LOG §14).

What fits one append is recorded, as it will be appended, in the same commit as the handlers'
effects: an *intent*. What does not fit is appended before, pending, and the intent is the marker
that commits it. A process that takes the shard over appends the intent again, under the name and
the seq it was recorded with, so that it is in the log once (L3).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from sharedlog._core.draft import AppendBounds, check_spread
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat
from sharedlog._core.producers import NewMessage
from sharedlog._core.publishing import Placed

# Versions of intents: messages, and a marker.
_MESSAGES, _MARKER = 1, 2
_CONTENT_BYTES = 16
_HEAD = struct.Struct(">BI")
_LENGTHS = struct.Struct(">II")
_DECISION = struct.Struct(">QQ")
_BEGIN = struct.Struct(">QI")
# Of one transaction, which is in memory until it is appended.
MOST_BYTES, MOST_MESSAGES = 64 << 20, 100_000


# The messages to append, or the decision to commit.
Intended = list[NewMessage] | ProducerDecision


class Outputs:
    """What the handlers of one transaction publish."""

    def __init__(self, bounds: AppendBounds, *, travels: bool = True) -> None:
        """``bounds``: of an append; ``travels``: there may be more than one."""
        self._bounds = bounds
        self._most = (MOST_MESSAGES, MOST_BYTES) if travels else bounds[:2]
        self._spread: set[str] = set()
        self.messages: list[Placed] = []
        self.size = 0

    def add(self, message: Placed) -> None:
        """Take a message; raises ``InvalidRequest`` if there is no room for it."""
        bounds, (messages, size) = self._bounds, self._most
        fresh = message.tag not in self._spread
        if fresh:
            check_spread({message.tag, *self._spread}, bounds.tags)
        if message.size > bounds.append_bytes:
            raise InvalidRequest(
                f"a message of {message.size} bytes; this log takes {bounds.append_bytes}"
            )
        if len(self.messages) >= messages or self.size + message.size > size:
            raise InvalidRequest(f"a transaction publishes {messages} messages and {size} bytes")
        if fresh:
            self._spread.add(message.tag)
        self.messages.append(message)
        self.size += message.size

    def back_to(self, count: int) -> None:
        """Have it hold so many of the messages again, the first of them."""
        kept = self.messages[:count]
        self._spread, self.messages, self.size = set(), [], 0
        for each in kept:
            self.add(each)


def parted(messages: Sequence[Placed], bounds: AppendBounds) -> list[list[Placed]]:
    """Part messages into as many appends as they take, in their order."""
    appends: list[list[Placed]] = []
    filled = 0
    for each in messages:
        if (
            not appends
            or len(appends[-1]) >= bounds.entries
            or filled + each.size > bounds.append_bytes
        ):
            appends.append([])
            filled = 0
        appends[-1].append(each)
        filled += each.size
    return appends


def recorded(messages: Sequence[NewMessage]) -> bytes:
    """Return the intent to append these messages, as a store keeps it; empty: there are none."""
    if not messages:
        return b""
    parts = [_HEAD.pack(_MESSAGES, len(messages))]
    for envelope, tags in messages:
        joined = "\n".join(tags).encode()
        parts += (_LENGTHS.pack(len(joined), len(envelope)), joined, envelope)
    return b"".join(parts)


def pieces_of(intent: bytes, counts: Sequence[int]) -> list[tuple[bytes, bytes]]:
    """Part an intent behind so many of its messages each: the head of all until there, and these.

    The head and all pieces until there are an intent. Without a message it is empty.
    """
    found, at, done = [], _HEAD.size, 0
    for count in counts:
        begin = at
        for _ in range(done, count):
            tags, envelope = _LENGTHS.unpack_from(intent, at)
            at += _LENGTHS.size + tags + envelope
        found.append((_HEAD.pack(_MESSAGES, count) if count else b"", intent[begin:at]))
        done = count
    return found


def first_of(intent: bytes, count: int) -> bytes:
    """Return the intent to append the first messages of an intent."""
    return b"".join(*pieces_of(intent, [count]))


def recorded_marker(decision: ProducerDecision) -> bytes:
    """Return the intent to commit what is pending."""
    producer, through, begins = decision
    parts = [_HEAD.pack(_MARKER, len(begins)), _DECISION.pack(producer, through)]
    for tag, lsn in sorted(begins.items()):
        name = tag.encode()
        parts += (_BEGIN.pack(lsn, len(name)), name)
    return b"".join(parts)


def intended(intent: bytes) -> Intended:
    """Return the messages or the decision of an intent; raises ``CorruptLog`` for another value."""
    try:
        version, count = _HEAD.unpack_from(intent)
        if version > _MARKER:
            raise NewerFormat(f"outputs of version {version} in a store: a newer release's")
        read = _marker if version == _MARKER else _messages
        found, at = read(intent, count)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog("what a consumer's store has of its outputs is not what was") from error
    if not version or at != len(intent):
        raise CorruptLog("what a consumer's store has of its outputs is not what was written")
    return found


def _messages(intent: bytes, count: int) -> tuple[list[NewMessage], int]:
    at = _HEAD.size
    found = []
    for _ in range(count):
        tags, envelope = _LENGTHS.unpack_from(intent, at)
        at += _LENGTHS.size
        names = tuple(intent[at : at + tags].decode().split("\n"))
        found.append(NewMessage(intent[at + tags : at + tags + envelope], names))
        at += tags + envelope
    return found, at


def _marker(intent: bytes, count: int) -> tuple[ProducerDecision, int]:
    producer, through = _DECISION.unpack_from(intent, _HEAD.size)
    at = _HEAD.size + _DECISION.size
    begins = {}
    for _ in range(count):
        lsn, length = _BEGIN.unpack_from(intent, at)
        at += _BEGIN.size
        begins[intent[at : at + length].decode()] = lsn
        at += length
    return ProducerDecision(producer, through, begins), at


def content_of(intent: bytes) -> bytes:
    """Return what tells an intent from any other, as the log keeps it with its name's highest."""
    return hashlib.blake2b(intent, digest_size=_CONTENT_BYTES).digest()
