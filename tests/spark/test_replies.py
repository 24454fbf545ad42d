"""Replies become columns (DESIGN §8)."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow
import pytest
from google.protobuf import descriptor_pb2

from rifl.spark._errors import PlanError
from rifl.spark._replies import ReplyPlan
from tests.spark.shapes import shape


def test_every_kind_of_field_comes_back() -> None:
    """What a message says is in the columns; what it does not say is null (DESIGN §8)."""
    thing = shape().response_class()
    plan = ReplyPlan(thing)
    message = thing(
        int32=-1,
        uint64=2**64 - 1,
        string="Zoë",
        colour=2,
        inner={"x": 1, "label": "a"},
        tags=["x", "y"],
        inners=[{"x": 2}],
        prices={"b": 2, "a": 1},
        at={"seconds": -2, "nanos": 500_000_000},
        took={"seconds": -1, "nanos": -500_000_000},
        maybe={"value": 0},
        by_cash=5,
        note="",
        day={"year": 2026, "month": 2, "day": 28},
        price={"value": "-12345678901234567890.000000000000000001"},
    )
    read = [plan.read(message.SerializeToString()), plan.read(b"")]
    assert [trouble for _, trouble in read] == ["", ""]
    column = pyarrow.array([*(value for value, _ in read), None], plan.type)
    full, empty, none = column.to_pylist()
    assert full["uint64"] == decimal.Decimal(2**64 - 1)
    assert (full["int32"], full["string"], full["colour"]) == (-1, "Zoë", "GREEN")
    assert full["inner"] == {"x": 1, "label": "a"}
    assert full["inners"] == [{"x": 2, "label": ""}]
    assert full["day"] == datetime.date(2026, 2, 28)
    assert full["price"] == decimal.Decimal("-12345678901234567890.000000000000000001")
    assert full["tags"] == ["x", "y"]
    assert full["prices"] == [("a", 1), ("b", 2)]
    assert full["at"].timestamp() == -1.5
    assert full["took"] == datetime.timedelta(seconds=-1.5)
    assert (full["maybe"], full["by_cash"], full["by_card"], full["note"]) == (0, 5, None, "")
    assert (empty["maybe"], empty["inner"], empty["note"], empty["int32"]) == (None, None, None, 0)
    assert none is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("at", {"seconds": 2**62}),
        ("took", {"seconds": -(2**62)}),
        ("day", {"year": 2026, "month": 2}),
        ("price", {"value": "1e20"}),
        ("price", {"value": "0.0000000000000000001"}),
        ("price", {"value": "much"}),
        ("price", {"value": "NaN"}),
    ],
)
def test_what_a_reply_says_and_spark_cannot_hold_is_null(field: str, value: Any) -> None:
    """The call was made: its reply never fails the task that made it (DESIGN §8)."""
    thing = shape().response_class()
    plan = ReplyPlan(thing)
    message = thing(**{field: value, "int32": 7})
    read, trouble = plan.read(message.SerializeToString())
    assert (read[field], read["int32"]) == (None, 7)
    assert pyarrow.array([read], plan.type).to_pylist()[0]["int32"] == 7
    assert message.DESCRIPTOR.fields_by_name[field].message_type.full_name in trouble
    nothing, trouble = plan.read(b"\xff")
    assert nothing is None
    assert "shapes.Thing" in trouble


def test_a_message_that_contains_itself_has_no_columns() -> None:
    """A recursive reply is refused when planning (DESIGN §8)."""
    with pytest.raises(PlanError, match="contains itself"):
        ReplyPlan(descriptor_pb2.DescriptorProto)
