"""What identifies a row, and what cannot (DESIGN §8)."""

from __future__ import annotations

import datetime
import decimal
import hashlib
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rifl.core.identity import MAX_KEY_BYTES
from rifl.spark.errors import PlanError, RowError
from rifl.spark.keys import KeyPlan


def _keys(*columns: tuple[Any, list[Any]]) -> list[Any]:
    names = [f"c{at}" for at in range(len(columns))]
    schema = pyarrow.schema(list(zip(names, (kind for kind, _ in columns), strict=True)))
    arrays = [pyarrow.array(values, kind) for kind, values in columns]
    batch = pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
    return KeyPlan(names, schema).keys(batch)


_VALUES = st.one_of(
    st.tuples(st.just(pyarrow.int64()), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(pyarrow.string()), st.text(max_size=300)),
    st.tuples(st.just(pyarrow.binary()), st.binary(max_size=300)),
    st.tuples(st.just(pyarrow.bool_()), st.booleans()),
    st.tuples(st.just(pyarrow.date32()), st.dates()),
    st.tuples(st.just(pyarrow.decimal128(20, 6)), st.decimals(-(10**12), 10**12, places=6)),
)
_ROWS = st.lists(_VALUES, min_size=1, max_size=3)


@given(_ROWS, _ROWS)
def test_two_rows_share_a_key_only_if_they_share_their_values(one: Any, other: Any) -> None:
    """The encoding is injective over types, values and columns, within 64 bytes (DESIGN §8)."""
    keys = [_keys(*((kind, [value]) for kind, value in row))[0] for row in (one, other)]
    assert all(1 <= len(key) <= MAX_KEY_BYTES for key in keys)
    same = [(str(kind), value) for kind, value in one] == [
        (str(kind), value) for kind, value in other
    ]
    assert (keys[0] == keys[1]) == same


def test_columns_are_told_apart_by_their_lengths() -> None:
    """Values do not run into each other: ("ab", "c") is not ("a", "bc") (DESIGN §8)."""
    text = pyarrow.string()
    assert len(set(_keys((text, ["ab", "a", "abc"]), (text, ["c", "bc", ""])))) == 3


@pytest.mark.parametrize(
    ("one", "other", "values"),
    [
        (pyarrow.int32(), pyarrow.int64(), [-1, 0, 2**31 - 1]),
        (
            pyarrow.decimal128(10, 2),
            pyarrow.decimal128(20, 6),
            [decimal.Decimal("1.50"), decimal.Decimal("-100"), decimal.Decimal(0)],
        ),
        (
            pyarrow.timestamp("us", "UTC"),
            pyarrow.timestamp("us", "Asia/Tokyo"),
            [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)],
        ),
    ],
)
def test_equal_values_are_one_key_whatever_their_type(one: Any, other: Any, values: Any) -> None:
    """A job that reads the rows from elsewhere names them alike (DESIGN §8)."""
    assert _keys((one, values)) == _keys((other, values))


def test_keys_are_what_they_were() -> None:
    """A key made by an earlier release still names the same row (DESIGN §8)."""
    assert _keys((pyarrow.int64(), [258]), (pyarrow.string(), ["é"])) == [
        b"i\x00\x00\x00\x00\x00\x00\x01\x02s\x02\xc3\xa9"
    ]
    (long,) = _keys((pyarrow.string(), ["x" * 100]))
    assert long == b"h" + hashlib.sha256(b"sd" + b"x" * 100).digest()


def test_a_null_is_no_identity() -> None:
    """A row whose key column is null has an error that names the column (DESIGN §8)."""
    first, second, third = _keys(
        (pyarrow.int64(), [1, None, 3]), (pyarrow.string(), ["a", "b", None])
    )
    assert isinstance(first, bytes)
    assert isinstance(second, RowError)
    assert "'c0'" in second.text
    assert isinstance(third, RowError)
    assert third.reason == "NULL_KEY"


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.float64(),
        pyarrow.float32(),
        pyarrow.list_(pyarrow.int64()),
        pyarrow.map_(pyarrow.string(), pyarrow.int64()),
        pyarrow.struct([("a", pyarrow.int64())]),
    ],
)
def test_a_type_that_cannot_identify_is_refused(kind: Any) -> None:
    """Floating point and containers are no keys, found before any row is sent (DESIGN §8)."""
    with pytest.raises(PlanError, match="'c' has the type"):
        KeyPlan(["c"], pyarrow.schema([("c", kind)]))


def test_key_columns_are_checked_by_name() -> None:
    """None, an unknown one, twice the same, or "*" with others: all refused (DESIGN §8)."""
    schema = pyarrow.schema([("a", pyarrow.int64()), ("b", pyarrow.int64())])
    for columns, says in (
        ([], "no key columns"),
        (["z"], "'z' is not a column"),
        (["a", "a"], "named twice"),
        (["*", "a"], "stands alone"),
    ):
        with pytest.raises(PlanError, match=says.replace("*", r"\*")):
            KeyPlan(columns, schema)
    assert KeyPlan(["*"], schema).whole_row
    assert KeyPlan.of_request(b"r") != KeyPlan.of_request(b"s")
