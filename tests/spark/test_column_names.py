"""Columns of two schemas, and how they differ, by their names (DESIGN-LOG §16)."""

from __future__ import annotations

import pyarrow
import pytest

from sharedlog.spark._columns import differences

_DECLARED = pyarrow.schema([("account", pyarrow.string()), ("cents", pyarrow.int64())])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"account": pyarrow.string()}, "cents is missing"),
        (
            {"cents": pyarrow.int32(), "account": pyarrow.string()},
            "cents is int32, and declared as int64",
        ),
        (
            {"account": pyarrow.string(), "Cents": pyarrow.int64()},
            "cents is missing; Cents of type int64 is not declared",
        ),
        (
            {"cents": pyarrow.int64(), "account": pyarrow.string()},
            "their order is cents, account",
        ),
        ({"account": pyarrow.string(), "cents": pyarrow.int64()}, ""),
    ],
)
def test_columns_that_differ_are_named(given: dict[str, pyarrow.DataType], says: str) -> None:
    """One that is missing, new, of another type, or elsewhere (§16)."""
    assert differences(_DECLARED, pyarrow.schema(list(given.items()))) == says


def test_of_many_columns_some_are_named() -> None:
    """An error stays readable (§16)."""
    many = pyarrow.schema([(f"c{each}", pyarrow.string()) for each in range(30)])
    told = differences(many, pyarrow.schema([])).split("; ")
    assert (told[0], told[-1], len(told)) == ("c0 is missing", "22 more", 9)
