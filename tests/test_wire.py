"""The codec between the wire and the core (DESIGN §3)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rifl._grpc import status
from rifl._wire import labels, records
from rifl._wire.header import HEADER_KEY, find_header, fingerprint, parse_call
from rifl.core import BadHeader, CompletionRecord, Outcome, RpcId
from rifl.core._shared.call import MAX_RANGES, check_acknowledgements, pairs_from_ranges
from rifl.v1 import rifl_pb2

METHOD = "/p.S/M"
REQUEST = b"request"


def header(**fields: object) -> bytes:
    fields = {"client_id": 7, "token": b"t" * 32, **fields}
    return rifl_pb2.CallHeader(**fields).SerializeToString()  # type: ignore[arg-type]


def parse(**fields: object) -> object:
    return parse_call(header(**fields), METHOD, REQUEST)


_U64 = st.one_of(
    st.integers(0, 70),
    st.integers(0, 2**64 - 1),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1]),
)
_HEADERS = st.builds(
    lambda identity, **fields: header(**identity, **fields),
    st.one_of(
        st.builds(dict, seq=_U64),
        st.builds(dict, key=st.binary(max_size=70)),
        st.just({}),
    ),
    client_id=_U64,
    first_incomplete=_U64,
    completed=st.lists(_U64, max_size=140),
    attempt=st.integers(0, 2**32 - 1),
    content_hash=st.binary(max_size=70),
    time_us=_U64,
)


def only_valid_or_bad_header(value: bytes) -> None:
    try:
        call = parse_call(value, METHOD, REQUEST)
    except BadHeader:
        return
    # What passes keeps every rule of the wire format.
    assert 1 <= call.client_id < 2**64
    assert call.attempt >= 1
    if call.key is None:
        assert call.seq is not None
        check_acknowledgements(call.seq, call.first_incomplete, call.completed)
        assert len(call.completed) <= MAX_RANGES
    else:
        assert call.seq is None
        assert 1 <= len(call.key) <= 64
        assert (call.first_incomplete, list(call.completed)) == (1, [])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
@example(b"")
@example(b"\x0b" * 400)
@example(b"\x08" + b"\xff" * 11)
@example(b"\xff" * 5000)
def test_garbage_is_a_bad_header(value: bytes) -> None:
    """No bytes raise anything but BadHeader."""
    only_valid_or_bad_header(value)


@settings(max_examples=400, deadline=None)
@given(_HEADERS, st.data())
def test_mutated_headers_are_valid_or_bad(value: bytes, data: st.DataObject) -> None:
    """Headers with any numbers, cut, spliced or with bytes changed, either keep all rules
    or are BadHeader."""
    only_valid_or_bad_header(value)
    mutated = bytearray(value)
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(value)), st.integers(0, 255)), max_size=4)
    ):
        mutated[at : at + data.draw(st.integers(0, 2))] = bytes([byte])
    only_valid_or_bad_header(bytes(mutated))
    only_valid_or_bad_header(value[: data.draw(st.integers(0, len(value)))])


@pytest.mark.parametrize(
    "fields",
    [
        {"seq": 0},
        {"seq": 2**63},
        {"seq": 2**64 - 1},
        {},
        {"client_id": 0, "seq": 1},
        {"seq": 5, "first_incomplete": 6},
        {"seq": 5, "first_incomplete": 2**64 - 1},
        {"key": b""},
        {"key": b"k" * 256},
        {"key": b"k" * 3000},
        {"key": b"k" * 6000},
        {"key": b"k", "first_incomplete": 2},
        {"key": b"k", "completed": [1, 1]},
        {"seq": 500, "completed": [1, 1] * 65},
        {"seq": 5, "completed": [1]},
        {"seq": 5, "completed": [0, 1]},
        {"seq": 5, "completed": [1, 0]},
        {"seq": 5, "completed": [4, 1]},
        {"seq": 5, "completed": [1, 90]},
        {"seq": 5, "completed": [10, 2**64 - 1]},
        {"seq": 5, "content_hash": b"h" * 65},
    ],
)
def test_each_rule_of_the_header_is_checked(fields: dict[str, object]) -> None:
    """One broken rule is enough for BadHeader (DESIGN §3, §4 step 1)."""
    with pytest.raises(BadHeader):
        parse(**fields)


def test_a_truncated_header_is_bad_at_every_length_or_means_less() -> None:
    """A header cut anywhere never becomes a call with other numbers (DESIGN §4, step 1)."""
    value = header(seq=300, first_incomplete=200, completed=[5, 20, 1, 1], attempt=3)
    whole = parse_call(value, METHOD, REQUEST)
    for length in range(len(value)):
        try:
            call = parse_call(value[:length], METHOD, REQUEST)
        except BadHeader:
            continue
        assert (call.client_id, call.seq) == (whole.client_id, whole.seq)
        assert call.first_incomplete in (1, whole.first_incomplete)


def test_an_oversized_header_is_refused_unread() -> None:
    """More than 4096 bytes are refused even if they would parse."""
    padding = b"\xfa\x06" + b"\xa0\x1f" + bytes(4000)
    assert parse_call(header(seq=1) + padding, METHOD, REQUEST).seq == 1
    with pytest.raises(BadHeader):
        parse_call(header(seq=1) + padding + bytes(100), METHOD, REQUEST)


@pytest.mark.parametrize(
    "unknown",
    [
        b"\xa0\x06\x01",  # field 100, a varint
        b"\xa2\x06\x03abc",  # field 100, bytes
        b"\xa5\x06\x00\x00\x00\x00",  # field 100, fixed32
        b"\xa1\x06" + bytes(8),  # field 100, fixed64
        b"\xa3\x06\xa4\x06",  # field 100, a group
    ],
)
def test_fields_of_a_newer_version_are_ignored(unknown: bytes) -> None:
    """A header with fields we do not know is a valid header (DESIGN §3, one wire format)."""
    call = parse_call(unknown + header(seq=9, attempt=2) + unknown, METHOD, REQUEST)
    assert (call.client_id, call.seq, call.attempt) == (7, 9, 2)


def test_all_that_a_header_says_arrives() -> None:
    """Every field reaches the call; 0 means 1 where the format says so (rifl.proto)."""
    call = parse_call(
        header(
            seq=30,
            first_incomplete=5,
            completed=pairs_from_ranges(5, [(7, 9), (11, 11)]),
            attempt=4,
            time_us=2**64 - 1,
            seed=17,
            max_response_bytes=1000,
        ),
        METHOD,
        REQUEST,
    )
    assert call.rpc_id == RpcId(7, seq=30)
    assert (call.token, call.method, call.first_incomplete) == (b"t" * 32, METHOD, 5)
    assert list(call.completed) == [(7, 9), (11, 11)]
    assert (call.attempt, *call.stamp) == (4, 2**64 - 1, 17)
    assert (call.max_response_bytes, call.retried_by_grpc) == (1000, False)
    plain = parse_call(header(key=b"k" * 255), METHOD, REQUEST)
    assert plain.rpc_id == RpcId(7, key=b"k" * 255)
    assert (plain.attempt, plain.first_incomplete) == (1, 1)
    assert pickle.loads(pickle.dumps(plain.rpc_id)) == plain.rpc_id  # noqa: S301 - our own


def test_the_last_seq_is_valid() -> None:
    """2^63 - 1 is the largest seq (rifl.proto)."""
    assert parse_call(header(seq=2**63 - 1), METHOD, REQUEST).seq == 2**63 - 1


_TEXT = st.binary(max_size=20)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["/a/b", "/a/c", "/a/b "]), _TEXT, st.sampled_from([b"", b"h"])),
        min_size=2,
        max_size=2,
        unique_by=lambda it: (it[0], it[2] or it[1], bool(it[2])),
    )
)
@example([("/a/b", b"x", b""), ("/a/b", b"", b"x")])
@example([("/a/b", b"x\x00/a/b", b""), ("/a/b", b"x", b"")])
@example([("/a/b", b"", b""), ("/a/c", b"", b"")])
def test_fingerprints_tell_payloads_apart(pair: list[tuple[str, bytes, bytes]]) -> None:
    """Another method, request or content hash gives another fingerprint (DESIGN §4, step 2)."""
    first, second = (fingerprint(*it) for it in pair)
    assert first != second
    assert len(first) == len(second) == 16


def test_the_name_of_a_method_has_no_nul() -> None:
    """It would pass for that of another method's payload (DESIGN §4, step 2)."""
    with pytest.raises(BadHeader, match="no NUL"):
        fingerprint("/a/b\0", b"h")


