"""Columns by their names: how two schemas differ, and what each column fills (DESIGN-LOG §16)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest
from google.protobuf import descriptor_pb2

from examples.bank.v1.bank_pb2 import DepositRequest
from sharedlog._core.envelope import unpack
from sharedlog._core.stream_schema import StreamSchema
from sharedlog.spark._column_rows import ProtobufRows
from sharedlog.spark._columns import differ, differences
from sharedlog.spark._message_types import from_module
from sharedlog.spark._messages import RawRows
from sharedlog.spark._options import SinkError

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


def test_fields_of_a_declared_message_that_differ_are_named() -> None:
    """Also where nothing of them does, but what is beside the message (§16)."""
    declared = from_module("examples.bank.v1.bank_pb2", "bank.v1.DepositRequest")

    def changed(change: Callable[[Any, Any], None]) -> StreamSchema:
        files = descriptor_pb2.FileDescriptorSet.FromString(declared.data)
        (found,) = (
            (file, message)
            for file in files.file
            for message in file.message_type
            if message.name == "DepositRequest"
        )
        change(*found)
        return declared._replace(data=files.SerializeToString())

    def more(_: Any, message: Any) -> None:
        field = message.field.add(name="currency", number=99)
        field.type, field.label = field.TYPE_STRING, field.LABEL_OPTIONAL

    def beside(file: Any, _: Any) -> None:
        file.message_type.add(name="Other")

    assert differ(declared, changed(more)) == "currency of type string is not declared"
    assert differ(changed(more), declared) == "currency is missing"
    assert "described otherwise" in differ(declared, changed(beside))


def test_parts_of_a_message_are_found_in_any_case() -> None:
    """As Spark has names; two columns that differ in case alone are refused (§16)."""
    schema = pyarrow.schema([(name, pyarrow.string()) for name in ("KEY", "Value", "Schema_Name")])
    batch = pyarrow.RecordBatch.from_pylist([dict(zip(schema.names, "kvS", strict=True))], schema)
    (told,) = RawRows(schema, None).messages(batch, ["s/0"], itertools.count(), 1)
    found = unpack(told.message.envelope)
    assert (found.key, found.body, found.schema_name) == (b"k", b"v", "S")
    with pytest.raises(SinkError, match="two columns have one name"):
        RawRows(schema.append(pyarrow.field("value", pyarrow.string())), None)


def test_a_key_fills_its_field_in_any_case() -> None:
    """A column that is the key needs no field: without its own it was left out (§16)."""
    schema = pyarrow.schema([("Account", pyarrow.string()), ("CENTS", pyarrow.int64())])
    of = from_module("examples.bank.v1.bank_pb2", "bank.v1.DepositRequest")
    batch = pyarrow.RecordBatch.from_pylist([{"Account": "a", "CENTS": 7}], schema)
    rows = ProtobufRows(schema, "Account", of).messages(batch, ["s/0"], itertools.count(), 1)
    (envelope,) = (unpack(each.message.envelope) for each in rows)
    found = DepositRequest.FromString(envelope.body)
    assert (envelope.key, found.account, found.cents) == (b"a", "a", 7)


def test_of_many_columns_some_are_named() -> None:
    """An error stays readable (§16)."""
    many = pyarrow.schema([(f"c{each}", pyarrow.string()) for each in range(30)])
    told = differences(many, pyarrow.schema([])).split("; ")
    assert (told[0], told[-1], len(told)) == ("c0 is missing", "22 more", 9)
