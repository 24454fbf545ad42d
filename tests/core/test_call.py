"""Ranges on the wire as (gap, run) pairs (rifl.proto; DESIGN §3, §4)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rifl.core import BadHeader, RpcId
from rifl.core._shared.call import (
    MAX_RANGES,
    Call,
    check_acknowledgements,
    pairs_from_ranges,
    ranges_from_pairs,
)

_PAIRS = st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**40)), max_size=MAX_RANGES).map(
    lambda pairs: [number for pair in pairs for number in pair]
)


@settings(deadline=None)
@given(st.integers(1, 2**40), _PAIRS)
def test_pairs_and_ranges_say_the_same(first_incomplete: int, pairs: list[int]) -> None:
    """Decoding and encoding are inverse, and what is decoded is well formed (rifl.proto)."""
    ranges = ranges_from_pairs(first_incomplete, pairs)
    assert pairs_from_ranges(first_incomplete, ranges) == pairs
    check_acknowledgements(first_incomplete, first_incomplete, ranges)


def test_the_example_of_the_wire_format() -> None:
    """With first incomplete 5, (2, 3) (1, 1) mean 7..9 and 11 (rifl.proto)."""
    assert ranges_from_pairs(5, [2, 3, 1, 1]) == [(7, 9), (11, 11)]
    assert pairs_from_ranges(5, [(7, 9), (11, 11)]) == [2, 3, 1, 1]


@pytest.mark.parametrize(
    ("first_incomplete", "pairs"),
    [
        (1, [1]),
        (1, [1, 1, 1]),
        (1, [0, 1]),
        (1, [1, 0]),
        (1, [1, 1, 0, 1]),
        (1, [1, 1, 1, 0]),
        (1, [1, 1] * (MAX_RANGES + 1)),
        (1, [1] * 4096),
        (1, [1, 2**63 - 1]),
        (1, [2**63 - 1, 1]),
        (1, [2**64 - 1, 2**64 - 1]),
        (2**63, [1, 1]),
        (2**64 - 1, [1, 1]),
    ],
)
def test_malformed_pairs_are_refused(first_incomplete: int, pairs: list[int]) -> None:
    """Odd, empty, too many or too far: BadHeader."""
    with pytest.raises(BadHeader):
        ranges_from_pairs(first_incomplete, pairs)


def test_the_last_seq_can_be_acknowledged() -> None:
    """A range may end at 2^63 - 1, the last seq there is (rifl.proto)."""
    assert ranges_from_pairs(1, [1, 2**63 - 2]) == [(2, 2**63 - 1)]


def test_as_many_ranges_as_allowed_are_taken() -> None:
    """Exactly 64 ranges pass (DESIGN §4)."""
    assert len(ranges_from_pairs(1, [1, 1] * MAX_RANGES)) == MAX_RANGES == 64


def test_identity_is_the_seq_or_the_key() -> None:
    """A call has one identity, within its client id (DESIGN §3)."""
    sequenced, keyed = Call(7, b"", 3), Call(7, b"", None, b"\x00k")
    assert (sequenced.identity, sequenced.rpc_id) == (3, RpcId(7, seq=3))
    assert (keyed.identity, keyed.rpc_id) == (b"\x00k", RpcId(7, key=b"\x00k"))
    assert (str(sequenced.rpc_id), str(keyed.rpc_id)) == ("7/3", "7/0x006b")
