"""The rules for streams (DESIGN §3, §4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rifl.core.call import Call
from rifl.core.policy import MethodPolicy
from rifl.core.record import CompletionRecord
from rifl.core.serving import HandlerResult
from rifl.core.streams import RequestStream, ResponseStream

_messages = st.lists(st.binary(max_size=4), max_size=6)


def fingerprint(messages: list[bytes], method: str = "/s/M", buffer_bytes: int = 0) -> bytes | None:
    call = Call(1, b"", 1, method=method)
    stream = RequestStream(call, buffer_bytes)
    for message in messages:
        stream.take(message)
    assert call.fingerprint is None
    stream.end()
    return call.fingerprint


@given(_messages, _messages)
def test_a_fingerprint_tells_streams_apart(one: list[bytes], other: list[bytes]) -> None:
    """Their bytes and their boundaries count, and the method (DESIGN §4)."""
    assert (fingerprint(one) == fingerprint(other)) == (one == other)
    assert fingerprint(one) != fingerprint(one, "/s/Other")


@given(_messages, st.integers(0, 7), st.integers(1, 120))
def test_what_was_sent_and_what_is_left_is_the_stream(
    messages: list[bytes], received: int, limit: int
) -> None:
    """A resumed caller misses nothing and gets nothing twice (DESIGN §4)."""
    stream = ResponseStream(MethodPolicy(max_response_bytes=limit), received)
    sent = [message for message in messages if stream.add(message)]
    assert sent == messages[received:]
    record = stream.result(HandlerResult(CompletionRecord())).record
    if stream.overflown:
        assert (record.reason, record.messages) == ("RESPONSE_TOO_LARGE", ())
    elif received <= len(messages):
        assert list(ResponseStream.rest(record, received)) == messages[received:]
    assert sum(map(len, stream.kept)) <= limit
