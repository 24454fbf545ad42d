"""Rich error details."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from rifl._grpc.status import DETAILS_KEY, details_bin, read_error_info, rich_status

CODE = grpc.StatusCode.UNAVAILABLE


@given(
    st.text(min_size=1, max_size=30),
    st.text(max_size=50),
    st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_what_is_written_is_read(reason, message, metadata, retry_after_s):
    """ErrorInfo and RetryInfo survive the trip through trailing metadata (§3)."""
    status = rich_status(CODE, reason, message, metadata, retry_after_s)
    assert (status.code, status.details) == (CODE, message)
    info = read_error_info([("other", "x"), *status.trailing_metadata])
    assert info is not None
    assert (info.reason, info.metadata) == (reason, metadata)
    if retry_after_s is None:
        assert info.retry_after_s is None
    else:
        assert info.retry_after_s == pytest.approx(retry_after_s, abs=1e-6)


@given(st.binary(max_size=200))
def test_garbage_is_none(value):
    """Reading what a stranger sent never raises (§3)."""
    read_error_info([(DETAILS_KEY, value)])


@given(st.integers(0, 200), st.integers(1, 255))
def test_damaged_details_never_raise(position, flip):
    """A damaged but nearly right value is read or is None, without an error (§3)."""
    value = bytearray(details_bin(CODE, "NOT_LEADER", "m", {"leader": "b:1"}, 0.5))
    value[position % len(value)] ^= flip
    read_error_info([(DETAILS_KEY, bytes(value))])


def test_what_is_not_ours_is_none():
    """Other domains, text values and missing metadata are not ours (§3)."""
    status = status_pb2.Status(code=14)
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain="elsewhere", reason="X"))
    assert read_error_info([(DETAILS_KEY, status.SerializeToString())]) is None
    assert read_error_info([(DETAILS_KEY, "text")]) is None
    assert read_error_info(None) is None
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromSeconds(-5)
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain="rifl", reason="Y"))
    status.details.add().Pack(retry)
    assert read_error_info([(DETAILS_KEY, status.SerializeToString())]) == ("Y", {}, 0.0)


def test_messages_are_bounded():
    """Details fit gRPC's 8 KiB of metadata however long the message; OK is refused (§3)."""
    status = rich_status(CODE, "R", "x" * 100_000)
    assert len(status.details) + len(status.trailing_metadata[0][1]) < 4096
    with pytest.raises(ValueError, match="OK"):
        rich_status(grpc.StatusCode.OK, "R", "m")
