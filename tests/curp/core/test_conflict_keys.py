"""Conflict keys out of serialised requests (CURP §3.2; DESIGN §7, conflict keys)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given, settings
from hypothesis import strategies as st

from curp._core.conflict_keys import (
    MAX_CONFLICT_KEYS,
    MAX_FIELDS_SCANNED,
    FieldType,
    KeyField,
    KeyFinder,
    canonical,
    conflict_key,
    covers,
    keys_of_all,
    keys_of_values,
)
from curp._key_declarations import key_fields

_FieldProto = descriptor_pb2.FieldDescriptorProto
_TYPES = {kind.name.lower(): kind for kind in FieldType if kind is not FieldType.ENUM}


def _messages() -> Any:
    """A message with a singular and a repeated field of every type, nested and in a map."""
    file = descriptor_pb2.FileDescriptorProto(
        name="keys_test.proto", package="keys_test", syntax="proto3"
    )
    inner = file.message_type.add(name="Inner")
    outer = file.message_type.add(name="Outer")
    for number, (name, kind) in enumerate(_TYPES.items(), 1):
        for message in (inner, outer):
            message.field.add(name=name, number=number, type=int(kind), label=1)
            message.field.add(name=f"{name}s", number=100 + number, type=int(kind), label=3)
    for name, number, label in (("inner", 201, 1), ("inners", 202, 3)):
        outer.field.add(
            name=name, number=number, label=label, type=11, type_name=".keys_test.Inner"
        )
    entry = outer.nested_type.add(name="DeltasEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    outer.field.add(
        name="deltas", number=203, label=3, type=11, type_name=".keys_test.Outer.DeltasEntry"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("keys_test.Outer"))


OUTER = _messages()
_NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, 127, 128, 2**31 - 1])
_VALUES = {
    "int": _NUMBERS,
    "uint": st.integers(0, 2**32 - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
}


def values_of(name: str) -> st.SearchStrategy[Any]:
    kind = name.removeprefix("s") if name.startswith(("sint", "sfixed")) else name
    if kind.startswith("fixed") and not name.startswith("s"):
        kind = "uint"
    elif kind.startswith("fixed"):
        kind = "int"
    return next(strategy for key, strategy in _VALUES.items() if kind.startswith(key))


def finder(*declared: str) -> KeyFinder:
    return KeyFinder(key_fields("/keys_test.Service/Method", OUTER.DESCRIPTOR, declared))


def keys(*values: Any, space: str = "") -> frozenset[int]:
    return frozenset(conflict_key(space, canonical(value)) for value in values)


@settings(deadline=None)
@given(st.data())
def test_a_scalar_gives_the_key_of_its_value(data: st.DataObject) -> None:
    """Whatever a field's type, the key is that of the value a parser reads (DESIGN §7)."""
    name = data.draw(st.sampled_from(sorted(_TYPES)))
    value = data.draw(values_of(name))
    request = OUTER(**{name: value}, inner={"int64": 7}).SerializeToString()
    assert finder(name).find(request) == keys(value) == keys_of_values(value)


@settings(deadline=None)
@given(st.data())
def test_repeated_fields_and_maps_give_a_key_for_each_element(data: st.DataObject) -> None:
    """Repeated scalars, packed or not, repeated messages and maps: several keys (DESIGN §7)."""
    name = data.draw(st.sampled_from(sorted(_TYPES)))
    values = data.draw(st.lists(values_of(name), max_size=5))
    nested = data.draw(st.lists(values_of(name), max_size=5))
    mapped = data.draw(st.lists(st.text(max_size=5), max_size=5))
    request = OUTER(
        **{f"{name}s": values},
        inners=[{name: value} for value in nested],
        deltas=dict.fromkeys(mapped, 1),
    ).SerializeToString()
    assert finder(f"{name}s").find(request) == keys(*values)
    assert finder(f"inners.{name}").find(request) == keys(*nested)
    assert finder("deltas").find(request) == keys(*mapped)
    assert finder(f"{name}s", "deltas", f"inners.{name}").find(request) == keys(
        *values, *nested, *mapped
    )


