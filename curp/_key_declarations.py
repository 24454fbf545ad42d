"""Declarations of conflict keys by method, in proto options or in Python (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from google.protobuf.descriptor import (
    Descriptor,
    FieldDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)

from curp._core.conflict_keys import FieldType, KeyField, KeyValue, canonical
from curp.v1 import curp_pb2, options_pb2
from rifl.core._serving.policy import PolicyError

# From the request message to its key, its keys, or None: conflicts with everything.
KeyCallable: TypeAlias = Callable[[Any], KeyValue | Iterable[KeyValue] | None]
# What may stand for a method in Python: a field, several, or a callable.
KeyDeclaration: TypeAlias = str | Sequence[str] | KeyCallable

_TYPES = {int(kind) for kind in FieldType}


def declared_conflicts(
    services: Iterable[ServiceDescriptor], declared: Mapping[str, KeyDeclaration] | None = None
) -> list[curp_pb2.MethodConflicts]:
    """Return what every method of the services conflicts with.

    ``declared``: full method names to what outweighs their option. A method with a
    callable gets no fields here: who has the callable asks it. Raises
    ``PolicyError`` for what cannot be honoured, unknown methods among it.
    """
    left = dict(declared or {})
    found = [
        _conflicts(method, left.pop(f"/{service.full_name}/{method.name}", None))
        for service in services
        for method in service.methods
    ]
    if left:
        raise PolicyError(f"conflict keys are declared for {min(left)}, which is not served")
    return found


def key_fields(method: str, request: Descriptor, declared: Iterable[str]) -> list[KeyField]:
    """Return where a request holds the keys declared as ``field`` or ``space:field``.

    Raises ``PolicyError`` for a field that is not there or cannot be a key.
    """
    return [_key_field(method, request, text) for text in declared]


def fields_to_wire(fields: Iterable[KeyField]) -> list[curp_pb2.KeyField]:
    """Return the messages that stand for key fields."""
    return [
        curp_pb2.KeyField(
            path=field.path,
            space=field.space,
            default_value=field.default,
            type=int(field.type),
            repeated_at=sorted(field.repeated_at),
        )
        for field in fields
    ]


def fields_from_wire(messages: Iterable[curp_pb2.KeyField]) -> list[KeyField]:
    """Read key fields that a peer sent; ValueError for what this version does not know."""
    return [
        KeyField(
            tuple(message.path),
            FieldType(message.type),
            message.space,
            message.default_value if message.HasField("default_value") else None,
            frozenset(message.repeated_at),
        )
        for message in messages
    ]


def _conflicts(
    method: MethodDescriptor, declared: KeyDeclaration | None
) -> curp_pb2.MethodConflicts:
    name = f"/{method.containing_service.full_name}/{method.name}"
    # protoc's stubs type the extensions as plain fields.
    options: Any = method.GetOptions().Extensions
    extensions: Any = options_pb2
    if declared is None:
        texts: Sequence[str] = list(options[extensions.conflict_key])
    elif callable(declared):
        texts = ()
    else:
        texts = [declared] if isinstance(declared, str) else list(declared)
    if texts and method.client_streaming:
        raise PolicyError(f"{name} is sent a stream: its conflict keys are in no one request")
    read_only = bool(options[extensions.read_only])
    synced = bool(options[extensions.nondeterministic])
    if read_only and synced:
        raise PolicyError(f"{name} changes nothing, so it is never synced: read_only says enough")
    return curp_pb2.MethodConflicts(
        method=name,
        keys=fields_to_wire(key_fields(name, method.input_type, texts)),
        read_only=read_only,
        synced=synced,
        by_callable=callable(declared),
    )


def _key_field(method: str, request: Descriptor, declared: str) -> KeyField:
    space, _, dotted = declared.rpartition(":")
    path: list[int] = []
    repeated_at: set[int] = set()
    message: Any = request
    field: Any = None
    for name in dotted.split("."):
        field = None if message is None else message.fields_by_name.get(name)
        if field is None:
            raise PolicyError(f"{method}: {request.full_name} has no field {dotted}")
        if field.is_repeated:
            repeated_at.add(len(path))
        path.append(field.number)
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            # A map stands for its keys; a name behind it would be of its values.
            field = message.fields_by_name["key"]
            path.append(field.number)
            message = None
    closed = field.enum_type is not None and field.enum_type.is_closed
    if field.type not in _TYPES or closed:
        # Of a closed enum a parser drops the numbers it does not know, and of a float two
        # forms are one value.
        raise PolicyError(f"{method}: {dotted} is no conflict key: text, bytes or an integer is")
    default = None if len(path) - 1 in repeated_at else _default(field)
    return KeyField(tuple(path), FieldType(field.type), space, default, frozenset(repeated_at))


def _default(field: FieldDescriptor) -> bytes:
    value: Any = field.default_value
    return canonical(value)
