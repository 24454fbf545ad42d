"""A method's request and response messages, as descriptors that travel to executors.

From one of three places: the server's reflection, a descriptor-set file
(``protoc --include_imports --descriptor_set_out``), or an importable module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError, Message

from rifl.spark._errors import PlanError


def split_method(method: str) -> tuple[str, str]:
    """Return service and method of ``/package.Service/Method``; raises ``PlanError``."""
    parts = method.split("/")
    if len(parts) != 3 or parts[0] or not parts[1] or not parts[2]:
        raise PlanError(f"the method {method!r} is not /package.Service/Method")
    return parts[1], parts[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodShape:
    """One unary method: the names of its messages, and the files that define them.

    Picklable and hashable; the descriptors are built once in each process, in a
    pool of their own, so that they cannot clash with generated modules.
    """

    method: str
    request: str
    response: str
    files: bytes

    def request_class(self) -> type[Message]:
        """Return the request's class."""
        return message_class(self.files, self.request)

    def response_class(self) -> type[Message]:
        """Return the response's class."""
        return message_class(self.files, self.response)


def from_file(method: str, path: str | Path) -> MethodShape:
    """Read a serialised ``FileDescriptorSet``; raises ``PlanError``."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"the descriptor file cannot be read: {error}") from error
    except DecodeError as error:
        raise PlanError(
            f"{path} is not a descriptor set; make one with "
            "protoc --include_imports --descriptor_set_out=FILE"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files_in_order(files.file):
            pool.Add(file)
        return from_pool(method, pool.FindServiceByName, f"the descriptor file {path}")
    except TypeError as error:
        raise PlanError(
            f"the descriptor file {path} is not complete ({error}); make it with --include_imports"
        ) from error


def from_module(method: str, name: str) -> MethodShape:
    """Take the method from a generated module such as ``bank.v1.bank_pb2``."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise PlanError(f"the module {name!r} cannot be imported: {error}") from error
    described: Any = getattr(module, "DESCRIPTOR", None)
    if described is None:
        raise PlanError(f"the module {name!r} is not one that protoc generated (*_pb2)")
    return from_pool(method, described.pool.FindServiceByName, f"the module {name!r}")


def from_pool(method: str, find_service: Callable[[str], Any], where: str) -> MethodShape:
    """Take the method from descriptors; raises ``PlanError`` where there is no such.

    ``find_service`` raises ``KeyError`` for a service that is unknown ``where``.
    """
    service_name, method_name = split_method(method)
    try:
        service = find_service(service_name)
    except KeyError as error:
        raise PlanError(f"{where} has no service {service_name}") from error
    found = service.methods_by_name.get(method_name)
    if found is None:
        known = ", ".join(sorted(service.methods_by_name)) or "none"
        raise PlanError(f"{service_name} has no method {method_name!r}; it has: {known}")
    if found.client_streaming or found.server_streaming:
        raise PlanError(f"{method} streams: a row is one request of a unary method")
    files = descriptor_pb2.FileDescriptorSet()
    collect_files((found.input_type.file, found.output_type.file), files, set())
    return MethodShape(
        method=method,
        request=found.input_type.full_name,
        response=found.output_type.full_name,
        files=files.SerializeToString(deterministic=True),
    )


def collect_files(
    wanted: Iterable[Any], files: descriptor_pb2.FileDescriptorSet, seen: set[str]
) -> None:
    """Add files, and those they import, to a set: dependencies first, as a pool takes them."""
    for file in wanted:
        if file.name not in seen:
            seen.add(file.name)
            collect_files(file.dependencies, files, seen)
            file.CopyToProto(files.file.add())


def files_in_order(files: Iterable[Any]) -> list[Any]:
    """Sort files so that each comes after those it imports, as far as they are there."""
    by_name = {file.name: file for file in files}
    ordered: dict[str, Any] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in ordered or name not in by_name or name in above:
            return
        for needed in by_name[name].dependency:
            visit(needed, (*above, name))
        ordered[name] = by_name[name]

    for name in by_name:
        visit(name, ())
    return list(ordered.values())


@lru_cache(maxsize=64)
def message_class(files: bytes, name: str) -> type[Message]:
    """Return the class of a message that these files describe, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
