"""Request messages made of rows, by the names of columns (DESIGN §8). Pure.

Decided when the write is planned, for every column: the type must fit the field
for all its values (docs/reference/spark.md has the table), else ``PlanError`` names both.
What only a value can break (a null inside a list, two members of one oneof, an
unknown enum name, a negative number for an unsigned field) is that row's error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rifl.spark._errors import PlanError, RowError
from rifl.spark._options import column_of
from rifl.spark._request_fields import BadValue, Convert, Unfit, bulk, scalar, well_known


class _Column(NamedTuple):
    """How one column fills one field."""

    column: str
    field: str
    convert: Convert | None  # None: the values go in as they are


class RequestPlan:
    """Makes request bytes of record batches. For one process: it is not picklable."""

    def __init__(
        self,
        message_class: type[Message],
        columns: Sequence[_Column],
        oneofs: Sequence[tuple[str, tuple[int, ...]]],
    ) -> None:
        self._class = message_class
        self._columns = tuple(columns)
        self._names = tuple(each.field for each in columns)
        self._oneofs = tuple(oneofs)

    def requests(self, batch: pyarrow.RecordBatch) -> list[bytes | RowError]:
        """Return each row's serialised request, deterministic, or why there is none."""
        if not self._columns:
            empty = self._class().SerializeToString(deterministic=True)
            return [empty] * batch.num_rows
        filled = [bulk(batch.column(each.column), each.convert) for each in self._columns]
        make, names, oneofs = self._class, self._names, self._oneofs
        made: list[bytes | RowError] = []
        for row in zip(*filled, strict=True):
            try:
                if oneofs:
                    self._check_oneofs(row)
                message = make(**dict(zip(names, row, strict=True)))
                made.append(message.SerializeToString(deterministic=True))
            except (TypeError, ValueError, AttributeError) as error:
                made.append(self._blame(row, error))
        return made

    def _check_oneofs(self, row: tuple[Any, ...]) -> None:
        for name, members in self._oneofs:
            if sum(row[at] is not None for at in members) > 1:
                given = ", ".join(self._columns[at].column for at in members if row[at] is not None)
                raise Unfit(f"the oneof {name!r} is filled by several columns: {given}")

    def _blame(self, row: tuple[Any, ...], error: Exception) -> RowError:
        """Find the column at fault: protobuf does not name it."""
        if isinstance(error, Unfit):
            return RowError("BAD_VALUE", str(error))
        for each, value in zip(self._columns, row, strict=True):
            where = f"column {each.column!r}, field {each.field!r}"
            if isinstance(value, BadValue):
                return RowError("BAD_VALUE", f"{where}: {value.why}")
            try:
                self._class(**{each.field: value})
            except (TypeError, ValueError, AttributeError) as found:
                why = "a null inside a list or map" if _holds_null(value) else str(found)
                return RowError("BAD_VALUE", f"{where}: {why}")
        return RowError("BAD_VALUE", str(error))


def plan_request(
    schema: pyarrow.Schema,
    message_class: type[Message],
    *,
    key_only: Collection[str] = (),
    ignored: Collection[str] = (),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> RequestPlan:
    """Match columns and fields; raises ``PlanError``.

    A column goes into the field of its name, or of the one that ``renamed`` says. A
    column without a field is an error unless it is in ``ignored``, or in
    ``key_only``: key columns need no field. A field without a column stays unset;
    a required one (proto2) is an error.
    """
    descriptor = message_class.DESCRIPTOR
    unknown = sorted(set(ignored) - set(schema.names))
    if unknown:
        raise PlanError(f"the ignored column {unknown[0]!r} is not a column")
    absent = sorted(set(renamed) - set(schema.names))
    if absent:
        raise PlanError(f"the renamed column {absent[0]!r} is not a column")
    given = [field for field in schema if field.name not in ignored]
    twice = sorted({field.name for field in given if schema.names.count(field.name) > 1})
    if twice:
        raise PlanError(f"the column {twice[0]!r} is there several times")
    columns: list[_Column] = []
    for column in given:
        named = renamed.get(column.name, column.name)
        field = descriptor.fields_by_name.get(named)
        if field is None:
            if column.name in key_only and column.name not in renamed:
                continue
            raise PlanError(_no_field(named, descriptor))
        filled = [each.column for each in columns if each.field == named]
        if filled:
            raise PlanError(f"the field {named!r} is filled by {filled[0]!r} and {column.name!r}")
        convert = _for_field(column.type, field, repr(column.name))
        columns.append(_Column(column.name, field.name, convert))
    _check_required(descriptor, [each.field for each in columns])
    return RequestPlan(
        message_class, columns, _oneofs(descriptor, [each.field for each in columns])
    )


def fields_in_any_case(columns: Sequence[str], message_class: type[Message]) -> dict[str, str]:
    """Return the field of each column whose name differs from it in case alone.

    Unless another column has the field's very name. Raises ``PlanError`` if several fields fit.
    """
    fields = list(message_class.DESCRIPTOR.fields_by_name)
    found = {name: column_of(name, fields, "fields") for name in columns}
    return {name: field for name, field in found.items() if field not in columns}


def _no_field(column: str, descriptor: Any) -> str:
    names = list(descriptor.fields_by_name)
    plain = column.replace("_", "").lower()
    near = [name for name in names if name.replace("_", "").lower() == plain]
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"the column {column!r} has no field in {descriptor.full_name}; {hint}"
        f"it has: {', '.join(names) or 'none'}. Rename or drop the column, or list it "
        'in option("ignoreColumns")'
    )


