"""Streams over several attempts: requests kept to be sent again, responses counted (DESIGN §4)."""

from __future__ import annotations

# What a kept message costs beside its bytes.
_MESSAGE_BYTES = 16


class Incomplete(Exception):
    """The stream's beginning is not kept any more."""


class KeptRequests:
    """A request stream that several attempts send: what was read of it so far.

    Invariants:

    1. While ``resendable`` every message read is kept: another attempt gets them all.
    2. A stream that is not whole is never ended as if it were: the attempt that lacks
       its beginning breaks.
    3. No more than ``limit`` bytes and one message are kept beyond what the attempt
       that is furthest has taken.

    Not thread-safe.
    """

    __slots__ = ("_base", "_bytes", "_kept", "_overflown", "ended", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ended = False
        self._bytes = 0
        self._kept: list[bytes] = []
        # The first message that is still kept.
        self._base = 0
        self._overflown = False

    @property
    def resendable(self) -> bool:
        """Whether another attempt can be made."""
        return not self._base

    def add(self, message: bytes) -> None:
        """Note the next message of the stream."""
        self._kept.append(message)
        self._bytes += len(message) + _MESSAGE_BYTES
        self._overflown = self._overflown or self._bytes > self.limit

    def end(self) -> None:
        """Note that there are no more."""
        self.ended = True

    def has(self, at: int) -> bool:
        """Whether a message was read."""
        return at < self._base + len(self._kept)

    def take(self, at: int) -> bytes | None:
        """Return message ``at`` for an attempt that had those before; None if it is not read.

        Raises ``Incomplete`` if it is kept no more.
        """
        if at < self._base:
            raise Incomplete
        if not self.has(at):
            return None
        message = self._kept[at - self._base]
        if self._overflown:
            del self._kept[: at + 1 - self._base]
            self._base = at + 1
        return message


class ReceivedResponses:
    """How much of a response stream its caller has, from all attempts together.

    Invariant: an attempt is asked for what follows ``count`` messages, and the next
    one is made when it has ended; so the caller gets each message once, in order.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def take(self) -> None:
        """Note a message that was handed to the caller."""
        self.count += 1

    def asked_after(self) -> int:
        """Return how many messages the next attempt says it needs no more."""
        return self.count
