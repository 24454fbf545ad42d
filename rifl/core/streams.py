"""The rules for calls with a stream on one side (DESIGN §3, §4)."""

from __future__ import annotations

from hashlib import blake2b

from rifl.core.call import Call
from rifl.core.errors import BadHeader, ResponseTooLarge
from rifl.core.policy import MethodPolicy
from rifl.core.record import CompletionRecord
from rifl.core.serving import HandlerResult, refusal_record

__all__ = ["RequestStream", "ResponseStream"]

_FINGERPRINT_BYTES = 16
# What a kept message costs beside its bytes: bounds a stream of empty ones.
_MESSAGE_BYTES = 16


class RequestStream:
    """A request stream as it arrives: its fingerprint, and its beginning.

    Invariants:

    1. The call's fingerprint is set when the stream has ended, never before: it
       covers all of it. A handler that never saw the end leaves none.
    2. At most ``buffer_bytes`` and one message are kept.

    Not thread-safe.
    """

    __slots__ = ("_call", "_digest", "_kept_bytes", "_limit", "buffered", "ended")

    def __init__(self, call: Call, buffer_bytes: int) -> None:
        self._call = call
        self._limit = buffer_bytes
        self._kept_bytes = 0
        # None where the caller sent a content hash instead.
        self._digest = None
        if call.fingerprint is None:
            person = blake2b(b"stream:" + call.method.encode(), digest_size=16).digest()
            self._digest = blake2b(digest_size=_FINGERPRINT_BYTES, person=person)
        self.buffered: list[bytes] = []
        self.ended = False

    def take(self, message: bytes) -> None:
        """Count a message into the fingerprint."""
        if self._digest is not None:
            self._digest.update(len(message).to_bytes(8, "big"))
            self._digest.update(message)

    def keep(self, message: bytes) -> bool:
        """Take a message and keep it; False when no more may be kept."""
        self.take(message)
        self.buffered.append(message)
        self._kept_bytes += len(message) + _MESSAGE_BYTES
        return self._kept_bytes <= self._limit

    def end(self) -> None:
        """Note that the stream has ended, well."""
        self.ended = True
        if self._digest is not None:
            self._call.fingerprint = self._digest.digest()


class ResponseStream:
    """The messages of a response stream as its handler makes them.

    They leave as they come; the final status leaves when the record is durable.
    What is kept is bounded by the method's ``max_response_bytes``: a longer
    stream goes on for the caller that is there, and later attempts are told that
    it was too long. ``received`` messages the caller has already. Not thread-safe.
    """

    __slots__ = ("_bytes", "_limit", "_received", "count", "kept", "overflown")

    def __init__(self, policy: MethodPolicy, received: int = 0) -> None:
        self._limit = policy.max_response_bytes
        self._received = received
        self._bytes = 0
        self.count = 0
        self.kept: list[bytes] = []
        self.overflown = False

    def add(self, message: bytes) -> bool:
        """Keep a message; tell whether the caller still needs it."""
        self.count += 1
        if not self.overflown:
            self._bytes += len(message) + _MESSAGE_BYTES
            self.overflown = self._bytes > self._limit
            if self.overflown:
                self.kept = []
            else:
                self.kept.append(message)
        return self.count > self._received

    def result(self, result: HandlerResult) -> HandlerResult:
        """Return what is recorded of a handler that ended with ``result``."""
        record = result.record
        if self.overflown:
            record = refusal_record(
                ResponseTooLarge(f"the answer's messages have more than {self._limit} bytes")
            )
        else:
            record = record._replace(response=None, messages=tuple(self.kept))
        return result._replace(record=record)

    @staticmethod
    def rest(record: CompletionRecord, received: int) -> tuple[bytes, ...]:
        """Return the messages that a caller with ``received`` of them lacks."""
        if received > len(record.messages) and not record.reason:
            raise BadHeader(f"{received} messages were received, of {len(record.messages)} sent")
        return record.messages[received:]