def _for_field(kind: Any, field: Any, where: str) -> Convert | None:
    """Return what makes a field's value of a column's, by their types."""
    types = pyarrow.types
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        if not types.is_map(kind):
            raise _mismatch(kind, field, where)
        entry = field.message_type.fields_by_name
        key = _for_single(kind.key_type, entry["key"], f"{where} (map key)")
        value = _for_single(kind.item_type, entry["value"], f"{where} (map value)")
        return _map(key, value)
    if field.is_repeated:
        if not (types.is_list(kind) or types.is_large_list(kind)):
            raise _mismatch(kind, field, where)
        return _list(_for_single(kind.value_type, field, f"{where} (element)"))
    return _for_single(kind, field, where)


def _for_single(kind: Any, field: Any, where: str) -> Convert | None:
    if field.type == FieldDescriptor.TYPE_GROUP:
        raise PlanError(f"column {where}: the field {field.full_name} is a group: not supported")
    if field.message_type is None:
        return scalar(kind, field, lambda: _mismatch(kind, field, where))
    known = well_known(kind, field, lambda: _mismatch(kind, field, where))
    if known is not None:
        return known
    if not pyarrow.types.is_struct(kind):
        raise _mismatch(kind, field, where)
    return _struct(kind, field.message_type, where)


def _struct(kind: Any, descriptor: Any, where: str) -> Convert:
    converts: dict[str, Convert | None] = {}
    for at in range(kind.num_fields):
        child = kind.field(at)
        field = descriptor.fields_by_name.get(child.name)
        inner = f"{where[:-1]}.{child.name}'"
        if field is None:
            raise PlanError(_no_field(inner[1:-1], descriptor))
        converts[child.name] = _for_field(child.type, field, inner)
    _check_required(descriptor, list(converts))
    oneofs = _oneofs(descriptor, list(converts))
    names = list(converts)

    def convert(row: Mapping[str, Any]) -> Any:
        filled = {name: _apply(each, row[name]) for name, each in converts.items()}
        for value in filled.values():
            if isinstance(value, BadValue):
                return value
        for name, members in oneofs:
            if sum(filled[names[at]] is not None for at in members) > 1:
                return BadValue(f"the oneof {name!r} is filled several times")
        return filled

    return convert


def _list(element: Convert | None) -> Convert:
    def convert(values: Sequence[Any]) -> Any:
        return _without_bad([_apply(element, value) for value in values])

    return convert


def _map(key: Convert | None, item: Convert | None) -> Convert:
    def convert(pairs: Sequence[tuple[Any, Any]]) -> Any:
        made = [(_apply(key, name), _apply(item, value)) for name, value in pairs]
        bad = _without_bad([part for pair in made for part in pair])
        return bad if isinstance(bad, BadValue) else dict(made)

    return convert


def _without_bad(values: list[Any]) -> Any:
    for value in values:
        if isinstance(value, BadValue):
            return value
        if value is None:
            return BadValue("a null inside a list or map")
    return values


def _apply(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _holds_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return None in value.values()
    return isinstance(value, list) and None in value


def _oneofs(descriptor: Any, fields: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the oneofs of which several members are filled, with their positions."""
    found = []
    for oneof in descriptor.oneofs:
        names = {field.name for field in oneof.fields}
        members = tuple(at for at, name in enumerate(fields) if name in names)
        if len(members) > 1:
            found.append((oneof.name, members))
    return found


def _check_required(descriptor: Any, filled: Collection[str]) -> None:
    for field in descriptor.fields:
        if field.is_required and field.name not in filled:
            raise PlanError(f"the field {field.full_name} is required and no column has its name")


def _mismatch(kind: Any, field: Any, where: str) -> PlanError:
    return PlanError(
        f"column {where} of type {kind} does not fit the field {field.full_name} "
        f"({_field_type(field)})"
    )


_TYPE_NAMES: dict[int, str] = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def _field_type(field: Any) -> str:
    single = _TYPE_NAMES[field.type]
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            parts = field.message_type.fields_by_name
            return f"map<{_field_type(parts['key'])}, {_field_type(parts['value'])}>"
        single = field.message_type.full_name
    elif field.enum_type is not None:
        single = f"enum {field.enum_type.full_name}"
    return f"repeated {single}" if field.is_repeated else single
