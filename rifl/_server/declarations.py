"""Declarations: what services say of their methods, and whether it can be honoured (DESIGN §1).

A method is declared by the proto option ``(rifl.v1.exactly_once)``, or else by protobuf's own
``idempotency_level``; what the server says in Python outweighs both. All of it is checked
before calls arrive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor

from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy, PolicyError
from rifl.core._shared.codes import CODE_NUMBERS
from rifl.v1 import options_pb2

_KINDS = {
    options_pb2.ExactlyOnce.PLAIN: Kind.PLAIN,
    options_pb2.ExactlyOnce.IDEMPOTENT: Kind.IDEMPOTENT,
    options_pb2.ExactlyOnce.ATOMIC: Kind.ATOMIC,
}
_LEVELS = {
    descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS: None,
    descriptor_pb2.MethodOptions.IDEMPOTENT: MethodPolicy(kind=Kind.IDEMPOTENT),
}
_CLAIMS = {
    options_pb2.ExactlyOnce.CLAIM_ALWAYS: "always",
    options_pb2.ExactlyOnce.CLAIM_NEVER: "never",
}
_KEY_TYPES = frozenset(
    {
        FieldDescriptor.CPPTYPE_STRING,
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)


def full_name(method: MethodDescriptor) -> str:
    """Return the name a method has on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def option_of(method: MethodDescriptor) -> tuple[bool, MethodPolicy | None]:
    """Return whether a method has an option, and the policy it stands for.

    Of a stream rifl's own alone declares it: others were written without a thought of records.
    Raises ``PolicyError`` for an option that contradicts itself.
    """
    options = method.GetOptions()
    # protoc's stubs type the extension as a plain field.
    extension: Any = options_pb2.exactly_once
    if not options.HasExtension(extension):
        level = options.idempotency_level
        if level not in _LEVELS or method.client_streaming or method.server_streaming:
            return False, None
        return True, _LEVELS[level]
    option: Any = options.Extensions[extension]
    if option.kind == options_pb2.ExactlyOnce.NEVER:
        return True, None
    given: dict[str, Any] = {}
    if option.HasField("retention"):
        given["retention_s"] = option.retention.ToTimedelta().total_seconds()
    if option.max_response_bytes:
        given["max_response_bytes"] = option.max_response_bytes
    if option.key_field:
        given["key_field"] = option.key_field
    if option.claim:
        given["claim"] = _CLAIMS[option.claim]
    if option.HasField("buffer_bytes"):
        given["buffer_bytes"] = option.buffer_bytes
    unknown = [code for code in option.unrecorded if code not in CODE_NUMBERS]
    if unknown:
        raise PolicyError(f"{full_name(method)}: {unknown[0]!r} is not a gRPC status code")
    try:
        return True, MethodPolicy(
            kind=_KINDS.get(option.kind, Kind.PLAIN),
            required=option.required,
            unrecorded=frozenset(CODE_NUMBERS[code] for code in option.unrecorded),
            **given,
        )
    except PolicyError as error:
        raise PolicyError(f"{full_name(method)}: {error}") from None


def take_options(policies: MethodPolicies, services: Iterable[ServiceDescriptor]) -> None:
    """Add what the services' methods say of themselves."""
    for service in services:
        for method in service.methods:
            has_option, policy = option_of(method)
            if has_option:
                policies.add(full_name(method), policy)


def check_policies(
    policies: MethodPolicies,
    services: Sequence[ServiceDescriptor],
    *,
    complete: bool = False,
    atomic: bool = True,
    keys: bool = True,
) -> None:
    """Refuse declarations that cannot be honoured; raises ``PolicyError``.

    ``complete``: the server has no services but these. ``atomic``: the store has
    transactions for handlers. ``keys``: keys without a client id count.
    """
    known = {service.full_name: service for service in services}
    for pattern in policies.declared():
        if pattern != "*":
            _check_pattern(pattern, known, complete)
    for service in services:
        for method in service.methods:
            policy = policies.find(full_name(method))
            if policy is not None:
                marked = policies.marked(full_name(method))
                _check_method(method, policy, marked=marked, atomic=atomic, keys=keys)


