"""The row of a completion record, written inside a handler's own transaction (DESIGN §6)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from rifl._stores.errors import WrongDatabase
from rifl.core._shared.errors import StaleRpc

# Written only where the opening that runs the handler has its mark: a process that lost
# the store cannot commit, nor can one whose connection is to another file of this name.
_RECORD = (
    "INSERT INTO rifl_call SELECT ?, ?, ?, ?, ?, ?, ? WHERE "
    "(SELECT value FROM rifl_meta WHERE name='opening')=?"
)
_CLIENT = "INSERT INTO rifl_client VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FILE = (
    "SELECT file, (SELECT synchronous FROM pragma_synchronous) "
    "FROM pragma_database_list WHERE name='main'"
)
# Below it a commit does not wait for the disk (WAL).
_FULL = 2
_Statements = Generator[tuple[str, tuple[Any, ...]], Any, bool]


class RecordRow(NamedTuple):
    """What is written, and the file and the opening of it that it may be written to.

    ``number`` is the commit's. ``client`` is the client's row, None if it is durable
    already; ``call`` holds client id, seq or key, fingerprint, method and the serialised
    record.
    """

    path: Path
    opening: int
    number: int
    client: tuple[int, int, bytes] | None
    call: tuple[int, int | bytes, bytes | None, str, bytes]


def write_record(connection: sqlite3.Connection, row: RecordRow) -> bool:
    """Write the row in the transaction open on a sqlite3 connection.

    Returns whether that connection's commits wait for the disk.

    Raises ``WrongDatabase`` for a connection in autocommit or to another file,
    and ``StaleRpc`` when a record stands already or the store has a new owner;
    the handler's transaction then has to roll back.
    """
    _check(connection)
    statements = _statements(row)
    statement = next(statements)
    while True:
        try:
            # Closed before an error leaves: what that holds keeps the locks of a connection
            # that the handler closes.
            with contextlib.closing(connection.cursor()) as cursor:
                # The handler's factories make of rows what they like.
                cursor.row_factory = None
                cursor.execute(*statement)
                found = cursor.fetchone() if statement[0] is _FILE else cursor.rowcount
            statement = statements.send(found)
        except StopIteration as stop:
            return bool(stop.value)
        except sqlite3.IntegrityError as error:
            raise _standing(row) from error


def write_row(connection: sqlite3.Connection, row: RecordRow) -> None:
    """Write the row on a connection of ours to the file; raises ``StaleRpc``."""
    now = int(time.time())
    try:
        if not connection.execute(_RECORD, (*row.call, now, row.number, row.opening)).rowcount:
            raise _other_owner()
        if row.client is not None:
            connection.execute(_CLIENT, (*row.client, now))
    except sqlite3.IntegrityError as error:
        raise _standing(row) from error


async def write_record_async(connection: Any, row: RecordRow) -> bool:
    """The same for an ``aiosqlite`` connection, or one with its methods."""
    _check(connection)
    statements = _statements(row)
    statement = next(statements)
    while True:
        try:
            cursor = await connection.cursor()
            try:
                cursor.row_factory = None
                await cursor.execute(*statement)
                found = await cursor.fetchone() if statement[0] is _FILE else cursor.rowcount
            finally:
                await cursor.close()
            statement = statements.send(found)
        except StopIteration as stop:
            return bool(stop.value)
        except sqlite3.IntegrityError as error:
            raise _standing(row) from error


def _check(connection: Any) -> None:
    if not connection.in_transaction and (
        connection.isolation_level is None or getattr(connection, "autocommit", None) is True
    ):
        raise WrongDatabase(
            "the connection is in autocommit mode: begin a transaction before rifl.record"
        )


def _statements(row: RecordRow) -> _Statements:
    found = yield _FILE, ()
    file = os.fsdecode(found[0] or "") if found else ""
    if not file or Path(file).resolve() != row.path:
        raise WrongDatabase(
            f"the method's records live in {row.path}, and the connection is to "
            f"{file or 'memory'}: recovery could not find this one"
        )
    now = int(time.time())
    written = yield _RECORD, (*row.call, now, row.number, row.opening)
    if not written:
        raise _other_owner()
    if row.client is not None:
        yield _CLIENT, (*row.client, now)
    return bool(found[1] >= _FULL)


def _other_owner() -> StaleRpc:
    return StaleRpc(
        "another incarnation of the server owns the store, or the connection is to another file "
        "that has, or had, its name"
    )


def _standing(row: RecordRow) -> StaleRpc:
    return StaleRpc(f"a record stands for {row.call[0]}/{row.call[1]!r} already")