def test_a_content_hash_stands_for_the_request() -> None:
    """With a content hash the serialisation may differ from attempt to attempt (DESIGN §4)."""
    assert fingerprint(METHOD, b"a", b"hash") == fingerprint(METHOD, b"b", b"hash")
    calls = [parse_call(header(seq=1, content_hash=b"h"), METHOD, r) for r in (b"a", b"b")]
    assert calls[0].fingerprint == calls[1].fingerprint


_PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
_METADATA = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "x-y"]), _PRINTABLE),
        st.tuples(st.sampled_from(["a-bin", "x-y-bin"]), st.binary(max_size=12)),
    ),
    max_size=4,
).map(tuple)
_RECORDS = st.builds(
    CompletionRecord,
    st.integers(0, 16),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.one_of(st.none(), st.binary(max_size=20)),
    _METADATA,
    _METADATA,
    st.sampled_from(Outcome),
    st.sampled_from(["", "OUTCOME_UNKNOWN"]),
)


@settings(deadline=None)
@given(_RECORDS)
@example(CompletionRecord(response=None))
@example(CompletionRecord(response=b""))
def test_records_come_back_whole(record: CompletionRecord) -> None:
    """Status, message, metadata and response bytes survive the store, and an empty response
    is not none (DESIGN §4, an answer is recorded whole)."""
    assert records.record_from_bytes(records.record_to_bytes(record)) == record
    assert records.record_from_message(records.record_to_message(record)) == record


