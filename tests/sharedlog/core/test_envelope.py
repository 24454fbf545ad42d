"""The envelope carries what was published, within bounds (DESIGN-LOG §12)."""

import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharedlog._core.envelope import About, key_bytes, pack
from sharedlog._core.errors import CorruptLog, InvalidRequest, NewerFormat
from sharedlog._core.message import Message
from sharedlog._core.position import Position
from sharedlog.v1 import sharedlog_pb2 as pb

PLACE = Position(7, 0, 1, "f00d", 0)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def read(envelope):
    return Message(envelope, PLACE, "orders", 3, 1_000_000)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128)


@settings(max_examples=200, deadline=None)
@given(
    value=st.binary(max_size=2000),
    key=st.none() | st.binary(max_size=1024),
    headers=st.dictionaries(NAMES, st.binary(max_size=100), max_size=20),
    kind=TEXTS,
    schema=TEXTS,
    cause=TEXTS,
    at=st.none() | st.integers(-(1 << 50), 1 << 50),
)
def test_what_was_published_is_read(value, key, headers, kind, schema, cause, at):
    """All of it, and it pickles."""
    about = About(headers, kind, schema, PARENT, "a=b", cause, at)
    found = read(pack(value, key_bytes(key), about, 5_000_000))
    assert (found.value, found.key, found.headers) == (value, key, headers)
    assert found.content_type == (kind or "application/octet-stream")
    assert (found.schema_name, found.causation_id) == (schema, cause)
    assert (found.trace_parent, found.trace_state) == (PARENT, "a=b")
    assert found.event_time.timestamp() == pytest.approx(5 if at is None else at / 1e6)
    assert found.append_time == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301 - our own
    assert (copy, hash(copy), repr(copy)) == (found, hash(found), repr(found))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_envelope_are_refused_by_type(data):
    """Whatever they are, a reader gets a message or a ``LogError``."""
    try:
        found = read(data)
    except (CorruptLog, NewerFormat):
        return
    assert isinstance(found.value, bytes)


def test_texts_and_protobuf_messages_say_what_they_are():
    """Content type and schema name travel; ``parse`` holds them."""
    text = read(pack("grüße", None, None, 0))
    assert (text.text, text.content_type) == ("grüße", "text/plain; charset=utf-8")
    order = pb.Header(name="a", value=b"b")
    found = read(pack(order, b"k", None, 0))
    assert (found.content_type, found.schema_name) == (
        "application/protobuf",
        "sharedlog.v1.Header",
    )
    assert found.parse(pb.Header) == order
    with pytest.raises(InvalidRequest, match=r"sharedlog\.v1\.Header, not a sharedlog\.v1\.Span"):
        found.parse(pb.Span)
    with pytest.raises(InvalidRequest, match="is no"):
        read(pack(b"\xff\xff", None, None, 0)).parse(pb.Header)
    assert read(pack(bytearray(b"ab"), None, None, 0)) == read(
        pack(memoryview(b"ab"), None, None, 0)
    )
    assert read(pack(b"", None, None, 0)) != object()
    assert read(pack(b"", None, None, 0)).key is None
    assert read(pack(b"", b"", None, 0)).key == b""


@pytest.mark.parametrize(
    ("value", "about"),
    [
        (7, None),
        (None, None),
        (b"x" * ((1 << 20) + 1), None),
        ("x" * ((1 << 20) + 1), None),
        (pb.Header(value=b"x" * (1 << 20)), None),
        ("\ud800", None),
        (b"", About({"": b""})),
        (b"", About({"a b": b""})),
        (b"", About({"é": b""})),
        (b"", About({"a" * 129: b""})),
        (b"", About({3: b""})),
        (b"", About({"a": 3})),
        (b"", About({"a": "\ud800"})),
        (b"", About({str(each): b"" for each in range(65)})),
        (b"", About({"a": b"x" * (16 << 10)})),
        (b"", About(content_type="x" * 513)),
        (b"", About(schema_name="é" * 257)),
        (b"", About(causation_id=7)),
        (b"", About(trace_parent="00-1-2-3")),
        (b"", About(event_time_us=1 << 63)),
    ],
)
def test_what_is_beyond_the_bounds_is_refused(value, about):
    """Before anything is appended."""
    with pytest.raises(InvalidRequest) as caught:
        pack(value, None, about, 0)
    assert caught.value.appended is False


@pytest.mark.parametrize("key", [b"x" * 1025, "é" * 513, 7])
def test_keys_have_bounds(key):
    """They stand in memory by the thousand."""
    with pytest.raises(InvalidRequest):
        key_bytes(key)


def test_times_that_no_calendar_has_are_as_far_away_as_it_reaches():
    """A hostile publisher makes no reader fail."""
    far = [
        read(pb.Envelope(version=1, event_time_us=us).SerializeToString())
        for us in (-(1 << 62), 1 << 62)
    ]
    assert [each.event_time.year for each in far] == [1, 9999]


def test_a_newer_envelope_is_refused():
    """A reader stops; it never skips (DESIGN-LOG §12)."""
    with pytest.raises(NewerFormat, match="version 3"):
        read(pb.Envelope(version=3).SerializeToString())