def registered_services(server: Any) -> tuple[list[ServiceDescriptor], bool]:
    """Return the services registered on a server, and whether all could be seen.

    gRPC has no public way to ask. A sync server's handlers are found in its state,
    their descriptors in protobuf's default pool; an aio server keeps its own in C.
    """
    state = getattr(server, "_state", None)
    handlers = getattr(state, "generic_handlers", None)
    if handlers is None:
        return [], False
    names: set[str] = set()
    complete = True
    for handler in handlers:
        methods = getattr(handler, "_method_handlers", None)
        if isinstance(methods, dict):
            names.update(_service(method) for method in methods)
        else:
            complete = False
    names.update(_service(method) for method in getattr(state, "registered_method_handlers", ()))
    found = [service for name in sorted(names) if (service := find_service(name)) is not None]
    # None at all: they come after this.
    return found, complete and bool(names) and len(found) == len(names)


def watch_registrations(server: Any, added: Callable[[list[ServiceDescriptor]], None]) -> None:
    """Have ``added`` called with the services that are registered on a server from now on.

    gRPC has no hook for that: the server's two methods are replaced on the object. What
    ``added`` raises is raised by the registration.
    """

    def watched(register: Callable[..., Any], named: Callable[..., set[str]]) -> Any:
        @functools.wraps(register)
        def registering(*arguments: Any, **named_arguments: Any) -> Any:
            result = register(*arguments, **named_arguments)
            names = named(*arguments, **named_arguments)
            found = [find_service(name) for name in sorted(names)]
            added([service for service in found if service is not None])
            return result

        return registering

    def of_generic(generic_rpc_handlers: Iterable[Any]) -> set[str]:
        return {
            _service(method)
            for handler in generic_rpc_handlers
            for method in getattr(handler, "_method_handlers", None) or ()
        }

    def of_registered(service_name: str, method_handlers: Any) -> set[str]:
        return {service_name}

    for method, named in (
        ("add_generic_rpc_handlers", of_generic),
        ("add_registered_method_handlers", of_registered),
    ):
        register = getattr(server, method, None)
        if register is not None:
            setattr(server, method, watched(register, named))


def untaken_options(policies: MethodPolicies, service: str) -> list[str]:
    """Return the methods of a service whose options would count, had they been read in time."""
    found = find_service(service)
    methods = () if found is None else found.methods
    return [
        full_name(method)
        for method in methods
        if policies.takes(full_name(method)) and option_of(method)[0]
    ]


def find_service(name: str) -> ServiceDescriptor | None:
    """Return a service's descriptor if its generated code is imported."""
    try:
        return descriptor_pool.Default().FindServiceByName(name)
    except KeyError:
        return None


def _check_pattern(pattern: str, known: dict[str, ServiceDescriptor], complete: bool) -> None:
    name, _, method = pattern[1:].partition("/")
    service = known.get(name)
    if service is None:
        # Ours and gRPC's own are declared whether or not they are served.
        if complete and not name.startswith(("grpc.", "rifl.v1.", "lease_server.v1.")):
            raise PolicyError(f"{pattern} is declared, but the server has no service {name}")
        service = find_service(name)
    if service is not None and method != "*" and method not in service.methods_by_name:
        raise PolicyError(f"{pattern} is declared, and {name} has no method {method}")


def _check_method(
    method: MethodDescriptor, policy: MethodPolicy, *, marked: bool, atomic: bool, keys: bool
) -> None:
    name = full_name(method)
    if method.client_streaming and method.server_streaming:
        if marked:
            raise PolicyError(f"{name} is bidirectional: it cannot be deduplicated")
        return
    if marked and policy.max_running and (method.client_streaming or method.server_streaming):
        raise PolicyError(f"{name} has a stream: max_running counts unary methods' handlers")
    if policy.kind is Kind.ATOMIC:
        if not atomic:
            raise PolicyError(f"{name} is atomic, and the store has no transactions for handlers")
        if method.server_streaming and marked:
            raise PolicyError(f"{name} answers with a stream: its record fits no transaction")
    if policy.key_field is not None and marked:
        if method.client_streaming:
            raise PolicyError(f"{name} takes a request stream: its key cannot be in a field")
        if not keys:
            raise PolicyError(f"{name} has a key field, and the server takes no keys")
        _check_field(name, method, policy.key_field)


def _check_field(name: str, method: MethodDescriptor, path: str) -> None:
    message: Any = method.input_type
    *parents, last = path.split(".")
    for parent in parents:
        field = None if message is None else message.fields_by_name.get(parent)
        message = None if field is None or field.is_repeated else field.message_type
    field = None if message is None else message.fields_by_name.get(last)
    if field is None:
        raise PolicyError(f"{name}: {method.input_type.full_name} has no field {path}")
    if field.is_repeated or field.cpp_type not in _KEY_TYPES:
        raise PolicyError(f"{name}: {path} cannot be a key: it must be text, bytes or an integer")


def _service(method: str) -> str:
    return method[1:].partition("/")[0]