def test_an_absent_field_has_its_default() -> None:
    """What a parser reads as the default conflicts as the default, at any depth (DESIGN §7)."""
    assert finder("int64").find(b"") == keys(0)
    assert finder("string").find(b"") == keys("")
    assert finder("inner.int64").find(b"") == keys(0)
    assert finder("inner.int64").find(OUTER(inner={"string": "x"}).SerializeToString()) == keys(0)
    assert finder("inners.int64").find(OUTER(inners=[{}]).SerializeToString()) == keys(0)


def test_an_empty_repeated_field_has_no_keys() -> None:
    """With nothing to go by, a call conflicts with everything (DESIGN §7)."""
    assert finder("int64s").find(b"") == frozenset()
    assert finder("inners.int64").find(b"") == frozenset()
    assert finder("deltas").find(b"") == frozenset()
    assert finder("int64", "deltas").find(b"") == keys(0)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_a_field_that_occurs_twice_never_loses_the_value_that_counts(one: int, two: int) -> None:
    """The last value, which a parser keeps, is always among the keys (protobuf encoding)."""
    for declared, made in (
        ("int32", lambda value: OUTER(int32=value)),
        ("inner.int32", lambda value: OUTER(inner={"int32": value})),
    ):
        request = made(one).SerializeToString() + made(two).SerializeToString()
        parsed = OUTER.FromString(request)
        last = parsed.int32 if declared == "int32" else parsed.inner.int32
        assert keys(last) <= finder(declared).find(request) <= keys(one, two, 0)


@settings(deadline=None)
@given(st.binary(max_size=60))
@example(b"\x08" + b"\xff" * 10 + b"\x01")
@example(b"\x2d\x01")
@example(b"\xca\x0c\x02\x08")
def test_whatever_a_parser_reads_is_among_the_keys(request: bytes) -> None:
    """Any bytes: either no keys, or the keys of all that a parser finds (DESIGN §7)."""
    names = ("int32", "sint32", "bool", "uint64", "string", "inner.int64", "int32s", "deltas")
    found = finder(*names).find(request)
    try:
        parsed = OUTER.FromString(request)
    except Exception:  # noqa: BLE001 - what cannot be parsed is never executed
        return
    expected = keys(
        parsed.int32,
        parsed.sint32,
        parsed.bool,
        parsed.uint64,
        parsed.string,
        parsed.inner.int64,
        *parsed.int32s,
        *parsed.deltas,
    )
    assert not found or expected <= found


@given(st.integers(0, 2**64 - 1))
def test_two_encodings_of_a_value_are_one_key(number: int) -> None:
    """Longer varints and high bits that a parser drops do not hide a conflict (DESIGN §7)."""
    long = bytes([number >> shift & 127 | 128 for shift in range(0, 63, 7)]) + bytes([number >> 63])
    for name in ("int32", "uint32", "bool", "int64"):
        tag = bytes([OUTER.DESCRIPTOR.fields_by_name[name].number << 3])
        parsed = getattr(OUTER.FromString(tag + long), name)
        assert finder(name).find(tag + long) == keys(parsed)


def test_a_field_of_another_shape_has_no_keys() -> None:
    """A wire type the declaration does not expect is not guessed at (DESIGN §7)."""
    as_text = OUTER(string="x").SerializeToString()
    number = OUTER.DESCRIPTOR.fields_by_name["string"].number
    assert KeyFinder([KeyField((number,), FieldType.INT64)]).find(as_text) == frozenset()
    assert KeyFinder([KeyField((number, 1), FieldType.INT64)]).find(b"\x40\x01") == frozenset()


