"""Rows become requests: every kind of field, and what does not fit (DESIGN §8)."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow
import pytest

from rifl.spark._errors import PlanError, RowError
from rifl.spark._requests import plan_request
from tests.spark.shapes import shape

UTC = datetime.UTC
AT = datetime.datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC)
THING = shape().request_class()
_INNER = pyarrow.struct([("x", pyarrow.int32()), ("label", pyarrow.string())])


def _sent(column: str, kind: Any, *values: Any) -> list[Any]:
    """Map a table of one column; the messages, or the errors."""
    return _rows({column: (kind, list(values))})


def _rows(columns: dict[str, tuple[Any, list[Any]]], **options: Any) -> list[Any]:
    schema = pyarrow.schema([(name, kind) for name, (kind, _) in columns.items()])
    plan = plan_request(schema, THING, **options)
    arrays = [pyarrow.array(values, kind) for kind, values in columns.values()]
    # A slice, since Spark's batches may be ones.
    padded = [pyarrow.concat_arrays([array, array]) for array in arrays]
    whole = pyarrow.RecordBatch.from_arrays(padded, schema=schema)
    batch = whole.slice(len(arrays[0]))
    made = plan.requests(batch)
    return [each if isinstance(each, RowError) else THING.FromString(each) for each in made]


@pytest.mark.parametrize(
    ("field", "kind", "value", "expected"),
    [
        ("int32", pyarrow.int8(), -5, -5),
        ("int32", pyarrow.int32(), 2**31 - 1, 2**31 - 1),
        ("int64", pyarrow.int64(), -(2**63), -(2**63)),
        ("sint64", pyarrow.int16(), -7, -7),
        ("uint32", pyarrow.int32(), 7, 7),
        ("uint32", pyarrow.int64(), 2**32 - 1, 2**32 - 1),
        ("uint32", pyarrow.decimal128(10, 0), decimal.Decimal(2**32 - 1), 2**32 - 1),
        ("uint64", pyarrow.int64(), 2**62, 2**62),
        ("int64", pyarrow.decimal128(18, 0), decimal.Decimal(10**17), 10**17),
        ("float", pyarrow.float32(), 0.5, 0.5),
        ("double", pyarrow.float32(), 0.5, 0.5),
        ("double", pyarrow.float64(), 0.1, 0.1),
        ("bool", pyarrow.bool_(), True, True),
        ("string", pyarrow.string(), "Zoë", "Zoë"),
        ("bytes", pyarrow.binary(), b"\x00\xff", b"\x00\xff"),
        ("colour", pyarrow.string(), "GREEN", 2),
        ("colour", pyarrow.int32(), 1, 1),
        ("amount", pyarrow.decimal128(38, 18), decimal.Decimal("1e-18"), "0.000000000000000001"),
        ("amount", pyarrow.date32(), datetime.date(2026, 11, 20), "2026-11-20"),
    ],
)
def test_a_value_arrives_as_it_is(field: str, kind: Any, value: Any, expected: Any) -> None:
    """A type that fits a field loses nothing, and null leaves the field unset (DESIGN §8)."""
    full, empty = _sent(field, kind, value, None)
    assert getattr(full, field) == expected
    assert empty == THING()


def test_times_spans_dates_and_wrappers() -> None:
    """Well-known types hold instants before 1970, negative spans and null itself (DESIGN §8)."""
    span = datetime.timedelta(seconds=-1, microseconds=-500_000)
    for kind in (pyarrow.timestamp("us", "UTC"), pyarrow.timestamp("us", "Europe/Berlin")):
        moment, none = _sent("at", kind, AT, None)
        assert (moment.at.seconds, moment.at.nanos) == (-2, 500_000_000)
        assert not none.HasField("at")
    (took,) = _sent("took", pyarrow.duration("us"), span)
    assert (took.took.seconds, took.took.nanos) == (-1, -500_000_000)
    zero, none = _sent("maybe", pyarrow.int64(), 0, None)
    assert zero.HasField("maybe")
    assert not none.HasField("maybe")
    (day,) = _sent("day", pyarrow.date32(), datetime.date(2026, 2, 28))
    assert (day.day.year, day.day.month, day.day.day) == (2026, 2, 28)


def test_nested_values_arrive_whole() -> None:
    """Structs, lists of them and maps go in at every depth (DESIGN §8)."""
    inner = {"x": 3, "label": "deep"}
    (one,) = _sent("inner", _INNER, inner)
    assert (one.inner.x, one.inner.label) == (3, "deep")
    (many,) = _sent("inners", pyarrow.list_(_INNER), [inner, {"x": None, "label": "b"}])
    assert [(each.x, each.label) for each in many.inners] == [(3, "deep"), (0, "b")]
    (priced,) = _sent("prices", pyarrow.map_(pyarrow.string(), pyarrow.int64()), {"a": 1, "b": 2})
    assert dict(priced.prices) == {"a": 1, "b": 2}
    (parts,) = _sent("parts", pyarrow.map_(pyarrow.string(), _INNER), {"p": inner})
    assert parts.parts["p"].label == "deep"
    empty = _sent("tags", pyarrow.list_(pyarrow.string()), None, [])
    assert [list(each.tags) for each in empty] == [[], []]


def test_a_map_is_serialised_in_one_order() -> None:
    """The same row gives the same bytes, however its map was filled (DESIGN §4)."""
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    schema = pyarrow.schema([("prices", kind)])
    plan = plan_request(schema, THING)
    pairs = [(f"k{n}", n) for n in range(50)]
    column = pyarrow.array([pairs, pairs[::-1]], kind)
    first, second = plan.requests(pyarrow.RecordBatch.from_arrays([column], schema=schema))
    assert first == second


def test_presence_and_oneofs() -> None:
    """Null leaves an optional field absent; of a oneof at most one member is given (DESIGN §8)."""
    empty, none = _sent("note", pyarrow.string(), "", None)
    assert empty.HasField("note")
    assert not none.HasField("note")
    columns = {
        "by_card": (pyarrow.string(), ["card", None, "both", None]),
        "by_cash": (pyarrow.int64(), [None, 5, 6, None]),
    }
    card, cash, both, neither = _rows(columns)
    assert [each.WhichOneof("paid") for each in (card, cash, neither)] == [
        "by_card",
        "by_cash",
        None,
    ]
    assert isinstance(both, RowError)
    assert "paid" in both.text
    assert "by_card, by_cash" in both.text


@pytest.mark.parametrize(
    ("field", "kind", "value", "says"),
    [
        ("uint32", pyarrow.int32(), -1, "out of range"),
        ("uint32", pyarrow.int64(), 2**32, "out of range"),
        ("uint32", pyarrow.int64(), -1, "out of range"),
        ("uint32", pyarrow.decimal128(10, 0), decimal.Decimal(2**32), "out of range"),
        ("colour", pyarrow.string(), "MAUVE", "MAUVE"),
        ("tags", pyarrow.list_(pyarrow.string()), ["a", None], "null inside"),
        ("prices", pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("a", None)], "null inside"),
    ],
)
def test_a_value_that_breaks_a_rule_is_its_rows_error(
    field: str, kind: Any, value: Any, says: str
) -> None:
    """One bad value names its column and field, and its neighbours go on (DESIGN §8)."""
    bad, good = _sent(field, kind, value, None)
    assert isinstance(bad, RowError)
    assert bad.reason == "BAD_VALUE"
    assert repr(field) in bad.text
    assert says in bad.text
    assert good == THING()


_PAST_9999 = pyarrow.array([3_000_000, 0], pyarrow.int32()).cast(pyarrow.date32())
_NO_TEXT = pyarrow.Array.from_buffers(pyarrow.string(), 2, pyarrow.array([b"\xff", b"a"]).buffers())


def _far(kind: Any) -> Any:
    return pyarrow.array([2**62, 0], pyarrow.int64()).cast(kind)


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("amount", _PAST_9999),
        ("day", _PAST_9999),
        ("string", _NO_TEXT),
        ("at", _far(pyarrow.timestamp("us", "UTC"))),
        ("took", _far(pyarrow.duration("us"))),
        ("tags", pyarrow.ListArray.from_arrays([0, 1, 2], _NO_TEXT)),
        ("inner", pyarrow.StructArray.from_arrays([_NO_TEXT], ["label"])),
    ],
)
def test_a_value_that_python_or_protobuf_does_not_know_is_its_rows_error(
    field: str, column: Any
) -> None:
    """What Spark can hold and a message cannot never fails the rows beside it (DESIGN §8)."""
    schema = pyarrow.schema([(field, column.type)])
    bad, good = plan_request(schema, THING).requests(
        pyarrow.RecordBatch.from_arrays([column], schema=schema)
    )
    assert isinstance(bad, RowError)
    assert bad.reason == "BAD_VALUE"
    assert repr(field) in bad.text
    assert isinstance(good, bytes)


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("int32", pyarrow.int64()),
        ("uint32", pyarrow.decimal128(19, 0)),
        ("uint32", pyarrow.decimal128(10, 1)),
        ("float", pyarrow.float64()),
        ("double", pyarrow.int64()),
        ("double", pyarrow.decimal128(10, 2)),
        ("int64", pyarrow.float64()),
        ("int64", pyarrow.decimal128(19, 0)),
        ("int64", pyarrow.decimal128(10, 2)),
        ("int64", pyarrow.string()),
        ("string", pyarrow.int64()),
        ("string", pyarrow.binary()),
        ("bytes", pyarrow.string()),
        ("bool", pyarrow.int32()),
        ("colour", pyarrow.int64()),
        ("at", pyarrow.timestamp("us")),
        ("at", pyarrow.int64()),
        ("took", pyarrow.int64()),
        ("maybe", pyarrow.string()),
        ("inner", pyarrow.string()),
        ("inners", _INNER),
        ("tags", pyarrow.string()),
        ("prices", pyarrow.list_(pyarrow.int64())),
        ("prices", pyarrow.map_(pyarrow.string(), pyarrow.string())),
    ],
)
def test_a_type_that_may_not_fit_is_found_when_planning(field: str, kind: Any) -> None:
    """A column that could lose something is refused before any row, by name (DESIGN §8)."""
    with pytest.raises(PlanError) as caught:
        plan_request(pyarrow.schema([(field, kind)]), THING)
    assert repr(field) in str(caught.value)
    assert f"Thing.{field}" in str(caught.value) or "value" in str(caught.value)


def test_a_column_may_fill_a_field_of_another_name() -> None:
    """Each field is filled once, by a column that is there (DESIGN §8)."""
    columns = {"txn": (pyarrow.string(), ["a"]), "int32": (pyarrow.int32(), [7])}
    (made,) = _rows(columns, renamed={"txn": "string"})
    assert (made.string, made.int32) == ("a", 7)
    for renamed, says in (
        ({"nope": "string"}, "'nope' is not a column"),
        ({"txn": "nope"}, "'nope' has no field"),
        ({"n": "int32"}, "'int32' is filled by 'int32' and 'n'"),
    ):
        more = {**columns, "n": (pyarrow.int32(), [8])} if "n" in renamed else columns
        with pytest.raises(PlanError, match=says):
            _rows(more, renamed=renamed, key_only=["txn"])


def test_columns_without_a_field_are_found_when_planning() -> None:
    """A column is sent, or a key, or ignored by name: never dropped silently (DESIGN §8)."""
    schema = pyarrow.schema([("String", pyarrow.string()), ("shard", pyarrow.int32())])
    with pytest.raises(PlanError, match="did you mean 'string'"):
        plan_request(schema, THING)
    with pytest.raises(PlanError, match="'shard'"):
        plan_request(schema, THING, ignored=["String"])
    plan = plan_request(schema, THING, ignored=["String"], key_only=["shard"])
    assert plan._columns == ()
    with pytest.raises(PlanError, match="'nope'"):
        plan_request(schema, THING, ignored=["nope"])
    nested = pyarrow.schema([("inner", pyarrow.struct([("y", pyarrow.int32())]))])
    with pytest.raises(PlanError, match=r"'inner\.y'"):
        plan_request(nested, THING)
