"""Descriptors of a method's messages, and mistakes in naming it (DESIGN §8)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from rifl.spark._descriptors import MethodShape, from_file, from_module, from_pool, split_method
from rifl.spark._errors import PlanError
from tests.spark import shapes

_BANK = "examples.bank.v1.bank_pb2"
_DEPOSIT = "/bank.v1.Bank/Deposit"


def test_a_shape_builds_the_same_classes_after_a_journey() -> None:
    """Descriptors travel as bytes; generated modules are not needed there (DESIGN §8)."""
    shape = pickle.loads(pickle.dumps(shapes.shape()))  # noqa: S301 - our own bytes
    assert shape == shapes.shape()
    thing = shape.request_class()(string="a")
    assert shape.response_class().FromString(thing.SerializeToString()).string == "a"


def test_a_module_and_a_file_give_the_same(tmp_path: Path) -> None:
    """An importable module or a descriptor set, in any order of files (DESIGN §8)."""
    shape = from_module(_DEPOSIT, _BANK)
    files = descriptor_pb2.FileDescriptorSet.FromString(shapes.shape().files)
    backwards = descriptor_pb2.FileDescriptorSet(file=reversed(files.file))
    path = tmp_path / "shapes.bin"
    path.write_bytes(backwards.SerializeToString())
    assert shape.request == "bank.v1.DepositRequest"
    found = from_file(shapes.METHOD, path)
    assert found.request_class().DESCRIPTOR.fields_by_name.keys() == (
        shapes.shape().request_class().DESCRIPTOR.fields_by_name.keys()
    )


@pytest.mark.parametrize("method", ["Deposit", "/Deposit", "/a/b/c", "//b", "/a/", ""])
def test_a_malformed_method_is_refused(method: str) -> None:
    """A method is /package.Service/Method (DESIGN §8)."""
    with pytest.raises(PlanError, match="is not /package"):
        split_method(method)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """An unknown service, method, module or file says which (DESIGN §8)."""
    find = shapes.pool().FindServiceByName
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\xff\xff")
    alone = tmp_path / "alone"
    alone.write_bytes(descriptor_pb2.FileDescriptorSet(file=[shapes.FILE]).SerializeToString())
    tries: list[tuple[object, str]] = [
        (lambda: from_pool("/no.Such/Put", find, "the test"), "no service no.Such"),
        (lambda: from_pool("/shapes.Shapes/Get", find, "the test"), "it has: Put, Watch"),
        (lambda: from_pool("/shapes.Shapes/Watch", find, "the test"), "streams"),
        (lambda: from_module(_DEPOSIT, "no.such_pb2"), "no.such_pb2"),
        (lambda: from_module(_DEPOSIT, "json"), "protoc"),
        (lambda: from_file(_DEPOSIT, tmp_path / "none"), "cannot be read"),
        (lambda: from_file(_DEPOSIT, garbage), "not a descriptor set"),
        (lambda: from_file(shapes.METHOD, alone), "not complete"),
    ]
    for attempt, says in tries:
        with pytest.raises(PlanError, match=says):
            attempt()  # type: ignore[operator]
    assert isinstance(shapes.shape(), MethodShape)
