"""Declarations of methods' conflict keys (DESIGN §7, conflict keys)."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor

from curp._core.conflict_keys import FieldType, KeyField, canonical
from curp._key_declarations import declared_conflicts, fields_from_wire, fields_to_wire
from curp.v1 import curp_pb2, options_pb2
from rifl.core._serving.policy import PolicyError

_METHODS: dict[str, dict[str, Any]] = {
    "Deposit": {"conflict_key": ["account"]},
    "Transfer": {"conflict_key": ["source.account", "target.account"]},
    "Apply": {"conflict_key": ["deltas", "audit:note"], "nondeterministic": True},
    "Balance": {"conflict_key": ["account"], "read_only": True},
    "Close": {},
    "Upload": {},
}


def service(syntax: str = "proto3", **methods: dict[str, Any]) -> ServiceDescriptor:
    """A service with these methods and their options, all taking one message."""
    file = descriptor_pb2.FileDescriptorProto(
        name="declared.proto", package="declared", syntax=syntax
    )
    side = file.message_type.add(name="Side")
    side.field.add(name="account", number=3, type=3, label=1)
    request = file.message_type.add(name="Request")
    request.field.add(name="account", number=1, type=3, label=1)
    request.field.add(name="ratio", number=2, type=1, label=1)
    request.field.add(name="note", number=4, type=9, label=1)
    request.field.add(name="kind", number=8, type=14, label=1, type_name=".declared.Kind")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    for name, number in (("source", 5), ("target", 6)):
        request.field.add(name=name, number=number, type=11, label=1, type_name=".declared.Side")
    entry = request.nested_type.add(name="DeltasEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=3, label=1)
    entry.field.add(name="value", number=2, type=11, label=1, type_name=".declared.Side")
    request.field.add(
        name="deltas", number=7, type=11, label=3, type_name=".declared.Request.DeltasEntry"
    )
    made = file.service.add(name="Bank")
    for name, given in methods.items():
        method = made.method.add(
            name=name,
            input_type=".declared.Request",
            output_type=".declared.Request",
            client_streaming=name == "Upload",
        )
        for option, value in given.items():
            extension: Any = getattr(options_pb2, option)
            if isinstance(value, list):
                method.options.Extensions[extension].extend(value)
            else:
                method.options.Extensions[extension] = value
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    found: ServiceDescriptor = pool.FindServiceByName("declared.Bank")
    return found


def conflicts(**methods: dict[str, Any]) -> dict[str, curp_pb2.MethodConflicts]:
    found = declared_conflicts([service(**methods)])
    return {message.method.rpartition("/")[2]: message for message in found}


def test_options_become_paths() -> None:
    """Dotted names, maps and spaces are field numbers on the wire (DESIGN §7)."""
    found = conflicts(**_METHODS)
    zero = canonical(0)
    assert fields_from_wire(found["Deposit"].keys) == [KeyField((1,), FieldType.INT64, "", zero)]
    assert fields_from_wire(found["Transfer"].keys) == [
        KeyField((5, 3), FieldType.INT64, "", zero),
        KeyField((6, 3), FieldType.INT64, "", zero),
    ]
    assert fields_from_wire(found["Apply"].keys) == [
        KeyField((7, 1), FieldType.INT64, "", zero, frozenset({0})),
        KeyField((4,), FieldType.STRING, "audit", b""),
    ]
    assert [name for name, method in found.items() if method.read_only] == ["Balance"]
    assert [name for name, method in found.items() if method.synced] == ["Apply"]
    assert not found["Close"].keys
    assert not found["Upload"].keys


def test_fields_survive_the_wire() -> None:
    """A client scans with what the leader declared (DESIGN §7)."""
    fields = [
        KeyField((1, 2), FieldType.SINT32, "s", None, frozenset({0, 1})),
        KeyField((9,), FieldType.BYTES, "", b"x"),
    ]
    assert fields_from_wire(fields_to_wire(fields)) == fields
    with pytest.raises(ValueError, match="77"):
        fields_from_wire([curp_pb2.KeyField(path=[1], type=77)])


def test_a_declaration_in_python_outweighs_the_option() -> None:
    """Fields by name, or a callable, which only its owner can ask (DESIGN §7)."""
    bank = service(**_METHODS)
    declared = {
        "/declared.Bank/Deposit": lambda request: request.account,
        "/declared.Bank/Transfer": "note",
        "/declared.Bank/Close": ["account", "x:note"],
    }
    found = {
        message.method.rpartition("/")[2]: [list(field.path) for field in message.keys]
        for message in declared_conflicts([bank], declared)
    }
    assert found["Deposit"] == []
    assert found["Transfer"] == [[4]]
    assert found["Close"] == [[1], [4]]
    with pytest.raises(PolicyError, match="Missing"):
        declared_conflicts([bank], {"/declared.Bank/Missing": "account"})


@pytest.mark.parametrize(
    ("method", "options", "wrong"),
    [
        ("M", {"conflict_key": ["missing"]}, "no field missing"),
        ("M", {"conflict_key": ["account.deeper"]}, "no field account.deeper"),
        ("M", {"conflict_key": ["deltas.key"]}, "no field deltas.key"),
        ("M", {"conflict_key": ["ratio"]}, "ratio is no conflict key"),
        ("M", {"conflict_key": ["source"]}, "source is no conflict key"),
        ("M", {"conflict_key": [""]}, "no field"),
        ("M", {"read_only": True, "nondeterministic": True}, "read_only says enough"),
        ("Upload", {"conflict_key": ["account"]}, "is sent a stream"),
    ],
)
def test_what_cannot_be_a_key_is_refused(method: str, options: dict[str, Any], wrong: str) -> None:
    """Mistakes in declarations show at start, never with a call (DESIGN §9)."""
    with pytest.raises(PolicyError, match=wrong):
        declared_conflicts([service(**{method: options})])


def test_closed_enums_are_no_keys() -> None:
    """A parser reads the numbers it does not know as the default, the scan would not."""
    with pytest.raises(PolicyError, match="kind is no conflict key"):
        declared_conflicts([service("proto2", M={"conflict_key": ["kind"]})])
    assert conflicts(M={"conflict_key": ["kind"]})["M"].keys[0].type == FieldType.ENUM
