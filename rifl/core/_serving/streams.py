"""The rules for calls with a stream on one side, on the server (DESIGN §3, §4)."""

from __future__ import annotations

from hashlib import blake2b

from rifl.core._serving.admission import Admission, admit, admit_stream
from rifl.core._serving.answer import Answer, HandlerResult, refusal_record
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.records import Records
from rifl.core._shared.call import Call
from rifl.core._shared.errors import BadHeader, OutcomeUnknown, ResponseTooLarge
from rifl.core._shared.record import CompletionRecord
from rifl.core._shared.stream_end import is_end_marker

_FINGERPRINT_BYTES = 16
# What a kept message costs beside its bytes: bounds a stream of empty ones.
_MESSAGE_BYTES = 16


class RequestStream:
    """A request stream as it arrives: its fingerprint, its beginning, and its end.

    A shell tells ``take`` of each message, and keeps them with ``keep`` until the stream
    ends or no more may be kept; then it takes the steps of ``admit``. The handler gets what
    ``next`` has, then what arrives. Where gRPC says that there are no more messages, and
    the marker has not come, the shell tells ``exhausted``: gRPC says the same of a stream
    that broke off.

    Invariants:

    1. The call's fingerprint is set when the end marker has come, never before: it
       covers all of the stream. A handler that never saw the end leaves none.
    2. At most ``buffer_bytes`` and one message are kept.
    3. ``ended`` and ``broken`` are never both true; a handler that saw neither of
       them did not read to the end.

    Not thread-safe.
    """

    __slots__ = (
        "_call",
        "_count",
        "_digest",
        "_kept_bytes",
        "_limit",
        "_position",
        "broken",
        "buffered",
        "ended",
    )

    def __init__(self, call: Call, buffer_bytes: int) -> None:
        call.streamed = True
        self._call = call
        self._limit = buffer_bytes
        self._kept_bytes = 0
        self._count = 0
        # None where the caller sent a content hash instead.
        self._digest = None
        if call.fingerprint is None:
            person = blake2b(b"stream:" + call.method.encode(), digest_size=16).digest()
            self._digest = blake2b(digest_size=_FINGERPRINT_BYTES, person=person)
        self.buffered: list[bytes] = []
        self._position = 0
        self.ended = False
        self.broken = False

    def take(self, message: bytes) -> bool:
        """Count a message into the fingerprint; False: it is the marker, and the end."""
        if is_end_marker(message, self._count):
            self.ended = True
            if self._digest is not None:
                self._call.take_digest(self._digest.digest())
            return False
        self._count += 1
        if self._digest is not None:
            self._digest.update(len(message).to_bytes(8, "big"))
            self._digest.update(message)
        return True

    def keep(self, message: bytes) -> bool:
        """Keep a message that was taken; False when no more may be kept."""
        self.buffered.append(message)
        self._kept_bytes += len(message) + _MESSAGE_BYTES
        return self._kept_bytes <= self._limit

    def next(self) -> bytes | None:
        """Return the next kept message for the handler, None when it had them all."""
        buffered = self.buffered
        if self._position == len(buffered):
            return None
        message = buffered[self._position]
        self._position += 1
        if self._position == len(buffered) and not self.ended:
            buffered.clear()
            self._position = 0
        return message

    def drop(self) -> None:
        """Keep nothing: what is left is read for its fingerprint only."""
        self.buffered.clear()

    def break_off(self) -> None:
        """Note that no more of it will come, and that this is not its end."""
        self.broken = True

    def exhausted(self) -> None:
        """Note that gRPC has no more messages, and the marker has not come.

        Raises ``BadHeader``, for a caller that is still there: it knows no marker.
        """
        self.break_off()
        raise BadHeader(
            "the request stream came without its end marker: a stream that broke off looks "
            "the same, so it is not taken for a whole one"
        )

    def admit(self, store: Records, policy: MethodPolicy, rest: Later) -> Admission:
        """Decide about the call: by its payload where that is known, else by its identity.

        ``rest`` reads the stream to its end, keeping nothing.
        """
        if self.ended or self._call.fingerprint is not None:
            return admit(store, self._call, policy)
        return admit_stream(store, self._call, policy, rest)

    def result(self, result: HandlerResult) -> HandlerResult:
        """Return what the handler did, and whether its stream broke off under it."""
        if self.broken and result.raised:
            return result._replace(broken="the request stream broke off")
        return result


class ResponseStream:
    """The messages of a response stream as its handler makes them.

    They leave as they come; the final status leaves when the record is durable.
    What is kept is bounded by the method's ``max_response_bytes``: a longer
    stream goes on to its handler's end, with or without a caller, and later attempts are
    told that it was too long. ``received`` messages the caller has already.

    Invariants:

    1. What is recorded is every message that was made, in order, or none of them.
    2. A caller that is told a success has every message of the record that stands,
       and no other.

    Not thread-safe.
    """

    __slots__ = (
        "_bytes",
        "_limit",
        "_live",
        "_received",
        "_recorded",
        "count",
        "here",
        "kept",
        "overflown",
    )

    def __init__(self, call: Call, policy: MethodPolicy, received: int = 0) -> None:
        call.streamed = True
        self._limit = policy.max_response_bytes
        self._received = received
        self._bytes = 0
        self._live = self._recorded = CompletionRecord()
        self.count = 0
        self.kept: list[bytes] = []
        self.overflown = False
        # Whether the caller is; its handler runs on when it is not.
        self.here = True

    def add(self, message: bytes) -> bool:
        """Keep a message; return whether to send it: whether a connected caller lacks it."""
        self.count += 1
        if not self.overflown:
            self._bytes += len(message) + _MESSAGE_BYTES
            self.overflown = self._bytes > self._limit
            if self.overflown:
                self.kept = []
            else:
                self.kept.append(message)
        return self.here and self.count > self._received

    def leave(self) -> None:
        """Note that the caller is gone."""
        self.here = False

    def result(self, result: HandlerResult) -> HandlerResult:
        """Return what is recorded of a handler that ended with ``result``."""
        self._live = record = result.record
        if self.overflown:
            record = refusal_record(
                ResponseTooLarge(f"the answer's messages have more than {self._limit} bytes")
            )
        else:
            record = record._replace(response=None, messages=tuple(self.kept))
        self._recorded = record
        return result._replace(record=record)

    def ended(self, answer: Answer) -> Answer:
        """Return what the caller is told after the messages it was sent.

        Of a record that was made here: what the handler ended with, also where it was
        too long to be recorded. Where another one stands: that, if its messages are
        these; else ``OutcomeUnknown`` is raised, and ``BadHeader`` as by ``rest``.
        """
        record = answer.record
        if record is not self._recorded:
            if record.reason:
                return answer
            if self.overflown or record.messages != self._recorded.messages:
                raise OutcomeUnknown("another answer stands, and not the messages that were sent")
        if self.count < self._received:
            raise _beyond(self._received, self.count)
        return answer._replace(record=self._live)

    @staticmethod
    def rest(record: CompletionRecord, received: int) -> tuple[bytes, ...]:
        """Return the messages that a caller with ``received`` of them lacks."""
        if received > len(record.messages) and not record.reason:
            raise _beyond(received, len(record.messages))
        return record.messages[received:]


def _beyond(received: int, sent: int) -> BadHeader:
    return BadHeader(f"{received} messages were received, of {sent} sent")
