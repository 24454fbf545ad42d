"""Arrow schemas and record batches, made of Spark's schemas and rows."""

from __future__ import annotations

import datetime
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rifl.spark._errors import PlanError, RowError

_ROWS = 1000
# Older PySparks take UTC without being told.
_ZONE: Any = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """Return the Arrow types that Spark sends for a schema; raises ``PlanError``."""
    try:
        made: pyarrow.Schema = to_arrow_schema(schema, **_ZONE)
    except (PySparkException, TypeError, ValueError) as error:
        raise PlanError(f"a column has a type that cannot be sent: {error}") from error
    return made


def nullable(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return the schema without metadata, with nulls allowed wherever they can be.

    Of a null struct Spark sends null fields, also of those that are not nullable, which Arrow and
    Parquet refuse.
    """
    return pyarrow.schema([_nullable(pyarrow.field(each.name, each.type)) for each in schema])


def _nullable(field: pyarrow.Field) -> pyarrow.Field:
    of, types = field.type, pyarrow.types
    if types.is_struct(of):
        of = pyarrow.struct([_nullable(each) for each in of])
    elif types.is_map(of):
        key = _nullable(of.key_field).with_nullable(False)
        of = pyarrow.map_(key, _nullable(of.item_field))
    elif types.is_large_list(of):
        of = pyarrow.large_list(_nullable(of.value_field))
    elif types.is_list(of):
        of = pyarrow.list_(_nullable(of.value_field))
    return field.with_type(of).with_nullable(True)


def record_batches(rows: Iterable[Any], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    """Gather rows that come one by one (PySpark 4.0's streaming writer).

    Raises ``RowError`` for an instant that cannot be told: in a time zone with summer
    time an hour of the year is there twice.
    """
    plain = iter(rows)
    converters = [_converter(field.type) for field in schema]
    while taken := list(itertools.islice(plain, _ROWS)):
        arrays = [
            pyarrow.array(
                [row[at] if convert is None else convert(row[at]) for row in taken],
                schema.field(at).type,
            )
            for at, convert in enumerate(converters)
        ]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes a value of Spark's rows one that Arrow takes; None: it is one."""
    types = pyarrow.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return _unless_none(_instant)
    if types.is_struct(kind):
        fields = [(field.name, _converter(field.type)) for field in kind]
        return _unless_none(
            lambda value: {
                name: value[at] if convert is None else convert(value[at])
                for at, (name, convert) in enumerate(fields)
            }
        )
    if types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return _unless_none(
            lambda value: [
                (each if key is None else key(each), of if item is None else item(of))
                for each, of in value.items()
            ]
        )
    if types.is_list(kind) and (convert := _converter(kind.value_type)) is not None:
        each_one = convert
        return _unless_none(lambda value: [each_one(each) for each in value])
    return None


def _instant(value: datetime.datetime) -> datetime.datetime:
    # Spark hands on instants as this process's local time, without saying which of two.
    found = value.replace(fold=0).astimezone(datetime.UTC)
    if found != value.replace(fold=1).astimezone(datetime.UTC):
        raise RowError(
            "AMBIGUOUS_TIME",
            f"PySpark 4.0 tells a stream's sink the local time {value} of an instant, and "
            "there are two: have executors run with TZ=UTC, or use PySpark 4.1 or newer",
        )
    return found


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)
