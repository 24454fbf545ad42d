"""The rules for streams (DESIGN §3, §4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rifl.core import BadHeader, Outcome, OutcomeUnknown
from rifl.core._calling.stream_attempts import Incomplete, KeptRequests
from rifl.core._serving.answer import Answer, HandlerResult, refusal_record
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.streams import RequestStream, ResponseStream
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord
from rifl.core._shared.stream_end import end_marker

_messages = st.lists(st.binary(max_size=4), max_size=6)


def fingerprint(messages: list[bytes], method: str = "/s/M") -> bytes | None:
    call = Call(1, b"", 1, method=method)
    stream = RequestStream(call, 0)
    for message in messages:
        stream.take(message)
    assert call.fingerprint is None
    assert not stream.take(end_marker(len(messages)))
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
    stream = ResponseStream(Call(1, b"", 1), MethodPolicy(max_response_bytes=limit), received)
    sent = [message for message in messages if stream.add(message)]
    assert sent == messages[received:]
    record = stream.result(HandlerResult(CompletionRecord())).record
    if stream.overflown:
        assert (record.reason, record.messages) == ("RESPONSE_TOO_LARGE", ())
    elif received <= len(messages):
        assert list(ResponseStream.rest(record, received)) == messages[received:]
    assert sum(map(len, stream.kept)) <= limit


def ended(answer_of: CompletionRecord | None, *, limit: int = 100, received: int = 0) -> Answer:
    """Make two messages and return what their caller is told where a record stands."""
    policy = MethodPolicy(max_response_bytes=limit)
    stream = ResponseStream(Call(1, b"", 1), policy, received)
    for message in (b"a", b"b"):
        stream.add(message)
    own = stream.result(HandlerResult(CompletionRecord(details="fine"))).record
    return stream.ended(Answer(own if answer_of is None else answer_of, Outcome.EXECUTED))


def test_a_caller_is_told_the_status_of_the_messages_it_has() -> None:
    """What stands is the answer; of other messages than those sent it is none (§4, step 7)."""
    lost = refusal_record(OutcomeUnknown("lost"))
    assert ended(lost).record is lost
    assert ended(None).record.details == "fine"
    # Too long to be recorded, it still is, for this caller, what it is.
    assert ended(None, limit=1).record.details == "fine"
    assert ended(CompletionRecord(messages=(b"a", b"b"))).record.details == "fine"
    for other in ((b"a",), (b"a", b"c"), (b"a", b"b", b"c")):
        with pytest.raises(OutcomeUnknown):
            ended(CompletionRecord(messages=other))
    with pytest.raises(BadHeader):
        ended(None, received=3)


def test_an_end_is_believed_where_its_marker_came() -> None:
    """A stream that broke off has no fingerprint, and its handler's error says so (§4)."""
    call = Call(1, b"", 1, method="/s/M")
    stream = RequestStream(call, 0)
    stream.take(b"a")
    with pytest.raises(BadHeader):
        stream.exhausted()
    assert (stream.ended, stream.broken) == (False, True)
    assert call.fingerprint is None
    raised = HandlerResult(CompletionRecord(2), raised=True)
    assert stream.result(raised).broken
    assert not stream.result(raised._replace(raised=False)).broken
    whole = RequestStream(call, 0)
    whole.take(b"a")
    assert whole.take(end_marker(0))
    assert not whole.take(end_marker(2))
    assert call.fingerprint == fingerprint([b"a", end_marker(0)])
    assert not whole.result(raised).broken


@given(st.lists(st.binary(max_size=3), max_size=6), st.integers(0, 90), st.data())
def test_attempts_get_the_whole_stream_or_break(
    messages: list[bytes], limit: int, data: st.DataObject
) -> None:
    """However attempts take turns, each has a beginning of the stream, or breaks (DESIGN §9)."""
    kept, source = KeptRequests(limit), iter(messages)
    got: list[list[bytes]] = [[], []]
    broken = [False, False]
    for turn in data.draw(st.lists(st.integers(0, 1), max_size=16)):
        at = len(got[turn])
        try:
            if not kept.has(at) and (more := next(source, None)) is not None:
                kept.add(more)
            message = kept.take(at)
        except Incomplete:
            broken[turn] = True
            continue
        if message is not None:
            got[turn].append(message)
        assert not broken[turn]
        assert got[turn] == messages[: len(got[turn])]
    if kept.resendable:
        assert broken == [False, False]
