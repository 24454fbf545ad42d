"""Keys that identify rows, and columns that cannot (DESIGN §8)."""

from __future__ import annotations

import datetime
import decimal
import hashlib
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rifl.spark._errors import PlanError, RowError
from rifl.spark._key_format import MAX_ENCODED_BYTES, show_key
from rifl.spark._keys import KeyPlan


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
    assert all(1 <= len(key) <= MAX_ENCODED_BYTES for key in keys)
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
    assert "c0=3" in third.text


@given(_ROWS)
def test_a_key_is_shown_as_its_values(row: Any) -> None:
    """People look for a row by what it says, not by bytes in hexadecimal (DESIGN §8)."""
    (key,) = _keys(*((kind, [value]) for kind, value in row))
    assert show_key(key)
    if all(pyarrow.types.is_integer(kind) for kind, _ in row):
        assert show_key(key) == ", ".join(str(value) for _, value in row)


def test_keys_that_are_shown() -> None:
    """Each kind of value as it is written; what is no key of ours as bytes (DESIGN §8)."""
    at = datetime.datetime(2026, 11, 20, 1, 2, 3, tzinfo=datetime.UTC)
    (key,) = _keys(
        (pyarrow.string(), ["r'4"]),
        (pyarrow.int32(), [-7]),
        (pyarrow.date32(), [at.date()]),
        (pyarrow.bool_(), [False]),
        (pyarrow.decimal128(9, 2), [decimal.Decimal("1.50")]),
        (pyarrow.timestamp("us", "UTC"), [at]),
    )
    assert show_key(key) == """"r'4", -7, 2026-11-20, false, 15e-1, 2026-11-20 01:02:03+00:00"""
    (long,) = _keys((pyarrow.string(), ["x" * 100]))
    assert show_key(long) == f"sha256 {long[1:].hex()}"
    assert show_key(b"own-key") == "0x6f776e2d6b6579"
    assert show_key(b"s\x09cut") == "0x7309637574"


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


def test_a_whole_row_is_also_what_is_not_sent() -> None:
    """Rows that differ in a column that is ignored are two; one that cannot identify is
    refused, not left out (DESIGN §8)."""
    names = ["a", "b", "x"]
    kinds = [pyarrow.string(), pyarrow.int64(), pyarrow.float64()]
    schema = pyarrow.schema(list(zip(names, kinds, strict=True)))
    batch = pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array(["p", "p", "q", None, ""]),
            pyarrow.array([1, 2, 1, 1, 1], pyarrow.int64()),
            pyarrow.array([0.0] * 5),
        ],
        schema=schema,
    )
    keys = KeyPlan(["*"], schema, ["a", "b"]).of_requests(batch, [b"r"] * 5)
    assert len(set(keys)) == 5
    assert (
        KeyPlan(["*"], schema).of_requests(batch, [b"r", b"s"] * 2 + [b"r"])[::4]
        == [b"*" + hashlib.sha256(b"r").digest()] * 2
    )
    with pytest.raises(PlanError, match="'x' has the type"):
        KeyPlan(["*"], schema, ["x"])


def test_values_that_python_does_not_know_are_keys() -> None:
    """A date past 9999, and text that is not UTF-8, name their rows (DESIGN §8)."""
    days = pyarrow.array([3_000_000, -1_000_000], pyarrow.int32()).cast(pyarrow.date32())
    text = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, pyarrow.array([b"\xff", b"\xfe"]).buffers()
    )
    schema = pyarrow.schema([("day", days.type), ("text", text.type)])
    batch = pyarrow.RecordBatch.from_arrays([days, text], schema=schema)
    for columns in (["day"], ["text"]):
        keys = KeyPlan(columns, schema).keys(batch)
        assert len(set(keys)) == 2
        assert all(isinstance(key, bytes) for key in keys)