def test_a_record_of_a_newer_version_is_read() -> None:
    """Unknown fields are skipped and an outcome we do not know is unknown (DESIGN §3)."""
    data = records.record_to_bytes(CompletionRecord(5, "gone")) + b"\x30\x63" + b"\xa0\x06\x01"
    record = records.record_from_bytes(data)
    assert (record.code, record.details, record.outcome) == (5, "gone", Outcome.UNKNOWN)


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0b", b"\x12\x05ab", b"\x12\x02\xff\xfe"])
def test_damaged_records_are_value_errors(data: bytes) -> None:
    """Stored bytes that are no record are told as such (record_from_bytes' contract)."""
    with pytest.raises(ValueError, match="CompletionRecord"):
        records.record_from_bytes(data)


@pytest.mark.parametrize(
    "record",
    [
        CompletionRecord(2, "no such file: 'caf\udce9'"),
        CompletionRecord(trailing_metadata=(("x", "caf\udce9"), ("x-bin", "\udce9"))),
    ],
)
def test_text_no_encoding_takes_is_recorded_all_the_same(record: CompletionRecord) -> None:
    """A handler ran, so its answer is recorded whatever its text holds: file names with
    stray bytes get into messages (DESIGN §4, step 6)."""
    read = records.record_from_bytes(records.record_to_bytes(record))
    assert (read.code, len(read.trailing_metadata)) == (record.code, len(record.trailing_metadata))
    assert read.details == record.details.replace("\udce9", "?")


def test_metadata_grpc_would_not_send_does_not_spoil_the_record() -> None:
    """Bytes under a text key come back as text, and bytes no text entry may hold leave the
    rest readable (DESIGN §4, an answer is recorded whole)."""
    record = CompletionRecord(response=b"r", trailing_metadata=(("y", b"bytes"), ("z", b"\xffz")))
    read = records.record_from_bytes(records.record_to_bytes(record))
    assert read == CompletionRecord(response=b"r", trailing_metadata=(("y", "bytes"), ("z", "?z")))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=6), st.one_of(st.text(), st.binary())), max_size=4))
@example([(status.DETAILS_KEY, b"\xff\xff")])
@example([(status.DETAILS_KEY, "text")])
@example([(labels.OUTCOME_KEY, b"executed")])
@example([(labels.OUTCOME_KEY, "made-up")])
def test_what_a_peer_answers_never_raises(metadata: list[tuple[str, str | bytes]]) -> None:
    """Trailing metadata of any kind is read as nothing of ours (wire's contract)."""
    assert labels.parse_outcome(metadata) is None
    assert labels.read_refusal(metadata) is None


@pytest.mark.parametrize("outcome", list(Outcome))
def test_outcomes_travel(outcome: Outcome) -> None:
    """Each outcome has a word and a number on the wire, and both come back (DESIGN §3)."""
    assert labels.parse_outcome([("a", "b"), (labels.OUTCOME_KEY, outcome.value)]) is outcome
    reply = rifl_pb2.ResolveReply(outcome=records.outcome_to_wire(outcome))
    assert records.parse_resolution(reply) == (outcome, None)


def test_a_resolution_brings_its_record() -> None:
    """ResolveReply with a record gives the record; without an outcome it is unknown (DESIGN §3)."""
    record = CompletionRecord(response=b"answer")
    reply = rifl_pb2.ResolveReply(record=records.record_to_message(record))
    assert records.parse_resolution(reply) == (Outcome.UNKNOWN, record)


def test_the_header_is_found_by_its_name() -> None:
    """Of several entries the one called rifl-bin counts, and none is None (DESIGN §3)."""
    assert find_header([("a", "b"), (HEADER_KEY, b"1"), (HEADER_KEY, b"2")]) == b"1"
    assert find_header([("rifl", "b")]) is None
    assert labels.parse_outcome(None) is None


@settings(deadline=None)
@given(
    record=st.builds(
        CompletionRecord,
        code=st.integers(0, 16),
        details=st.text(st.characters(max_codepoint=127), max_size=3),
        response=st.one_of(st.none(), st.binary(max_size=300)),
        initial_metadata=st.sampled_from([(), (("a", "b"),)]),
        trailing_metadata=st.sampled_from([(), (("a-bin", b"b"),)]),
        outcome=st.sampled_from(Outcome),
        reason=st.sampled_from(["", "OUTCOME_UNKNOWN"]),
        messages=st.sampled_from([(), (b"m",)]),
    )
)
@example(CompletionRecord(response=b"x" * 70_000))
@example(CompletionRecord(response=b""))
def test_records_are_stored_as_protobuf_writes_them(record: CompletionRecord) -> None:
    """What is written by hand is, byte for byte, what protobuf writes (DESIGN §4)."""
    assert records.record_to_bytes(record) == records.record_to_message(record).SerializeToString()
