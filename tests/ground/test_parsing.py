"""Messages of strangers are counted before they are parsed (DESIGN §9)."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from _rifl_ground.parsing import TooManyFields, parse
from curp.v1 import curp_pb2
from lease_server.v1 import lease_server_pb2 as leases
from sharedlog.v1 import log_pb2 as log
from sharedlog.v1.sharedlog_pb2 import Span

# Number 100, which no message has.
_UNKNOWN = b"\xa2\x06\x00"


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (log.AppendRequest, b"\x32\x00" * 600),
        (log.AppendRequest, log.AppendRequest(pending={"opened": ["a"] * 600}).SerializeToString()),
        (log.AppendRequest, _UNKNOWN * 600),
        # By tags and lengths that take more bytes than they need.
        (log.AppendRequest, b"\xb2\x80\x00\x80\x00" * 600),
        (log.FollowRequest, log.FollowRequest(substreams=[1000] * 600).SerializeToString()),
        (
            curp_pb2.WitnessedCall,
            curp_pb2.WitnessedCall(conflict_keys=[1 << 60] * 600).SerializeToString(),
        ),
        (leases.RenewRequest, leases.RenewRequest(also=[{}] * 600).SerializeToString()),
    ],
)
def test_too_many_fields_are_refused_wherever_they_are(kind: type, raw: bytes) -> None:
    """Of messages in it, unknown ones, and numbers of a list, which share one."""
    with pytest.raises(TooManyFields):
        parse(kind, raw, 500)
    assert parse(kind, raw, 700) == kind.FromString(raw)  # type: ignore[attr-defined]


def test_what_is_within_the_bound_is_parsed_to_the_last_field() -> None:
    """A list in a list, a message in itself, numbers of each length: counted as they are."""
    marker = log.Marker(decided=[log.Decided(spans=[Span(tag="s/0", begin=1)] * 3)] * 4)
    request = log.AppendRequest(seq=7, marker=marker, messages=[log.NewMessage(tag="t")] * 5)
    # seq, marker; four decided with three spans, of two fields each; five messages with a tag.
    fields = 2 + 4 * (1 + 3 * 3) + 5 * 2
    raw = request.SerializeToString()
    assert parse(log.AppendRequest, raw, fields) == request
    with pytest.raises(TooManyFields):
        parse(log.AppendRequest, raw, fields - 1)
    call = curp_pb2.WitnessedCall(method="m", conflict_keys=[0] * 100)
    raw = call.SerializeToString()
    assert parse(curp_pb2.WitnessedCall, raw, 102) == call
    with pytest.raises(TooManyFields):
        parse(curp_pb2.WitnessedCall, raw, 101)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_what_protobuf_refuses_is_refused(before: bytes, after: bytes) -> None:
    """Never another error, and nothing accepted that it would not accept: groups are refused."""
    raw = before + b"\x32\x04\x0a\x02ab" + after
    try:
        counted = parse(log.AppendRequest, raw, 1)
    except DecodeError:
        counted = None
    try:
        counted = parse(log.AppendRequest, raw, len(raw) // 2 - 1) or counted
    except DecodeError:
        return
    assert counted == log.AppendRequest.FromString(raw)
