"""The envelope of batched calls (DESIGN §4), whatever bytes a peer puts into it."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from google.protobuf import descriptor_pb2, empty_pb2, struct_pb2, wrappers_pb2
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rifl._wire import envelope
from rifl._wire.envelope import ItemReply, Unreadable
from rifl._wire.header import fingerprint
from rifl.core import BadHeader, BatchTooLarge, CompletionRecord, Outcome
from rifl.core._shared.stream_end import end_marker
from rifl.v1 import rifl_pb2

METHOD = "/p.S/M"
KEYS = st.sampled_from([b"", b"k", b"key" * 21])


def header(**fields: object) -> bytes:
    fields = {"client_id": 7, "token": b"t" * 32, **fields}
    return rifl_pb2.CallHeader(**fields).SerializeToString()  # type: ignore[arg-type]


def parse(body: bytes, **fields: object) -> list[envelope.BatchedCall]:
    return envelope.parse_batch(header(**fields), METHOD, body, max_items=8, max_bytes=4096)


MESSAGES = (
    empty_pb2.Empty,
    wrappers_pb2.StringValue,
    struct_pb2.Struct,
    descriptor_pb2.FileDescriptorProto,
    rifl_pb2.Batch,
)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.integers(0, 2**62))
@example([b""], 1)
@example([b"r" * 16], 16)
def test_what_is_sent_is_no_message(requests: list[bytes], seq: int) -> None:
    """A server that is not wrapped cannot take a batch for a request of its own, nor the end of
    a stream for a message, whatever its message has for fields (DESIGN §4)."""
    seqs = list(range(seq, seq + len(requests)))
    for sent in (envelope.encode_batch(requests, [], seqs), end_marker(seq)):
        for message in MESSAGES:
            with pytest.raises(DecodeError):
                message.FromString(sent)


@given(st.lists(st.tuples(st.binary(max_size=20), KEYS), min_size=1, max_size=8))
def test_what_is_encoded_is_parsed(items: list[tuple[bytes, bytes]]) -> None:
    """Requests and identities come out in their order, keyed and sequenced mixed (DESIGN §4)."""
    requests, keys = [item[0] for item in items], [item[1] for item in items]
    seqs = list(range(5, 5 + keys.count(b"")))
    calls = parse(envelope.encode_batch(requests, keys if any(keys) else [], seqs))
    assert [call.request for call in calls] == requests
    assert [call.key or b"" for call in calls] == keys
    assert [call.seq for call in calls if call.key is None] == seqs
    assert [call.fingerprint for call in calls] == [fingerprint(METHOD, it) for it in requests]


def test_the_header_holds_for_all_items() -> None:
    """Client, attempt and acknowledgements are the batch's; the ranges count once (DESIGN §4)."""
    body = envelope.encode_batch([b"a", b"b"], [], [9, 12])
    first, second = parse(body, first_incomplete=5, completed=[1, 2, 3, 1], attempt=3)
    assert (first.client_id, first.token, first.attempt) == (7, b"t" * 32, 3)
    assert (first.first_incomplete, first.completed) == (5, [(6, 7), (11, 11)])
    assert (second.first_incomplete, second.completed) == (5, ())


def test_each_item_has_a_seed_of_its_own() -> None:
    """A handler that must be deterministic gets the same in every attempt (DESIGN §3)."""
    body = envelope.encode_batch([b"a", b"b", b"c"], [b"", b"k", b""], [1, 2])
    stamps = [call.stamp for call in parse(body, time_us=11, seed=2**63 + 5)]
    again = [call.stamp for call in parse(body, time_us=11, seed=2**63 + 5, attempt=2)]
    assert stamps == again
    assert len({seed for _, seed in stamps}) == 3
    keyed = blake2b(b"k", digest_size=8, key=(2**63 + 5).to_bytes(8, "little")).digest()
    assert stamps[1] == (11, int.from_bytes(keyed, "little"))


def batch(requests: object = (b"r",), keys: object = (), seqs: object = (1,)) -> bytes:
    return envelope.encode_batch(requests, keys, seqs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"\x00", {}),
        (b"\x00\x00", {}),
        (b"\x00" + batch()[1:], {}),
        (b"\x07", {}),
        (batch()[1:], {}),
        (b"\x0f" + batch()[1:], {}),
        (batch()[:-1], {}),
        (batch() + b"\x0a\xff\xff\xff\xff\x0f", {}),
        (batch([], [], []), {}),
        (batch(seqs=[]), {}),
        (batch(seqs=[1, 2]), {}),
        (batch(seqs=[0]), {}),
        (batch(seqs=[2**63]), {}),
        (batch(keys=[b"k"]), {}),
        (batch(keys=[b"k", b"l"], seqs=[]), {}),
        (batch(keys=[b"k" * 256], seqs=[]), {}),
        (batch(keys=[b"k"], seqs=[]), {"first_incomplete": 2}),
        (batch(keys=[b"k"], seqs=[]), {"completed": [1, 1]}),
        (batch(), {"first_incomplete": 2}),
        (batch(seqs=[3]), {"completed": [1, 5]}),
        (batch(), {"completed": [1]}),
        (batch(), {"seq": 1}),
        (batch(), {"key": b"k"}),
        (batch(), {"client_id": 0}),
        (batch(), {"content_hash": b"h"}),
        (batch(), {"received": 1}),
    ],
)
def test_what_is_no_batch_is_a_bad_header(body: bytes, fields: dict[str, object]) -> None:
    """Truncated, empty, contradictory: refused whole (DESIGN §3)."""
    with pytest.raises(BadHeader):
        parse(body, **fields)


