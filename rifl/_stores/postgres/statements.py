"""Statements that every call asks: prepared once a connection, and packed here.

psycopg spends more time on such a statement than PostgreSQL does: on a cursor, on the types
of twenty parameters, on counting what to prepare, on ending a transaction there is none of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus

_TEXT, _BINARY = 0, 1
_BINARY_RESULT = 1

# How a parameter of this type travels. A text is sent as its bytes: as a C string one
# with a zero byte in it would be cut off there.
_PARAMETERS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "text": (_BINARY, str.encode),
    "bytea": (_BINARY, bytes),
    "int8": (_TEXT, lambda value: b"%d" % value),
    "int8multirange": (_TEXT, str.encode),
    "bool": (_TEXT, lambda value: b"t" if value else b"f"),
    "float8": (_TEXT, lambda value: repr(float(value)).encode()),
}
_RESULTS: dict[str, Callable[[bytes], Any]] = {
    "text": bytes.decode,
    "bytea": bytes,
    "bool": lambda value: value != b"\0",
}


def parameters(
    types: Sequence[str], values: Sequence[Any]
) -> tuple[list[bytes | None], None, list[int]]:
    """Return values of these types as libpq's ``PQsendQueryParams`` takes them."""
    kinds = [_PARAMETERS[name] for name in types]
    encoded = [
        None if value is None else encode(value)
        for (_, encode), value in zip(kinds, values, strict=True)
    ]
    # The types are the statement's own.
    return encoded, None, [form for form, _ in kinds]


class Statement:
    """A call of one of our functions, with parameters and results of these types.

    ``text``: the same as psycopg takes it. Safe in any thread.
    """

    __slots__ = ("_name", "_query", "_results", "_types", "text")

    def __init__(self, schema: str, function: str, types: str, results: str) -> None:
        names = types.split()
        called = f"SELECT * FROM {schema}.{function}"
        self.text = f"{called}({', '.join(f'%s::{name}' for name in names)})".encode()
        numbered = ", ".join(f"${at}::{name}" for at, name in enumerate(names, 1))
        self._query = f"{called}({numbered})".encode()
        self._name = f"rifl_{function}".encode()
        self._types = names
        self._results = [_RESULTS[name] for name in results.split()]

    def asking(self, connection: Any, arguments: tuple[Any, ...]) -> Generator[Any, Any, list[Any]]:
        """Ask a connection of the store's, for its ``wait``; return the rows.

        The connection is in autocommit, and no other thread uses it meanwhile; ``prepared``
        on it says what it knows. Raises psycopg's errors.
        """
        pgconn = connection.pgconn
        if self._name not in connection.prepared:
            pgconn.send_prepare(self._name, self._query)
            _good((yield from generators.execute(pgconn)), ExecStatus.COMMAND_OK)
            connection.prepared.add(self._name)
        values, _, formats = parameters(self._types, arguments)
        pgconn.send_query_prepared(self._name, values, formats, _BINARY_RESULT)
        result = _good((yield from generators.execute(pgconn)), ExecStatus.TUPLES_OK)
        return [self._row(result, at) for at in range(result.ntuples)]

    def _row(self, result: Any, at: int) -> tuple[Any, ...]:
        found = [result.get_value(at, column) for column in range(len(self._results))]
        return tuple(
            None if value is None else decode(value)
            for decode, value in zip(self._results, found, strict=True)
        )


def _good(results: Any, status: ExecStatus) -> Any:
    result = results[-1]
    if result.status != status:
        raise psycopg.errors.error_from_result(result)
    return result