def test_requests_beyond_the_bounds_have_no_keys() -> None:
    """More keys, or more fields, than a peer may make us handle: everything conflicts (§9)."""
    most = list(range(MAX_CONFLICT_KEYS))
    assert finder("int64s").find(OUTER(int64s=most).SerializeToString()) == keys(*most)
    assert finder("int64s").find(OUTER(int64s=[*most, -1]).SerializeToString()) == frozenset()
    assert finder("int64").find(b"\x08\x01" * MAX_FIELDS_SCANNED) == keys(1)
    assert finder("int64").find(b"\x08\x01" * (MAX_FIELDS_SCANNED + 1)) == frozenset()
    packed = OUTER(int64s=[1] * MAX_FIELDS_SCANNED).SerializeToString()
    assert finder("int64s").find(packed) == frozenset()
    assert keys_of_values(range(MAX_CONFLICT_KEYS + 1)) == frozenset()


def test_spaces_set_values_apart() -> None:
    """Equal values conflict whatever their fields are called, unless a space says not (§7)."""
    request = OUTER(int64=5, string="a").SerializeToString()
    assert finder("int64").find(request) == keys(5)
    assert finder("orders:int64", "string").find(request) == keys(5, space="orders") | keys("a")
    assert keys(5) != keys(5, space="orders")
    five = OUTER(int32=5, uint64=5, sfixed32=5, fixed64=5, sint64=5).SerializeToString()
    assert finder("int32", "uint64", "sfixed32", "fixed64", "sint64").find(five) == keys(5)


def test_what_a_callable_returns_is_one_value_or_several() -> None:
    """Text, bytes, integers; None is no keys; anything else is refused (DESIGN §7)."""
    assert keys_of_values(None) == keys_of_values([]) == frozenset()
    assert keys_of_values("ab") == keys("ab") == keys_of_values(b"ab")
    assert keys_of_values({"a", "b"}) == keys("a", "b")
    assert keys_of_values(value for value in (1, "x")) == keys(1, "x")
    assert len(keys_of_values("\ud800")) == 1
    for wrong in (1.5, [None], [[1]], object()):
        with pytest.raises(TypeError):
            keys_of_values(wrong)  # type: ignore[arg-type]


_few = st.frozensets(st.integers(0, 4), max_size=3)


@given(_few, _few, _few, _few)
def test_held_calls_whose_keys_are_covered_commute(
    mine: frozenset[int], my_own: frozenset[int], yours: frozenset[int], your_own: frozenset[int]
) -> None:
    """What a witness holds at once shares no recorded key, so no key of its own (2, 3)."""

    def commute(one: frozenset[int], other: frozenset[int]) -> bool:
        return bool(one) and bool(other) and one.isdisjoint(other)

    if commute(mine, yours) and covers(mine, my_own) and covers(yours, your_own):
        assert commute(my_own, your_own)


@pytest.mark.parametrize(
    ("calls", "together"),
    [([{1, 2}, {2, 3}], {1, 2, 3}), ([{1}], {1}), ([{1}, set()], set()), ([], set())],
)
def test_a_batch_conflicts_with_whatever_one_of_its_calls_does(
    calls: list[set[int]], together: set[int]
) -> None:
    """One call without keys makes the whole of it conflict with everything (CURP §3.1)."""
    assert keys_of_all(map(frozenset, calls)) == together


def test_hashes_are_the_same_in_every_process() -> None:
    """Clients, witnesses and leaders of other versions must agree on them: a constant."""
    assert conflict_key("", canonical(5)) == 9507721671737210783
    program = (
        "from curp._core.conflict_keys import *; print(conflict_key('s', canonical('account')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert int(found) == conflict_key("s", canonical("account"))


def test_fields_that_cannot_be_in_one_message_are_refused() -> None:
    """What a peer says of its fields is checked before it is used (DESIGN §9)."""
    for wrong in (
        [KeyField((), FieldType.INT64)],
        [KeyField((0,), FieldType.INT64)],
        [KeyField((1,) * 17, FieldType.INT64)],
        [KeyField((1,), FieldType.INT64), KeyField((1, 2), FieldType.INT64)],
        [KeyField((1, 2), FieldType.INT64), KeyField((1,), FieldType.INT64)],
        [
            KeyField((1, 2), FieldType.INT64),
            KeyField((1, 3), FieldType.INT64, repeated_at=frozenset({0})),
        ],
    ):
        with pytest.raises(ValueError, match=r"field|path"):
            KeyFinder(wrong)