@pytest.mark.parametrize("value", [b"\xff", b"", b"\x00" * 5000])
def test_a_header_that_is_none_is_a_bad_header(value: bytes) -> None:
    """The header is checked like any other (DESIGN §3)."""
    with pytest.raises(BadHeader):
        envelope.parse_batch(value, METHOD, batch(), max_items=8, max_bytes=4096)


@pytest.mark.parametrize(
    "body",
    [
        batch([b"r"] * 9, [], range(1, 10)),
        b"\x07" + b"\x0a\x00" * 1_000_000,
        b"\x07\x0a\x01r" + b"\x12\x00" * 1_000_000,
        batch([b"r"], [], range(1_000_000)),
        batch([b"r"]) + b"\xa2\x06\x00" * 1_000_000,
        batch([b"r" * 5000]),
    ],
    ids=["items", "a million items", "a million keys", "a million seqs", "unknown", "bytes"],
)
def test_a_batch_beyond_its_bounds_is_too_large(body: bytes) -> None:
    """Count and bytes are bounded, whichever field holds them (DESIGN §4, §9)."""
    limit = 4096 if len(body) < 6000 else 1 << 30
    with pytest.raises(BatchTooLarge):
        envelope.parse_batch(header(), METHOD, body, max_items=8, max_bytes=limit)


@settings(max_examples=300)
@given(st.binary(max_size=80), st.binary(max_size=80))
@example(b"\x08\x07", b"\x0a\x01r\x1a\x01\x01")
def test_garbage_is_a_batch_or_a_bad_header(value: bytes, body: bytes) -> None:
    """Nothing else is raised for input from a peer (DESIGN §9)."""
    try:
        calls = envelope.parse_batch(value, METHOD, b"\x07" + body, max_items=8, max_bytes=4096)
    except (BadHeader, BatchTooLarge):
        return
    for call in calls:
        assert (call.seq is None) is not (call.key is None)
        assert call.client_id >= 1


REPLIES = st.lists(
    st.builds(
        ItemReply,
        st.builds(
            CompletionRecord,
            st.integers(0, 16),
            st.text(max_size=5),
            st.one_of(st.none(), st.binary(max_size=5)),
            st.just(()),
            st.sampled_from([(), (("k", "v"),), (("k-bin", b"\xff"),)]),
            st.sampled_from(Outcome),
            st.sampled_from(["", "IN_PROGRESS"]),
        ),
        st.sampled_from(Outcome),
        st.sampled_from([None, 0.0, 0.05]),
        st.sampled_from([{}, {"previous_attempts": "true"}]),
    ),
    min_size=1,
    max_size=6,
)


@given(REPLIES)
def test_replies_come_back_as_they_were_given(replies: list[ItemReply]) -> None:
    """Each item has its own status, metadata, outcome and pushback (DESIGN §4)."""
    found = envelope.parse_reply(envelope.encode_reply(replies), len(replies)).items()
    for reply, given_ in zip(found, replies, strict=True):
        assert reply.outcome is given_.outcome
        record = given_.record
        assert reply.record.response == record.response
        assert (reply.record.code, reply.record.reason) == (record.code, record.reason)
        assert reply.record.trailing_metadata == record.trailing_metadata
        if record.code or record.reason or record.response is None:
            assert reply.retry_after_s == given_.retry_after_s
            assert dict(reply.info) == given_.info


@settings(max_examples=300)
@given(st.binary(max_size=60), st.booleans())
@example(b"\x2a\x01r\x3a\x02\x08\x09", True)
def test_an_answer_of_somebody_else_is_unreadable(body: bytes, marked: bool) -> None:
    """A replica that is not wrapped is found out, whatever it answers (DESIGN §4)."""
    try:
        replies = envelope.parse_reply(b"\x00" * marked + body, 3).items()
    except Unreadable:
        return
    assert marked or body[:1] == b"\x00"
    assert len(replies) == 3


def test_an_echo_is_no_answer() -> None:
    """A server that sends back what it was sent has not understood it (DESIGN §4)."""
    for keys, seqs in (([], [1, 2, 3]), ([b"\x01"] * 3, [])):
        with pytest.raises(Unreadable):
            envelope.parse_reply(envelope.encode_batch([b"r"] * 3, keys, seqs), 3)
