"""The outputs of a transaction: what is appended once its store has committed (DESIGN-LOG §14).

They are recorded, as they will be appended, in the same commit as the handlers' effects: an
*intent*. Whoever takes the shard over appends it again, under the name and the seq it was recorded
with, so that it is in the log once (L3).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from sharedlog._core.draft import Bounds, check_spread
from sharedlog._core.errors import CorruptLog, InvalidRequest
from sharedlog._core.producers import NewMessage
from sharedlog._core.publishing import Placed, committing

_VERSION = 1
_CONTENT_BYTES = 16
_HEAD = struct.Struct(">BI")
_LENGTHS = struct.Struct(">II")


class Outputs:
    """What the handlers of one transaction publish: as much as one append takes."""

    def __init__(self, bounds: Bounds) -> None:
        """Nothing yet."""
        self._bounds = bounds
        self._spread: set[str] = set()
        self.messages: list[Placed] = []
        self.size = 0

    def add(self, message: Placed) -> None:
        """Take a message; raises ``InvalidRequest`` where the append has no room for it."""
        spread = {message.tag, *self._spread}
        check_spread(spread, self._bounds.tags)
        if (
            len(self.messages) >= self._bounds.entries
            or self.size + message.size > self._bounds.append_bytes
        ):
            raise InvalidRequest(
                f"a transaction publishes {self._bounds.entries} messages and "
                f"{self._bounds.append_bytes} bytes at most"
            )
        self._spread = spread
        self.messages.append(message)
        self.size += message.size


def recorded(messages: Sequence[Placed]) -> bytes:
    """Return the intent to append these messages, as a store keeps it; empty: there are none."""
    if not messages:
        return b""
    parts = [_HEAD.pack(_VERSION, len(messages))]
    for envelope, tags in committing(messages):
        joined = "\n".join(tags).encode()
        parts += (_LENGTHS.pack(len(joined), len(envelope)), joined, envelope)
    return b"".join(parts)


def intended(intent: bytes) -> list[NewMessage]:
    """Return what is to be appended; raises ``CorruptLog`` for what is no intent."""
    try:
        version, count = _HEAD.unpack_from(intent)
        at = _HEAD.size
        found = []
        for _ in range(count):
            tags, envelope = _LENGTHS.unpack_from(intent, at)
            at += _LENGTHS.size
            names = tuple(intent[at : at + tags].decode().split("\n"))
            found.append(NewMessage(intent[at + tags : at + tags + envelope], names))
            at += tags + envelope
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog("what a consumer's store has of its outputs is not what was") from error
    if version != _VERSION or at != len(intent):
        raise CorruptLog("what a consumer's store has of its outputs is not what was written")
    return found


def content_of(intent: bytes) -> bytes:
    """Return what tells an intent from any other, as the log keeps it with its name's highest."""
    return hashlib.blake2b(intent, digest_size=_CONTENT_BYTES).digest()
